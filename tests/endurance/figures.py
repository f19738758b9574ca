"""Figures of reliability: each counts the cases of one kind of fault, in parts of which each writes a record.

A figure that was stopped resumes at the part it was in. Its records are lines of docs/reliability/NAME.jsonl, from which page.py
generates the tables of docs/reliability.md.
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
"""The figures, each in the module of its name."""


class Unavailable(Exception):
    """This machine cannot measure a figure; the message says why."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A measured part: its cases, a line for each failure, and other fields of its record."""

    count: int
    failures: list[str]
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A kind of fault, and how often it is tried.

    Args:
        what: its description in the table.
        unit: what is counted.
        wanted: cases in all.
        part: cases of a record.
        short: cases of the short form.
        minutes: about what all of it takes.
        measure: takes a seed, a number of cases and an empty folder; the same seed gives the same cases.
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
        return -(-self.wanted // self.part)


def find(name: str) -> Figure:
    return importlib.import_module(f"endurance.{name}").FIGURE


def measure(
    name: str,
    figure: Figure,
    log: Callable[[str], None],
    records: Path = RECORDS,
    parts: Sequence[int] | None = None,
) -> int:
    """Measures the parts that have no record yet, or those of them that are named; returns the number of failures."""
    records.mkdir(parents=True, exist_ok=True)
    path, failed = records / f"{name}.jsonl", 0
    known = {record["seed"] for record in jsonl.read(path)}
    for seed in range(figure.parts):
        if seed in known or (parts is not None and seed not in parts):
            continue
        start, commit, folder = time.monotonic(), git.describe(), Path(tempfile.mkdtemp(prefix=f"{name}-"))
        try:
            outcome = figure.measure(seed, min(figure.part, figure.wanted - seed * figure.part), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if git.describe() != commit:
            raise Unavailable(f"the code was changed from {commit} to {git.describe()}; measure a clone of it")
        host, failures = machine(), outcome.failures
        record = {
            "figure": name,
            "seed": seed,
            "count": outcome.count,
            "failures": len(failures),
            "examples": failures[:5],
            **outcome.more,
            "seconds": round(time.monotonic() - start, 1),
            "commit": commit,
            "machine": f"{host['processor']}, {host['cores']} cores",
            "load": round(os.getloadavg()[0], 1),  # other work on the machine shows in the seconds
        }
        jsonl.append(path, record)
        log(f"{name}: part {seed + 1} of {figure.parts}, {outcome.count} {figure.unit}, {len(failures)} failed")
        for failure in failures[:5]:
            log(f"{name}:   {failure}")
        failed += len(failures)
    return failed
