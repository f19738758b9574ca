"""Figures of reliability: each counts the cases of one kind of fault, in parts, of which every one leaves a record.

A figure is stopped at any moment and goes on with the part that it was at. Its records are lines of docs/reliability/NAME.jsonl,
each with its seed, commit, machine and seconds; docs/reliability.md is made from them and from nothing else.
"""

import dataclasses
import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.system import git, jsonl
from bam_jax.system.machine import machine

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "reliability"
NAMES = (
    "configurations",
    "malformed_files",
    "malformed_runs",
    "flipped",
    "full_disk",
    "bombs",
    "out_of_memory",
    "memory",
    "strangers",
    "hostile",
    "kills",
    "interruptions",
    "op",
)
"""The figures, each of the module of its name."""


class Unavailable(Exception):
    """This machine cannot measure a figure; the message says why."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A measured part of a figure.

    Args:
        count: cases.
        failures: a line for each case that did not end as it should.
        more: other numbers of the record, by name.
    """

    count: int
    failures: list[str]
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A kind of fault, and how often it is tried.

    Args:
        what: the row of the page.
        unit: what is counted.
        wanted: cases in all.
        part: cases of a record.
        short: cases of the short form, which tests/endurance/test_short.py has.
        minutes: all of it takes, about, on a core.
        measure: takes a seed, a number of cases and an empty folder; cases of the same seed are the same.
    """

    what: str
    unit: str
    wanted: int
    part: int
    short: int
    minutes: float
    measure: Callable[[int, int, Path], Outcome]

    @property
    def parts(self) -> int:
        """The records of all cases."""
        return -(-self.wanted // self.part)


def find(name: str) -> Figure:
    """The figure of a name."""
    return importlib.import_module(f"endurance.{name}").FIGURE


def short(figure: Figure, folder: Path) -> Outcome:
    """The short form; it leaves no record.

    Args:
        figure: which.
        folder: an empty one to work in.
    """
    return figure.measure(0, figure.short, folder)


def measure(
    name: str,
    figure: Figure,
    say: Callable[[str], None],
    records: Path = RECORDS,
    parts: Sequence[int] | None = None,
) -> int:
    """Measures what a figure's records lack; the failures of it.

    Args:
        name: of the figure and of its file.
        figure: what to measure.
        say: takes a line for the person who waits.
        records: the folder of the records.
        parts: only these, where other processes measure the others.

    Raises:
        Unavailable: see `Figure.measure`, or the code was changed during a part, which then leaves no record.
    """
    records.mkdir(parents=True, exist_ok=True)
    path, failed = records / f"{name}.jsonl", 0
    known = {record["seed"] for record in jsonl.read(path)}
    for seed in range(figure.parts):
        if seed in known or (parts is not None and seed not in parts):
            continue
        start, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix=f"{name}-"))
        before = git.describe()
        try:
            count = min(figure.part, figure.wanted - seed * figure.part)
            outcome = figure.measure(seed, count, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        record = {
            "figure": name,
            "seed": seed,
            "count": outcome.count,
            "failures": len(outcome.failures),
            "examples": outcome.failures[:5],
            **outcome.more,
            "seconds": round(time.monotonic() - start, 1),
            **circumstances(),
        }
        if record["commit"] != before:
            raise Unavailable(f"the code was changed from {before} to {record['commit']}; measure a clone of it")
        jsonl.append(path, record)
        say(f"{name}: part {seed + 1} of {figure.parts}, {outcome.count} {figure.unit}, {len(outcome.failures)} failed")
        for failure in outcome.failures[:5]:
            say(f"{name}:   {failure}")
        failed += len(outcome.failures)
    return failed


def circumstances() -> dict[str, Any]:
    """The commit and the machine of a record."""
    known = machine()
    return {"commit": git.describe(), "machine": f"{known['processor']}, {known['cores']} cores", "load": _load()}


def _load() -> float:
    """Processes that ran or waited in the last minute: other work on the machine tells in the seconds."""
    return round(os.getloadavg()[0], 1)
