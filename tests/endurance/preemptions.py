"""Trainings that are told to stop (SIGTERM) at random moments, and go on: each ends with the bits of an undisturbed one.

A training of 6,000 steps runs once to its end. Then it starts again and again in another folder, each time told to stop after a
time drawn between 0 and what the undisturbed one took. It ends with status 75 and one line that says where it stopped, before
which another may say that it saves. "After a step" counts those that stopped beyond the step they began at, where there is a
checkpoint now; "before a step" those that trained none. The signal itself ends a process (status -15) in two places: "at once",
while it imports, where every file stays as it was; and "after the end", where the last checkpoint is whole. "Ends" counts
trainings that came to theirs. Any other way is a failure, as are bits that differ or cannot be read, no end within twenty times
the undisturbed training and five minutes, and a part in which none stopped after a step.
"""

import random
import re
import signal
import time
from pathlib import Path

from endurance import commands, kills
from endurance.figures import Figure, Outcome

from bam_jax.system import errors
from bam_jax.training import run_folder

STEPS = 6000
"""Steps that take about twice as long as the imports and the compilation before them: half of the signals come after one."""
SAVES = r"(?:SIGTERM: it saves .*\n)?"
BEFORE = r"stopped by SIGTERM before a step was trained: .*\n"
AFTER = SAVES + r".*: stopped at step (\d+) of \d+; .*\n"
"""All that is said on stderr by a training that is stopped."""
LEAST = 5
"""Starts of a part, where few minutes are measured: a signal after a step is among them."""


def last(folder: Path, said: str) -> dict[str, str]:
    """A training's leavings but for the checkpoint before its last one, which is of the step where it stopped, if it did."""
    whole = lambda name: not name.startswith("checkpoints/") or name.startswith(f"checkpoints/{STEPS}/")
    return {name: left for name, left in kills.trained(folder / "run", said).items() if whole(name)}


TRAINING = kills.Command(
    lambda out, given: [
        *kills.COMMANDS["train"].arguments(out, given),
        *(f"--config.steps={STEPS}", "--config.checkpoint_every=100", "--no-progress"),
    ],
    last,
)


def way(ended: commands.Ended, began: int, reached: int, changed: bool) -> str:
    """The name of the way in which a training ended; "" where it is none of those that it may end in.

    Args:
        ended: the process.
        began, reached: the steps of the last checkpoint before and after it.
        changed: whether files are others than before it.
    """
    if ended.status == 0:
        return "ends" if re.fullmatch(SAVES, ended.err) else ""
    if ended.status == errors.AGAIN:
        if re.fullmatch(BEFORE, ended.err):
            return "before_a_step" if reached == began else ""
        at = re.fullmatch(AFTER, ended.err)
        return "after_a_step" if at and began < reached == int(at[1]) else ""
    if ended.status == -signal.SIGTERM and not ended.err:
        return "after_the_end" if reached == STEPS else "" if changed else "at_once"
    return ""


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Preempts trainings for so many minutes or `LEAST` starts, and lets the last one end; see `figures.Figure`."""
    draw, failures = random.Random(seed), []
    command = lambda place: [*kills.PYTHON, *TRAINING.arguments(place, folder)]
    start = time.monotonic()
    (folder / "whole").mkdir()
    kills.undisturbed(command(folder / "whole"))
    usual = time.monotonic() - start
    expected = TRAINING.compared(folder / "whole", "")
    hangs = kills.patience(usual), signal.SIGKILL
    ways = dict.fromkeys(("after_a_step", "before_a_step", "at_once", "after_the_end", "ends"), 0)
    starts, number, over, start = 0, 0, False, time.monotonic()
    while not over:
        place = folder / f"{number}"
        place.mkdir(exist_ok=True)
        before, began = commands.snapshot(place), run_folder.latest_step(place / "run")
        over = starts >= LEAST and time.monotonic() - start > 60 * count
        starts += 1
        ended = kills.run(command(place), *([] if over else [(draw.uniform(0, usual), signal.SIGTERM)]), hangs)
        reached, changed = run_folder.latest_step(place / "run"), commands.snapshot(place) != before
        name = way(ended, began, reached, changed)
        if name == "ends":
            wrong, _ = kills.compare(TRAINING, expected, place, "")
        elif name and not over:
            wrong = ""
        else:
            wrong = f"status {ended.status}, from step {began} to {reached}, files {'changed' if changed else 'as before'}: "
            wrong += kills.tail(ended.err)
        if name:
            ways[name] += 1
        if wrong:
            failures.append(f"folder {number}: {wrong}")
        if wrong or name == "ends":
            number += 1
    if not ways["after_a_step"]:
        failures.append("no preemption came after a step")
    told = {"starts": starts, "preemptions": sum(ways.values()) - ways["ends"]}
    return Outcome(count, failures, {**told, **ways, "undisturbed_seconds": round(usual, 1)})


FIGURE = Figure(
    what="trainings preempted (SIGTERM) at random moments: once they have imported, status 75 and a line of where they stopped; "
    "at the end the bits of an undisturbed one",
    unit="minutes",
    wanted=60,
    part=20,
    short=1,
    minutes=70,
    measure=measure,
)
