"""The figures of a paper's tables: curves over lengths, heat maps of passkeys and of RULER."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bam_jax import render
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.records import Cell
from bam_jax.experiments import jobs, results, tables
from bam_jax.experiments.entries import Entry
from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.render.curves import Curve, Seed
from bam_jax.render.fractions import Grid
from bam_jax.render.style import Figure
from bam_jax.report import beside_question
from bam_jax.report.cell_words import describe_ends
from bam_jax.report.progress import Progress

type Cells = Mapping[tuple[str, str], float]
"""Fractions by the names of their row and column."""


def draw_curves(made: Experiment, table: Table, entries: Sequence[Entry]) -> Figure | None:
    """A table over lengths or positions as curves; None where its columns are something else or nothing is measured.

    Args:
        made: the experiment.
        table: of it.
        entries: the table's cells.
    """
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
    context = planned[0].config.context
    encodings = {job.row.label: job.config.encoding for job in planned}
    curves = {}
    for row in table.values:
        drawn = _curve([entry for entry in entries if entry.row == row], encodings[table.row(row)])
        if drawn.seeds:
            curves[row] = drawn
    if not curves:
        return None
    if curve == "accuracy":
        beside = {
            _place(column): beside_question.share(asked.depths)
            for column, asked in columns
            if isinstance(asked, Passkey)
        }
        return render.passkey(curves, context, beside)
    return render.positions(curves, context) if by_position else render.perplexity(curves, context)


def _curve(entries: Sequence[Entry], encoding: str) -> Curve:
    """The curve of a row; a place where no seed is measured has no point.

    Args:
        entries: the row's cells.
        encoding: of the row's model.
    """
    seeds: dict[int, dict[int, float]] = defaultdict(dict)
    intervals = {}
    for entry in entries:
        if entry.ours:
            place = _place(entry.column)
            for seed, value in entry.by_seed.items():
                seeds[seed][place] = value
            if entry.interval is not None:
                intervals[place] = entry.interval
    return Curve([Seed(seed, values) for seed, values in sorted(seeds.items())], intervals, encoding)


def passkey_grids(progress: Progress, folder: Path) -> dict[int, dict[str, Grid]]:
    """Passkey accuracy by depth and length, mean over prompts and seeds, of every row that has any.

    Lengths with different depths have no map in common; there is one for each number of depths.

    Args:
        progress: of the experiment.
        folder: of the runs.

    Raises:
        UserError: results that cannot be read.
    """
    columns = defaultdict(list)
    for table in progress.made.tables:
        for column in table.columns:
            if column.evaluation is not None and column.evaluation.figure == "depth":
                columns[len(column.evaluation.places())].append((table, column))
    read = tables.results_reader(folder, progress.made.records)
    found = {}
    for count, alike in sorted(columns.items(), reverse=True):
        means: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
        for table, column in alike:
            for row in map(table.row, table.values):
                cells: dict[str, list[Cell]] = defaultdict(list)
                for depth, cell in _by_depth(progress, row, column, read):
                    cells[depth].append(cell)
                for depth, several in cells.items():
                    means[row][depth, column.label] = results.mean(several)
        depths = sorted({depth for each in means.values() for depth, _ in each})
        lengths = list(dict.fromkeys(column.label for _, column in alike))
        if means:
            found[count] = {row: make_grid(each, depths, lengths) for row, each in means.items()}
    return found


def _by_depth(progress: Progress, row: str, column: Column, read: tables.Reader) -> Iterator[tuple[str, Cell]]:
    """The cells that a row has of a column of passkeys, in all seeds, each with its depth."""
    assert column.evaluation is not None
    for job in progress.planned:
        if job.row.label == row:
            for (depth, _), part in tables.parts_of(column.evaluation, job, read(job)).items():
                for cell in part.cells:
                    yield f"{depth:.2f}", cell


def ruler_grids(progress: Progress) -> dict[str, Grid]:
    """RULER's accuracy by task and length, mean over samples and seeds, of every row that has any.

    Args:
        progress: of the experiment.
    """
    means: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    tasks: dict[str, None] = {}
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
    return {label: make_grid(cells, list(tasks), list(lengths)) for label, cells in means.items()}


def make_grid(cells: Cells, rows: list[str], columns: list[str]) -> Grid:
    """Cells in the order of their rows and columns; NaN where there is none."""
    values = [[cells[row, column] if (row, column) in cells else np.nan for column in columns] for row in rows]
    return Grid(rows, columns, np.array(values))


def describe_grids(panels: Mapping[str, Grid], down: str) -> str:
    """The mean over the rows of each panel in words, in its last column that has any.

    >>> describe_grids({"BAM": Grid(["a", "b"], ["64", "128"], np.array([[1.0, 0.0], [1.0, 1.0]]))}, "task")
    'mean over every task, at 128 BAM 0.50.'

    Args:
        panels: by the model's label.
        down: what a row is.
    """
    ends = {}
    for label, grid in panels.items():
        last = np.flatnonzero(~np.isnan(grid.values).all(0))[-1]
        ends[label] = (grid.columns[last], f"{np.nanmean(grid.values[:, last]):.2f}")
    return f"mean over every {down}, {describe_ends(ends)}."


def short_task(task: str) -> str:
    """A task of RULER without what all of them begin with.

    >>> short_task("niah_single_1")
    'single 1'
    """
    return task.removeprefix("niah_").replace("_", " ")


def _place(column: Column) -> int:
    assert column.evaluation is not None
    return column.position or column.evaluation.lengths[0]
