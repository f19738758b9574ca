"""A disk that fills up at each page or file that a command needs: a file system in memory with room for n of them, for each n.

If a command needs more than 30 in all ("places"), 30 are drawn ("tried"), spread evenly over its starting states, such as a run
that is half trained. The command must end in one line with status 2. An existing file must stay, or be what an undisturbed
command makes of it; records may have grown. With more room, the same command must finish with the same result as an undisturbed
one. A sweep may end with status 1, since its runs are separate processes; none of their logs may have a traceback. The disk must
be full before the command ends ("ended full") in at least half of the cases.
"""

import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from endurance import commands, forked, kills, made, writers
from endurance.figures import Outcome, Unavailable

from bam_jax.system import jsonl

WHAT = "a full disk at each page and file that a writing command needs: one line, files intact, the same result with more room"
PAGE = os.sysconf("SC_PAGE_SIZE")
ENOUGH = f"size={2**26},nr_inodes=100000"


@functools.cache
def _half() -> Path:
    """A run that is trained halfway."""
    run = writers.inputs() / "half"
    train = "bam_jax.train --config={given}/long.py --workdir={run} --config.steps=30 --config.checkpoint_every=15 --no-progress"
    made.well(train, given=writers.inputs(), run=run)
    return run


def _padded(disk: Path, number: int) -> None:
    """A record of something else, which leaves less of its page than the new records take: each time other bytes."""
    run = disk / "decoder"
    known = json.loads((run / "tokenizer" / "identity.json").read_text())["hash"]
    record = {"eval": "another", "length": 64, "depth": None, "value": 1.0, "unit": "u", "first": 0, "n": 1, "step": 3}
    record |= {"overrides": {}, "seconds": 0.5, "commit": "abc", "tokenizer": known, "task": ""}
    record["task"] = "x" * (PAGE - 16 - 48 * number - len(jsonl.line(record)))
    (run / "results.jsonl").write_text(jsonl.line(record) + "\n")


def _swept(disk: Path, number: int) -> None:
    """The folder of an experiment whose runs are trained and not evaluated."""
    unmeasured = shutil.ignore_patterns("results.jsonl", "logs")
    shutil.copytree(writers.inputs() / "runs", disk / "runs", ignore=unmeasured)


BEGINNINGS: dict[str, tuple[int, Callable[[Path, int], object]]] = {
    "evaluate": (30, _padded),
    "train": (2, lambda disk, number: shutil.copytree(_half(), disk / "run")),
    "report": (2, lambda disk, number: (disk / "runs" / "report.md").write_text("before\n")),
    "sweep": (2, _swept),
}
"""The beginnings of a command, and what puts all but the first into the folder that it writes."""
NAMES = (*BEGINNINGS, *(name for name in writers.WRITERS if name not in BEGINNINGS))


@contextlib.contextmanager
def mounted(place: Path) -> Iterator[Callable[[str], None]]:
    """A file system in memory at a folder; gives a function that sets its size, as in "size=4096" or "nr_inodes=9"."""
    mount = lambda options, **how: subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], **how)
    first = mount(ENOUGH, capture_output=True, text=True)
    if first.returncode:
        raise Unavailable(
            f"it mounts a small file system, as root or below `unshare --map-root-user --mount`: {first.stderr.strip()}"
        )
    try:
        yield lambda options: mount(f"remount,{options}", check=True)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def used(disk: Path) -> tuple[int, int]:
    """Pages and files that are taken on a file system."""
    about = os.statvfs(disk)
    return about.f_blocks - about.f_bfree, about.f_files - about.f_ffree


def _lost(before: Mapping[str, bytes], whole: Mapping[str, bytes], disk: Path) -> str:
    """A complaint about a file that is neither as it was, nor grown as records do, nor as an undisturbed command leaves it."""
    after = commands.contents(disk)
    for name, was in before.items():
        grown = name.endswith(".jsonl") and name in after and after[name].startswith(was)
        if not grown and after.get(name) not in (was, whole.get(name)):
            return f"{name} is {'another' if name in after else 'gone'}"
    return ""


def _logged(disk: Path) -> str:
    """A complaint about a log of a sweep's run that has a traceback."""
    logs = [path.read_text(errors="replace") for path in sorted(disk.rglob("logs/*.log"))]
    return next((f"a row's traceback: {log.strip()[-300:]}" for log in logs if "Traceback" in log), "")


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Fills the disk of the command of a number at `count` places, or at all of them."""
    name = NAMES[seed]
    writer, disk = writers.WRITERS[name], folder / "disk"
    beginnings, begin = BEGINNINGS.get(name, (1, None))
    module, *argv = writer.command(disk / "out")
    disk.mkdir()
    with mounted(disk) as resize, forked.Warm(module, folder / "warm") as warm:

        def fresh(number: int) -> tuple[int, int]:
            resize(ENOUGH)
            writer.begin(disk / "out")
            if number:
                begin(disk / "out", number)
            return used(disk)

        expected, whole, places = [], [], []
        for number in range(min(beginnings, count)):
            pages, inodes = fresh(number)
            ended = warm.start(argv).end()
            assert ended.status == 0, ended.err
            expected.append(writer.left(disk / "out"))
            whole.append(commands.contents(disk))
            more_pages, more_inodes = used(disk)
            # a size of 0 is no limit
            limits = [f"size={n * PAGE}" for n in range(max(1, pages), max(2, pages + 1, more_pages))]
            if number < 2:  # the others take as many files
                limits += [f"nr_inodes={inodes + n}" for n in range(more_inodes - inodes)]
            places.append([(number, limit) for limit in random.Random(seed).sample(limits, len(limits))])
        turns = itertools.chain.from_iterable(itertools.zip_longest(*places))
        tried = sorted(list(filter(None, turns))[:count])
        full, outcome = 0, Outcome()
        for number, limit in tried:
            fresh(number)
            before = commands.contents(disk)
            resize(limit)
            ended = warm.start(argv, forked.FROZEN).end()
            full += ended.status != 0
            wrong = commands.complaint(ended, (0, 1, 2) if name == "sweep" else (0, 2))
            wrong = wrong or _logged(disk) or _lost(before, whole[number], disk)
            resize(ENOUGH)
            if not wrong:
                again = warm.start(argv, forked.FROZEN).end()
                wrong = commands.complaint(again, (0,)) or kills.compare(writer, expected[number], disk / "out", again)
                wrong = f"with more room: {wrong}" if wrong else _lost(before, whole[number], disk)
            outcome.add(f"{name}, {limit}, beginning {number}", wrong)
    if 2 * full < len(tried):
        outcome.failures.append(f"{name}: the disk was full at {full} of {len(tried)} places only")
    outcome.more = {"command": name, "places": sum(map(len, places)), "tried": len(tried), "ended_full": full}
    return outcome
