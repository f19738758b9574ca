"""Memory, descriptors and threads of a long training: they are at its end what they were after its first tenth."""

import os
import re
import statistics
from pathlib import Path

from endurance import made
from endurance.figures import Figure, Outcome

from bam_jax import config as configs
from bam_jax.training import loop

GROWTH = 2**25
"""Bytes that the memory may differ by, between the second tenth of the steps and the last."""
MORE = 4
"""Descriptors and threads that may be there more."""


def held() -> tuple[int, int, int]:
    """This process's resident bytes, descriptors and threads."""
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(resident[1]) * 1024, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Trains a small model for so many steps, with 50 checkpoints; see `figures.Figure`."""
    path = made.configuration(folder, steps=count, log_every=100, checkpoint_every=max(1, count // 50)).partition("=")[
        2
    ]
    seen: list[tuple[int, int, int]] = []

    def look(step: int) -> bool:
        if step % max(1, count // 500) == 0:
            seen.append(held())
        return False

    loop.fit(configs.load(path), folder / "run", progress=False, stop=look)
    tenth = len(seen) // 10
    first, last = [
        [round(statistics.median(values)) for values in zip(*part, strict=True)]
        for part in (seen[tenth : 2 * tenth], seen[-tenth:])
    ]
    failures = []
    for name, before, after, more in zip(
        ("bytes", "descriptors", "threads"), first, last, (GROWTH, MORE, MORE), strict=True
    ):
        if after > before + more:
            failures.append(f"{name}: {before:,} in the second tenth, {after:,} in the last")
    names = ("mib", "descriptors", "threads")
    numbers = lambda values: dict(zip(names, (values[0] // 2**20, *values[1:]), strict=True))
    return Outcome(count, failures, {"second_tenth": numbers(first), "last_tenth": numbers(last)})


FIGURE = Figure(
    what=f"steps of one training with 50 checkpoints: memory within {GROWTH // 2**20} MiB, descriptors and threads within {MORE}",
    unit="steps",
    wanted=50_000,
    part=50_000,
    short=500,
    minutes=10,
    measure=measure,
)
