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
from endurance.figures import Figure, Outcome


def difference(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """What differs between the files of two commands; "" if nothing does."""
    differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return f"{len(differing)} differ, such as {differing[0]}" if differing else ""


def compare(
    writer: writers.Writer, expected: Mapping[str, str], out: Path, ended: commands.Ended, *, refuses: bool = False
) -> str:
    """What is wrong with a command that should have ended well, or, with `refuses`, with status 2; "" if nothing is."""
    if ended.status != 0 and not (refuses and ended.status == 2):
        return f"status {ended.status}: {' '.join(ended.err.split())[-250:]}"
    try:
        return difference(expected, writer.left(out))
    except Exception as error:  # whatever a kill has left, the harness goes on
        return f"what it leaves cannot be read: {error}"


def undisturbed(writer: writers.Writer, out: Path) -> Mapping[str, str]:
    """What a command leaves as an undisturbed process of its own."""
    writer.begin(out)
    ended = commands.start(writer.command(out))
    assert ended.status == 0, ended.err
    return writer.left(out)


def timed(writer: writers.Writer, warm: forked.Warm, out: Path) -> float:
    """The seconds of a forked command from its first write to its end, after a first one has compiled its programs."""
    for _ in range(2):
        writer.begin(out)
        before = forked.look(out)
        child = warm.start(writer.command(out)[1:])
        first = forked.first_write(child, out, before)
        ended = child.end()
        assert first and ended.status == 0, ended.err
    return time.monotonic() - first


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Kills the command of a number `count` times, and compares what it leaves."""
    name, writer = list(writers.WRITERS.items())[seed]
    draw, out, failures = random.Random(name), folder / "out", []
    expected = undisturbed(writer, out)
    killed = starts = ends = torn = 0
    refuses = False  # an export is complete before its process ends: one that was killed then is not written again
    with forked.Warm(writer.command(out)[0], folder / "warm") as warm:
        usual = timed(writer, warm, out)
        new, last = True, False
        while not last:
            last = killed == count
            if new:
                writer.begin(out)
            before, starts = forked.look(out), starts + 1
            child = warm.start(writer.command(out)[1:], forked.FROZEN)
            if not last and forked.first_write(child, out, before) and not child.wait(draw.uniform(0, usual)):
                child.send(signal.SIGKILL)
            ended = child.end()
            new = ended.status != -signal.SIGKILL
            killed += not new
            if new or last:
                wrong = compare(writer, expected, out, ended, refuses=refuses)
                ends, torn = ends + (ended.status == 0), torn + ("torn" in writers.records(out).values())
                failures += [f"{name}, start {starts}: {wrong}"] if wrong else []
            refuses = not new and name in ("export", "import")
    counted = {"starts": starts, "ends": ends, "compared": len(expected), "torn": torn}
    return Outcome(killed, failures, {"command": name, **counted, "undisturbed_seconds": round(usual, 2)})


FIGURE = Figure(
    what="kill -9 after the first write, 50 of each writing command: the final result is that of an undisturbed run",
    unit="kills",
    wanted=50 * len(writers.WRITERS),
    part=50,
    short=1,
    minutes=90,
    measure=measure,
)
