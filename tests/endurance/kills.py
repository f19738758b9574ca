"""Commands killed at random moments after their first write, then run again.

A command first runs undisturbed in a separate process. Then it starts again and again in another folder, and is killed (SIGKILL,
with all its processes) at a random moment between its first write and the end of an undisturbed run. Only such a kill counts. If
the command ends first, its files are compared and it begins in a new folder; after the last kill it runs to its end. The
comparison covers the bits of models and other files, and records without seconds, commits and paths. A failure is a different or
unreadable result, a status other than 0, or no end within ten minutes.

The killed processes are forked from one that has imported the command. "Starts" counts processes, "ends" those with status 0,
"compared" the items compared at each end, and "torn" the lines of records that cannot be read.
"""

import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from endurance import commands, forked, writers
from endurance.figures import Outcome

WHAT = "kill -9 after the first write, 50 of each writing command: the final result is that of an undisturbed run"


def compare(
    writer: writers.Writer, expected: Mapping[str, object], out: Path, ended: commands.Ended, *, refuses: bool = False
) -> str:
    """What is wrong with a command that should have ended well, or, with `refuses`, with status 2; "" if nothing is."""
    if ended.status != 0 and not (refuses and ended.status == 2):
        return f"status {ended.status}: {' '.join(ended.err.split())[-250:]}"
    try:
        found = writer.left(out)
    except Exception as error:  # whatever a kill has left, the harness goes on
        return f"what it leaves cannot be read: {error}"
    differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return f"{len(differing)} differ, such as {differing[0]}" if differing else ""


def undisturbed(writer: writers.Writer, out: Path) -> Mapping[str, object]:
    """What a command leaves as an undisturbed process of its own."""
    writer.begin(out)
    ended = commands.start(writer.command(out))
    assert ended.status == 0, ended.err
    return writer.left(out)


def timed(writer: writers.Writer, warm: forked.Warm, out: Path) -> tuple[float, str]:
    """The seconds of a forked command from its first write to its end, once its programs are compiled; and its stderr."""
    for _ in range(2):
        writer.begin(out)
        before = commands.look(out)
        child = warm.start(writer.command(out)[1:])
        first = forked.first_write(child, out, before)
        ended = child.end()
        assert first and ended.status == 0, ended.err
    return time.monotonic() - first, ended.err


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Kills the command of a number `count` times, and compares what it leaves."""
    name, writer = list(writers.WRITERS.items())[seed]
    draw, out, outcome = random.Random(name), folder / "out", Outcome()
    expected = undisturbed(writer, out)
    killed = starts = ends = torn = 0
    refuses = False  # an export is complete before its process ends: one that was killed then is not written again
    with forked.Warm(writer.command(out)[0], folder / "warm") as warm:
        usual, _ = timed(writer, warm, out)
        new, last = True, False
        while not last:
            last = killed == count
            if new:
                writer.begin(out)
            before, starts = commands.look(out), starts + 1
            child = warm.start(writer.command(out)[1:], forked.FROZEN)
            if not last and forked.first_write(child, out, before) and not child.wait(draw.uniform(0, usual)):
                child.send(signal.SIGKILL)
            ended = child.end()
            new = ended.status != -signal.SIGKILL
            killed += not new
            if new or last:
                wrong = compare(writer, expected, out, ended, refuses=refuses)
                ends, torn = ends + (ended.status == 0), torn + ("torn" in writers.records(out).values())
                outcome.add(f"{name}, start {starts}", wrong)
            refuses = not new and name in ("export", "import")
    counted = {"starts": starts, "ends": ends, "compared": len(expected), "torn": torn}
    outcome.count, outcome.more = killed, {"command": name, **counted, "undisturbed_seconds": round(usual, 2)}
    return outcome
