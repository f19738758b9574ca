"""Speed and memory, side by side on a machine or counted by a compiler: `python -m benchmarks.NAME` in a clone."""
