"""A disk that is full at each page that a command takes: a file system in memory with room for n pages or files, for each n.

A command that finds no room ends in one line with status 2. What was there before stays, and with more room the same command
goes on to what an undisturbed one leaves. Records grow, a training's configuration is renewed and its checkpoints come and go:
these may be others. A sweep may end with 1, since its runs are processes of their own.
"""

import contextlib
import dataclasses
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
from bam_jax.training import run_folder

PAGE = os.sysconf("SC_PAGE_SIZE")
ROOM = 2**26  # bytes, enough for all
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
        argv: by the folder that is on the small disk, and that of what it reads.
        main: of the command.
        before: puts into the folder what is there before.
        left: what it leaves, as texts by name.
        statuses: with which it ends where there is no room; a sweep ends with 1, and its row's log has the line.
        alone: whether it runs in a process of its own, as what libraries leave behind an error is said by the next one.
    """

    main: commands.Main
    argv: Callable[[Path, Path], list[str]]
    before: Callable[[Path, Path, int], None]
    left: Callable[[Path], Mapping[str, str]]
    statuses: tuple[int, ...] = (0, 2)
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
        return commands.start(self.main.__module__, self.argv(disk, given), env={**os.environ, **settings})


def _begun(disk: Path, given: Path, number: int) -> None:
    """Nothing, or a run with checkpoints of half of its steps."""
    if number % 2:
        shutil.copytree(given / "half", disk / "run")


def _padded(disk: Path, given: Path, number: int) -> None:
    """A run, and a record of something else: the end of its page is in the midst of another record each time."""
    shutil.copytree(given / "decoder", disk / "run", ignore=shutil.ignore_patterns("results.jsonl"))
    known = json.loads((disk / "run" / "tokenizer" / "identity.json").read_text())["hash"]
    common = {"eval": "another", "length": 64, "depth": None, "value": 1.0, "unit": "u", "first": 0, "n": 1, "step": 3}
    record = common | {
        "overrides": {},
        "seconds": 0.5,
        "commit": "abc",
        "tokenizer": known,
        "task": "x" * (PAGE - 240 - 40 * number),
    }
    (disk / "run" / "results.jsonl").write_text(jsonl.line(record) + "\n")


def _reported(disk: Path, given: Path, number: int) -> None:
    """The folder of an experiment, and of every second one the report of before."""
    shutil.copytree(given / "runs", disk / "runs")
    if number % 2:
        (disk / "runs" / "report.md").write_text("before\n")


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
        lambda disk: {name: line for name, line in kills.records(disk, "").items() if "another" not in line},
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
        lambda disk: {name: "" for name in commands.snapshot(disk) if not name.startswith(".")},
    ),
    "sweep": Case(
        sweep.main,
        lambda disk, given: [str(given / "one.py"), f"--runs={disk / 'runs'}", "--jobs=1"],
        lambda disk, given, number: None,
        lambda disk: kills.records(disk, ""),
        (0, 1, 2),
        alone=True,
    ),
}


@contextlib.contextmanager
def mounted(place: Path) -> Iterator[Callable[[str], None]]:
    """A file system in memory at a folder; gives a function that sets its size, as in "size=4096" or "nr_inodes=9"."""

    def mount(options: str) -> None:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", str(place)], capture_output=True, text=True
        )
        if made.returncode:
            raise Unavailable(
                f"it mounts a small file system, as root or below `unshare --map-root-user --mount`: {made.stderr.strip()}"
            )

    mount(f"size={ROOM}")
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


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
    if name == "report":
        made.well(sweep.main, [str(folder / "one.py"), f"--runs={folder / 'runs'}", "--jobs=1"])


def used(disk: Path) -> tuple[int, int]:
    """Pages and files that are taken on a file system."""
    about = os.statvfs(disk)
    return about.f_blocks - about.f_bfree, about.f_files - about.f_ffree


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Fills the disk of a command at so many places, or at all of them; see `figures.Figure`.

    Args:
        seed: the number of the command.
    """
    name = list(CASES)[seed]
    case, given, disk, failures = CASES[name], folder / "given", folder / "disk", []
    given.mkdir()
    disk.mkdir()
    with mounted(disk) as resize:
        _inputs(given, name)

        def fresh(number: int) -> tuple[int, int]:
            resize(f"size={ROOM},nr_inodes=100000")
            for path in disk.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            case.before(disk, given, number)
            return used(disk)

        expected, limits = {}, []
        for number in (0, 1):
            pages, inodes = fresh(number)
            first = case.run(disk, given, folder / "compiled")
            assert first.status == 0, first.err
            expected[number] = case.left(disk)
            more_pages, more_inodes = used(disk)
            limits += [(number, f"size={(pages + n) * PAGE}") for n in range(max(1, more_pages - pages))]
            limits += [(number, f"nr_inodes={inodes + n}") for n in range(more_inodes - inodes)]
        places = len(limits)
        if name == "evaluate":
            limits = [(number, "here") for number in range(28)]
        if count < len(limits):
            limits = sorted(random.Random(seed).sample(limits, count))
        full = 0
        for number, limit in limits:
            pages, _ = fresh(number)
            before = commands.snapshot(disk)
            resize(f"size={pages * PAGE}" if limit == "here" else limit)
            ended = case.run(disk, given, folder / "compiled")
            wrong = commands.complaint(ended, case.statuses)
            full += ended.status != 0
            changed = [path for path, bits in before.items() if commands.snapshot(disk).get(path) != bits]
            changed = [
                path for path in changed if not path.endswith((".jsonl", "config.json")) and "checkpoints/" not in path
            ]
            resize(f"size={ROOM},nr_inodes=100000")
            if not wrong and ended.status and changed and name != "sweep":
                wrong = f"{changed[0]} is another"
            if not wrong and name == "train" and number and run_folder.latest_step(disk / "run") < 2:
                wrong = "the last good checkpoint is gone"
            again = case.run(disk, given, folder / "compiled")
            if not wrong and again.status != 0:
                wrong = f"with more room it ends with {again.status}: {again.err[-300:]}"
            if not wrong:
                found = case.left(disk)
                first = expected[number % 2]
                differing = [key for key in first.keys() | found.keys() if first.get(key) != found.get(key)]
                if differing and not (name == "evaluate" and set(found.values()) == set(first.values())):
                    wrong = f"it leaves something else: {sorted(differing)[0]}"
            if wrong:
                failures.append(f"{name}, {limit}, {number}: {wrong}")
    return Outcome(len(limits), failures, {"command": name, "places": places, "ended_full": full})


FIGURE = Figure(
    what="a full disk, at the pages and files that train, evaluate, report and sweep take: one line, what was there stays, "
    "with room the same command goes on to the same",
    unit="places",
    wanted=118,  # of evaluate there are 28
    part=30,
    short=2,
    minutes=40,
    measure=measure,
)
