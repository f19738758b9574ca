"""The figures of a paper's tables: curves over lengths, heat maps of passkeys and of RULER."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bam_jax import render
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.records import Cell
from bam_jax.experiments import jobs, results, tables
from bam_jax.experiments.entries import Entry
from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.render.curves import Curve
from bam_jax.render.maps import Grid
from bam_jax.render.style import Figure
from bam_jax.report import beside_question
from bam_jax.report.cell_words import describe_ends
from bam_jax.report.progress import Progress


def draw_curves(made: Experiment, table: Table, entries: Sequence[Entry]) -> Figure | None:
    """A table over lengths or positions as curves; None where its columns are something else or nothing is measured."""
    columns = [(column, column.evaluation) for column in table.columns if column.evaluation]
    kinds = {(evaluation.curve, column.position > 0, column.depth) for column, evaluation in columns}
    places = {_place(column) for column, _ in columns}
    # Curves need columns of one kind, each at a place of its own, and two of them at least.
    if len(kinds) != 1 or len(places) < max(2, len(table.columns)):
        return None
    curve, by_position, depth = kinds.pop()
    if depth is not None or not curve:
        return None
    planned = jobs.row_jobs(made)
    context, encodings = planned[0].config.context, {job.row.label: job.config.encoding for job in planned}
    found = {row: _curve([e for e in entries if e.row == row], encodings[table.row(row)]) for row in table.values}
    curves = {row: drawn for row, drawn in found.items() if drawn.seeds}
    if not curves:
        return None
    if curve == "accuracy":
        floor = {
            _place(each): beside_question.share(keys.depths) for each, keys in columns if isinstance(keys, Passkey)
        }
        return render.passkey(curves, context, floor)
    return render.positions(curves, context) if by_position else render.perplexity(curves, context)


def _curve(entries: Sequence[Entry], encoding: str) -> Curve:
    """The curve of a row; a place where no seed is measured has no point."""
    seeds: dict[int, dict[int, float]] = defaultdict(dict)
    intervals = {}
    for entry in entries:
        if entry.ours:
            for seed, value in entry.by_seed.items():
                seeds[seed][_place(entry.column)] = value
            if entry.interval is not None:
                intervals[_place(entry.column)] = entry.interval
    return Curve(dict(sorted(seeds.items())), intervals, encoding)


def _place(column: Column) -> int:
    assert column.evaluation is not None
    return column.position or column.evaluation.lengths[0]


def passkey_grids(progress: Progress, folder: Path) -> dict[int, dict[str, Grid]]:
    """Passkey accuracy by depth and length, mean over prompts and seeds, of every row that has any.

    Lengths with different depths have no map in common; there is one for each number of depths.
    """
    read = tables.results_reader(folder, progress.made.records)
    columns: dict[int, list[str]] = defaultdict(list)
    cells: dict[int, dict[str, dict[tuple[str, str], list[Cell]]]] = defaultdict(dict)
    for table in progress.made.tables:
        for column in table.columns:
            if column.evaluation is None or column.evaluation.figure != "depth":
                continue
            depths = len(column.evaluation.places())
            columns[depths].append(column.label)
            for row in map(table.row, table.values):
                for job in progress.planned:
                    if job.row.label == row:
                        for (depth, _), part in tables.parts_of(column.evaluation, job, read(job)).items():
                            found = cells[depths].setdefault(row, defaultdict(list))
                            found[f"{depth:.2f}", column.label] += part.cells
    grids: dict[int, dict[str, Grid]] = {}
    for count, rows in sorted(cells.items(), reverse=True):
        means = {
            row: {at: results.mean(several) for at, several in found.items() if several} for row, found in rows.items()
        }
        names = sorted({depth for each in means.values() for depth, _ in each})
        made = {row: make_grid(each, names, list(dict.fromkeys(columns[count]))) for row, each in means.items() if each}
        grids |= {count: made} if made else {}
    return grids


def ruler_grids(progress: Progress) -> dict[str, Grid]:
    """RULER's accuracy by task and length, mean over samples and seeds, of every row that has any."""
    means: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    tasks: dict[str, None] = {}  # in their order, once each
    lengths: dict[str, None] = {}
    for table, entries in zip(progress.made.tables, progress.entries, strict=True):
        for entry in entries:
            column = entry.column
            if column.evaluation is None or column.evaluation.figure != "task":
                continue
            task = short_task(column.evaluation.places()[0][1])
            tasks[task] = lengths[column.label] = None
            if entry.mean is not None:
                means[table.row(entry.row)][task, column.label] = entry.mean
    return {label: make_grid(cells, [*tasks], [*lengths]) for label, cells in means.items()}


def make_grid(cells: Mapping[tuple[str, str], float], rows: list[str], columns: list[str]) -> Grid:
    """Fractions by the names of their row and column as a grid; NaN where there is none."""
    return Grid(rows, columns, np.array([[cells.get((row, column), np.nan) for column in columns] for row in rows]))


def describe_grids(panels: Mapping[str, Grid], down: str) -> str:
    """The mean over the rows of each panel in words, in its last column that has any.

    >>> describe_grids({"BAM": Grid(["a", "b"], ["64", "128"], np.array([[1.0, 0.0], [1.0, 1.0]]))}, "task")
    'mean over every task, at 128 BAM 0.50.'
    """
    ends = {}
    for label, grid in panels.items():
        last = np.flatnonzero(~np.isnan(grid.values).all(0))[-1]
        ends[label] = (grid.columns[last], f"{np.nanmean(grid.values[:, last]):.2f}")
    return f"mean over every {down}, {describe_ends(ends)}."


def short_task(task: str) -> str:
    """A task of RULER without the prefix that all of them have.

    >>> short_task("niah_single_1")
    'single 1'
    """
    return task.removeprefix("niah_").replace("_", " ")
