"""Memory, descriptors and threads of a long training, which must not grow.

The training is a separate process, which returns freed memory to the system before each measurement, since a leak would
otherwise fill that memory first. The minimum over the second tenth of the steps is compared with the minimum over the last.
Resident memory may grow by 32 MiB, descriptors and threads by 4. The record has the least-squares slope of memory over all but
the first tenth.
"""

import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

from endurance import made
from endurance.figures import ROOT, Outcome

from bam_jax import config as configs
from bam_jax.training import loop

WHAT = "steps of one training with 50 checkpoints: memory within 32 MiB, descriptors and threads within 4"
ALLOWED = {"mib": 32, "descriptors": 4, "threads": 4}  # more in the last tenth of the steps than in the second
ENTRY = f"import sys; sys.path[0] = {str(ROOT / 'tests')!r}; from endurance import memory; memory.train(*sys.argv[1:])"


def held() -> list[float]:
    """This process's resident MiB, descriptors and threads."""
    ctypes.CDLL(None).malloc_trim(0)
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return [int(resident[1]) / 1024, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]


def train(config: str, folder: str, count: str) -> None:
    """Trains `count` steps, and writes what this process held at 500 of them to `held.json`."""
    seen: list[list[float]] = []

    def look(step: int) -> bool:
        if step % max(1, int(count) // 500) == 0:
            seen.append(held())
        return False

    loop.fit(configs.load(config), Path(folder) / "run", progress=False, stop=look)
    (Path(folder) / "held.json").write_text(json.dumps(seen))


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Trains a small model for `count` steps, with 50 checkpoints at most."""
    # Of fewer than 100 steps between two checkpoints a loaded machine is still writing one when the next begins.
    changes = {"steps": count, "log_every": 100, "checkpoint_every": max(100, count // 50)}
    config = folder / "small.py"
    config.write_text(made.to_file({**made.values(folder), **changes}))
    subprocess.run([sys.executable, "-c", ENTRY, config, folder, str(count)], check=True)
    seen = json.loads((folder / "held.json").read_text())
    parts = [seen[len(seen) * n // 10 : len(seen) * (n + 1) // 10] for n in range(10)]
    tenths = [[*map(min, zip(*part, strict=True))] for part in parts]  # between two checkpoints
    second, last = (dict(zip(ALLOWED, map(int, tenths[n]), strict=True)) for n in (1, -1))
    mib = [values[0] for values in tenths[1:]]
    slope = statistics.linear_regression(range(9), mib).slope * 10 / count  # of a tenth
    more = {"second_tenth": second, "last_tenth": last, "mib_per_10000_steps": round(slope * 1e4, 2)}
    outcome = Outcome(count, [], more)
    for name, allowed in ALLOWED.items():
        if last[name] > second[name] + allowed:
            outcome.failures.append(f"{name}: {second[name]:,} in the second tenth, {last[name]:,} in the last")
    return outcome
