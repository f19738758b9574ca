"""Speed and memory, compared on a machine or counted by a compiler: `python -m benchmarks.NAME` in a clone."""
