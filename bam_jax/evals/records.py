"""Reads, checks and merges records of evaluations. All reading of results.jsonl goes through this module."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax import config
from bam_jax.evals import schema
from bam_jax.evals.registry import EVALUATIONS, kind_of
from bam_jax.system import jsonl, typed_json
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Line
from bam_jax.training import run_folder

RESULTS = run_folder.RESULTS
STOPPED = "stopped"
"""The `eval` of a record of skipped lengths, a `schema.StoppedRecord`."""
HASHES = ("data_hash", "essays_hash")
"""Fields that distinguish texts of one name; old records lack them."""

Cell = dict[str, Any]
"""A line of results.jsonl of an evaluation, with its `first`."""


def identity(cell: Mapping[str, Any]) -> str:
    """The key of a cell: all its records have the same."""
    if cell["eval"] not in EVALUATIONS:
        return json.dumps(cell, sort_keys=True)
    names = ("eval", "length", "step", "overrides", *EVALUATIONS[cell["eval"]].identity)
    return json.dumps({name: cell[name] for name in names if name in cell}, sort_keys=True)


def checked(record: Any, where: str, remedy: str) -> dict[str, Any]:
    """The record, if it has the fields of its kind; else UserError."""
    typed_json.check(record, schema.Named, where, remedy)
    if record["eval"] == STOPPED:
        return typed_json.check(record, schema.StoppedRecord, where, remedy)
    kind = kind_of(record["eval"])
    typed_json.check(record, kind.record, where, remedy)
    for name, value in record.get("overrides", {}).items():
        if isinstance(value, str):
            typed_json.check(value, Line, where, remedy, f"overrides.{name}")
    if wrong := kind.mismatch(record):
        raise UserError(f"{where} has {wrong}; {remedy}")
    return record


def read_results(run: Path) -> tuple[list[Cell], list[dict[str, Any]]]:
    """The lines of a run's results.jsonl, as `divide` gives them."""
    path = run / RESULTS
    return divide(
        checked(record, f"{path}, line {number}", "remove that line")
        for number, record in enumerate(jsonl.read(path), start=1)
    )


def divide(lines: Iterable[dict[str, Any]]) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Checked lines as cells and stopped lengths (`schema.StoppedRecord`), each once.

    An old record without a `first` covers the samples after those of earlier records of its cell.
    """
    distinct: dict[str, dict[str, Any]] = {}
    for record in lines:
        if "overrides" in record:  # an unknown evaluation may have none; in old records they are text
            record["overrides"] = config.typed(record["overrides"])
        distinct.setdefault(json.dumps(record, sort_keys=True), record)
    cells, stops, ends = [], [], Counter[str]()
    for record in distinct.values():
        if record["eval"] == STOPPED:
            stops.append(record)
            continue
        key = identity(record)
        cell = {"first": ends[key]} | record
        ends[key] = max(ends[key], cell["first"] + cell["n"])
        cells.append(cell)
    return cells, stops


def cover(cells: Iterable[Cell], wanted: int | None = None) -> list[Cell]:
    """Pick the records of one cell that together cover its samples 0, 1, 2 and so on, each once."""
    ends: dict[int, Cell | None] = {0: None}
    for cell in sorted(cells, key=lambda cell: cell["first"]):
        if cell["first"] in ends:
            ends.setdefault(cell["first"] + cell["n"], cell)
    stop = max(ends)
    if wanted is not None:
        stop = min((end for end in ends if end >= wanted), default=stop)
    found: list[Cell] = []
    while (last := ends[stop]) is not None:
        found, stop = [last, *found], last["first"]
    return found


def without_repeats(cells: Iterable[Cell]) -> list[Cell]:
    """Cells without repeated samples, and without cells of a text that a newer text has replaced."""
    groups: dict[str, list[Cell]] = {}
    newest: dict[str, str] = {}
    for cell in cells:
        key = identity(cell)
        groups.setdefault(key, []).append(cell)
        newest[identity({name: value for name, value in cell.items() if name not in HASHES})] = key
    return [cell for key in newest.values() for cell in cover(groups[key])]


def merge(older: Sequence[Cell], newer: Sequence[Cell]) -> list[Cell]:
    """The cells of a run from two sources; of two cells for the same samples, the newer one."""
    spans = {(identity(cell), cell["first"], cell["n"]) for cell in newer}
    kept = [cell for cell in older if (identity(cell), cell["first"], cell["n"]) not in spans]
    return [*kept, *newer]
