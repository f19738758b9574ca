"""Trainings that are told to stop (SIGTERM) at random moments, and go on: each ends with the bits of an undisturbed one.

A command that is told to stop ends with status 75 and one line, or, before its first step is made, with the signal.
"""

import random
import signal
import subprocess
import time
from pathlib import Path

from endurance import kills
from endurance.figures import Figure, Outcome

STATUSES = (75, -signal.SIGTERM)


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Preempts trainings for so many minutes; see `figures.Figure`. Of 0 minutes there is one preemption."""
    draw, failures = random.Random(seed), []
    arguments = lambda place: [*kills.PYTHON, *kills.COMMANDS["train"].arguments(place, folder), "--no-progress"]
    start = time.monotonic()
    (folder / "whole").mkdir()
    kills.undisturbed(arguments(folder / "whole"))
    usual = time.monotonic() - start
    expected = kills.COMMANDS["train"].compared(folder / "whole", "")
    start = time.monotonic()
    told, statuses, ends = 0, dict.fromkeys((*STATUSES, 0), 0), 0
    while True:
        place = folder / f"{ends}"
        place.mkdir(exist_ok=True)
        over = told > 0 and time.monotonic() - start > 60 * count
        with subprocess.Popen(
            arguments(place), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                _, said = process.communicate(timeout=None if over else draw.uniform(0, usual))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                told += 1
                _, said = process.communicate()
        status = process.returncode
        if status not in statuses or "Traceback" in said or (status == 75 and said.strip().count("\n")):
            failures.append(f"status {status}: {' | '.join(said.split(chr(10)))[-300:]}")
            break
        statuses[status] += 1
        if status == 0:
            if kills.COMMANDS["train"].compared(place, "") != expected:
                failures.append(f"end {ends} differs from the undisturbed training")
            ends += 1
            if over:
                break
    ways = {"stopped_after_a_step": statuses[75], "stopped_at_once": statuses[-signal.SIGTERM], "ends": ends}
    minutes = min(count, int((time.monotonic() - start) // 60))  # a failure ends it before
    return Outcome(minutes, failures, {"preemptions": told, **ways, "undisturbed_seconds": round(usual, 1)})


FIGURE = Figure(
    what="trainings preempted (SIGTERM) at random moments: status 75 and one line, and the bits of an undisturbed one at the end",
    unit="minutes",
    wanted=60,
    part=10,
    short=0,
    minutes=60,
    measure=measure,
)
