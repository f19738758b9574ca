"""A disk that is full at each page or file that a command takes: a file system in memory with room for n of them, for each n.

Of a command that takes more than 30 of them in all ("places"), 30 are drawn ("tried"): as many of each beginning, while it has
some. A command that finds no room ends in one line with status 2. A file that was there before stays, or is what an undisturbed
command makes of it; records may have grown. A process ends within four minutes. With more room the same command goes on to what
an undisturbed one leaves. A sweep may end with 1, since its runs are processes of their own; none of their logs has a
traceback. At most of the places the disk is full before the command ends ("ended full").
"""

import contextlib
import dataclasses
import itertools
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from endurance import commands, flipped, kills, made
from endurance.figures import Figure, Outcome, Unavailable

from bam_jax import evaluate, sweep, train
from bam_jax.report import __main__ as report
from bam_jax.system import jsonl
from bam_jax.system.errors import UserError

SOON = 240
"""Seconds in which a process of a few steps ends, whatever its disk; a loaded machine takes a minute."""
PAGE = os.sysconf("SC_PAGE_SIZE")
ENOUGH = f"size={2**26},nr_inodes=100000"
EXPERIMENT = """
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Experiment, Row


def get_experiment():
    return Experiment("One", (Row("BAM", {config!r}, {{}}, (0,), (Perplexity((16,), tokens=64),)),))
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A command that writes.

    Args:
        main: of the command.
        argv: by the folder that is on the small disk, and that of what it reads.
        before: puts into the folder what is there before, by the number of a beginning.
        left: what it leaves, as texts by name.
        statuses: with which it ends where there is no room; a sweep ends with 1, and its row's log has the line.
        beginnings: the number of those that are tried.
        alone: whether it runs in a process of its own, as what libraries leave behind an error is said by the next one.
    """

    main: commands.Main
    argv: Callable[[Path, Path], list[str]]
    before: Callable[[Path, Path, int], None]
    left: Callable[[Path], Mapping[str, str]]
    statuses: tuple[int, ...] = (0, 2)
    beginnings: int = 2
    alone: bool = False

    def run(self, disk: Path, given: Path, cache: Path) -> commands.Ended:
        """Runs it, in this process or in one of its own.

        Args:
            disk, given: see `argv`.
            cache: of compiled programs.
        """
        if not self.alone:
            return commands.call(self.main, self.argv(disk, given))
        settings = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        return commands.start(
            self.main.__module__, self.argv(disk, given), env={**os.environ, **settings}, timeout=SOON
        )


def _begun(disk: Path, given: Path, number: int) -> None:
    """Nothing, or a run with checkpoints of half of its steps."""
    if number % 2:
        shutil.copytree(given / "half", disk / "run")


def _padded(disk: Path, given: Path, number: int) -> None:
    """A run, and a record of something else that leaves less of its page than the new records take: each time other bytes."""
    shutil.copytree(given / "decoder", disk / "run", ignore=shutil.ignore_patterns("results.jsonl"))
    known = json.loads((disk / "run" / "tokenizer" / "identity.json").read_text())["hash"]
    record = {"eval": "another", "length": 64, "depth": None, "value": 1.0, "unit": "u", "first": 0, "n": 1, "step": 3}
    record |= {"overrides": {}, "seconds": 0.5, "commit": "abc", "tokenizer": known, "task": ""}
    left = 16 + 48 * number
    record["task"] = "x" * (PAGE - left - len(jsonl.line(record)))
    (disk / "run" / "results.jsonl").write_text(jsonl.line(record) + "\n")


def _reported(disk: Path, given: Path, number: int) -> None:
    """The folder of an experiment, and of every second one the report of before."""
    shutil.copytree(given / "runs", disk / "runs")
    if number % 2:
        (disk / "runs" / "report.md").write_text("before\n")


def _swept(disk: Path, given: Path, number: int) -> None:
    """Nothing, or the folder of an experiment whose run is trained and not evaluated."""
    if number % 2:
        shutil.copytree(given / "runs", disk / "runs", ignore=shutil.ignore_patterns("results.jsonl", "logs"))


def _state(disk: Path) -> dict[str, str]:
    """The records of a run, and the arrays of its model."""
    return {**kills.records(disk / "run", ""), "model": flipped.model(disk / "run")}


LENGTHS = "4,8,12,16"
CASES = {
    "evaluate": Case(
        evaluate.main,
        lambda disk, given: [
            *(f"--run={disk / 'run'}", "--eval=perplexity", f"--lengths={LENGTHS}", "--tokens=64", "--no-progress"),
        ],
        _padded,
        lambda disk: kills.records(disk, ""),
        beginnings=30,
    ),
    "train": Case(
        train.main,
        lambda disk, given: [f"--config={given / 'small.py'}", f"--workdir={disk / 'run'}", "--no-progress"],
        _begun,
        _state,
        alone=True,
    ),
    "report": Case(
        report.main,
        lambda disk, given: [str(disk / "runs")],
        _reported,
        commands.snapshot,
    ),
    "sweep": Case(
        sweep.main,
        lambda disk, given: [str(given / "one.py"), f"--runs={disk / 'runs'}", "--jobs=1"],
        _swept,
        lambda disk: kills.records(disk, ""),
        (0, 1, 2),
        alone=True,
    ),
}


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


