"""The figures of a paper's tables: curves over lengths, heat maps of passkeys and of RULER."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bam_jax import render
from bam_jax.experiments import results, tables
from bam_jax.experiments.experiment import Column, Table
from bam_jax.experiments.tables import Entry
from bam_jax.render.curves import Seed
from bam_jax.render.fractions import Grid
from bam_jax.render.style import Figure
from bam_jax.report.standing import Standing

type Cells = Mapping[tuple[str, str], float]
"""Fractions by the names of their row and column."""


def curves(table: Table, entries: tuple[Entry, ...], context: int) -> Figure | None:
    """A table over lengths or positions as curves; None where its columns are something else or nothing is measured.

    Args:
        table: of an experiment.
        entries: its cells.
        context: tokens seen in training.
    """
    kinds = {(c.evaluation.curve, c.position > 0, c.depth) for c in table.columns if c.evaluation}
    places = [_place(column) for column in table.columns if column.evaluation]
    if len(kinds) != 1 or len({*places}) < max(2, len(table.columns)):
        return None
    curve, by_position, depth = kinds.pop()
    found: dict[str, list[Seed]] = {}
    for start, label in zip(range(0, len(entries), len(places)), table.values, strict=True):
        seeds: dict[int, dict[int, float]] = defaultdict(dict)
        for place, entry in zip(places, entries[start:], strict=False):
            for number, value in enumerate(entry.ours):
                seeds[number][place] = value
        if seeds:
            found[label] = [Seed(number, values) for number, values in sorted(seeds.items())]
    if not found or depth is not None or not curve:
        return None
    draw = {"accuracy": render.passkey, "perplexity": render.positions if by_position else render.perplexity}
    return draw[curve](found, context)


def passkeys(each: Standing, folder: Path) -> dict[str, Grid]:
    """Passkey accuracy by depth and length, mean over prompts and seeds, of every row that has any.

    Args:
        each: the experiment.
        folder: of the runs.

    Raises:
        UserError: results that cannot be read.
    """
    found: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    rows: set[str] = set()
    columns: dict[str, None] = {}
    read = tables.reader(folder)
    for table in each.made.tables:
        for column in table.columns:
            if column.evaluation is None or column.evaluation.figure != "depth":
                continue
            columns[column.label] = None
            for label in table.values:
                cells: dict[str, list[results.Cell]] = defaultdict(list)
                for job in each.planned:
                    if job.row.label == table.row(label):
                        for (depth, _), part in tables.parts(column.evaluation, job, read(job)).items():
                            if part.cells:
                                cells[f"{depth:.2f}"] += part.cells
                rows |= {*cells}
                for name, those in cells.items():
                    found[table.row(label)][name, column.label] = results.mean(those)
    return {label: grid(cells, sorted(rows), list(columns)) for label, cells in found.items()}


def ruler(each: Standing) -> dict[str, Grid]:
    """RULER's accuracy by task and length, mean over samples and seeds, of every row that has any.

    Args:
        each: the experiment.
    """
    found: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    rows: dict[str, None] = {}
    columns: dict[str, None] = {}
    for table, entries in zip(each.made.tables, each.entries, strict=True):
        for column, entry in zip(table.columns * len(table.values), entries, strict=True):
            if column.evaluation is None or column.evaluation.figure != "task":
                continue
            task = plain(column.evaluation.places()[0][1])
            rows[task] = columns[column.label] = None
            if entry.mean is not None:
                found[table.row(entry.row)][task, column.label] = entry.mean
    return {label: grid(cells, list(rows), list(columns)) for label, cells in found.items()}


def grid(cells: Cells, rows: list[str], columns: list[str]) -> Grid:
    """Cells in the order of their rows and columns; NaN where there is none."""
    values = [[cells[row, column] if (row, column) in cells else np.nan for column in columns] for row in rows]
    return Grid(rows, columns, np.array(values))


def plain(task: str) -> str:
    """A task of RULER without what all of them begin with.

    >>> plain("niah_single_1")
    'single 1'
    """
    return task.removeprefix("niah_").replace("_", " ")


def _place(column: Column) -> int:
    assert column.evaluation is not None
    return column.position or column.evaluation.lengths[0]