def _inputs(folder: Path, name: str) -> None:
    """A command's inputs, and the files that were there before."""
    option = made.configuration(folder, steps=4, checkpoint_every=2)
    if name == "train":
        half = made.configuration(folder, steps=2)
        made.well(train.main, [half, f"--workdir={folder / 'half'}", "--no-progress"])
        shutil.rmtree(folder / "half" / "checkpoints" / "1", ignore_errors=True)
        option = made.configuration(folder, steps=4)
    if name == "evaluate":
        made.well(train.main, [option, f"--workdir={folder / 'decoder'}", "--no-progress"])
    (folder / "one.py").write_text(EXPERIMENT.format(config=option.partition("=")[2]))
    if name in ("report", "sweep"):
        made.well(sweep.main, [str(folder / "one.py"), f"--runs={folder / 'runs'}", "--jobs=1"])


def used(disk: Path) -> tuple[int, int]:
    """Pages and files that are taken on a file system."""
    about = os.statvfs(disk)
    return about.f_blocks - about.f_bfree, about.f_files - about.f_ffree


def _lost(before: Mapping[str, bytes], whole: Mapping[str, bytes], disk: Path) -> str:
    """A complaint about a file that is neither as it was, nor grown as records do, nor as an undisturbed command leaves it."""
    after = made.contents(disk)
    for name, was in before.items():
        grown = name.endswith(".jsonl") and name in after and after[name].startswith(was)
        if not grown and after.get(name) not in (was, whole.get(name)):
            return f"{name} is {'another' if name in after else 'gone'}"
    return ""


def _logged(disk: Path) -> str:
    """A complaint about a log of a sweep's run that has a traceback."""
    logs = [path.read_text(errors="replace") for path in sorted(disk.rglob("logs/*.log"))]
    return next((f"a row's traceback: {log.strip()[-300:]}" for log in logs if "Traceback" in log), "")


def _unlike(ended: commands.Ended, case: Case, disk: Path, expected: Mapping[str, str]) -> str:
    """A complaint about a command that has room and does not leave what an undisturbed one does."""
    wrong = commands.complaint(ended, (0,))
    if wrong:
        return f"with more room: {wrong}"
    try:
        found = case.left(disk)
    except UserError as error:
        return f"what it leaves cannot be read: {error}"
    return kills.difference(expected, found)


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Fills the disk of a command at so many places, or at all of them; see `figures.Figure`.

    Args:
        seed: the number of the command.
    """
    name = list(CASES)[seed]
    case, given, disk, compiled = CASES[name], folder / "given", folder / "disk", folder / "compiled"
    given.mkdir()
    disk.mkdir()
    with mounted(disk) as resize:
        _inputs(given, name)

        def fresh(number: int) -> tuple[int, int]:
            resize(ENOUGH)
            for path in disk.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            case.before(disk, given, number)
            return used(disk)

        expected, whole, places = [], [], []
        for number in range(min(case.beginnings, count)):
            pages, inodes = fresh(number)
            undisturbed = case.run(disk, given, compiled)
            assert undisturbed.status == 0, undisturbed.err
            expected.append(case.left(disk))
            whole.append(made.contents(disk))
            more_pages, more_inodes = used(disk)
            limits = [f"size={(pages + n) * PAGE}" for n in range(max(1, more_pages - pages))]
            if number < 2:  # the others take as many files
                limits += [f"nr_inodes={inodes + n}" for n in range(more_inodes - inodes)]
            places.append([(number, limit) for limit in random.Random(seed).sample(limits, len(limits))])
        turns = itertools.chain.from_iterable(itertools.zip_longest(*places))
        tried = sorted(list(filter(None, turns))[:count])
        full, failures = 0, []
        for number, limit in tried:
            fresh(number)
            before = made.contents(disk)
            resize(limit)
            ended = case.run(disk, given, compiled)
            full += ended.status != 0
            wrong = commands.complaint(ended, case.statuses) or _logged(disk) or _lost(before, whole[number], disk)
            resize(ENOUGH)
            if not wrong:
                again = case.run(disk, given, compiled)
                wrong = _unlike(again, case, disk, expected[number]) or _lost(before, whole[number], disk)
            if wrong:
                failures.append(f"{name}, {limit}, beginning {number}: {wrong}")
    if 2 * full <= len(tried):
        failures.append(f"{name}: the disk was full at {full} of {len(tried)} places only")
    more = {"command": name, "places": sum(map(len, places)), "tried": len(tried), "ended_full": full}
    return Outcome(len(tried), failures, more)


FIGURE = Figure(
    what="a full disk, at the pages and files that train, evaluate, report and sweep take: one line, what was there stays, "
    "with room the same command goes on to the same",
    unit="places",
    wanted=30 * len(CASES),
    part=30,
    short=2,
    minutes=60,
    measure=measure,
)
