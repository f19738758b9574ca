"""Curves and heat maps of all pages, from runs and from the papers' tables."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bam_jax import render
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.records import Cell
from bam_jax.evals.registry import kind_of
from bam_jax.experiments import jobs, results, statistics
from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.results import Run
from bam_jax.experiments.statistics import Kind
from bam_jax.experiments.tables import Entry
from bam_jax.render.curves import Curve, Curves
from bam_jax.render.maps import Grid
from bam_jax.render.style import Figure
from bam_jax.report.format import describe_ends


def length_curves(runs: Iterable[Run], evaluation: str) -> Curves:
    """The mean over an evaluation's cells at each length; cells with the same label and seed are averaged together."""
    kind, curves = Kind[kind_of(evaluation).curve.upper()], {}
    for (label, encoding), seeds in _by_label(runs, lambda cell: cell["eval"] == evaluation).items():
        values, prompts = {}, Counter[int]()
        for seed, cells in seeds.items():
            lengths = defaultdict(list)
            for cell in cells:
                lengths[cell["length"]].append(cell)
                prompts[cell["length"]] += cell["n"]
            values[seed] = {length: results.mean(lengths[length]) for length in sorted(lengths)}
        curves[label] = make_curve(kind, values, prompts, encoding)
    return curves


def position_curves(runs: Iterable[Run]) -> Curves:
    """The perplexity of each window of positions at the largest length, by label and seed."""
    curves = {}
    for (label, encoding), seeds in _by_label(runs, lambda cell: kind_of(cell["eval"]).figure == "position").items():
        values = {seed: window_perplexities(cells) for seed, cells in seeds.items()}
        curves[label] = make_curve(Kind.PERPLEXITY, values, Counter(), encoding)
    return curves


def _by_label(runs: Iterable[Run], chosen: Callable[[Cell], bool]) -> dict[tuple[str, str], dict[int, list[Cell]]]:
    found: dict[tuple[str, str], dict[int, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    encodings: dict[str, str] = {}
    for run in runs:
        for cell in filter(chosen, run.cells):
            label = run.curve(cell)
            encoding = encodings.setdefault(label, run.config.encoding if run.config else "")
            found[label, encoding][run.seed].append(cell)
    return found


def make_curve(
    kind: Kind, seeds: Mapping[int, Mapping[int, float]], prompts: Mapping[int, int], encoding: str = ""
) -> Curve:
    """A curve, with intervals where two or more seeds have a value; intervals of accuracies depend on the number of prompts."""
    alone, found = Curve(seeds, {}), {}
    for length in alone.lengths:
        interval = statistics.interval(kind, alone.values(length), prompts[length])
        if interval is not None:
            found[length] = interval
    return Curve(seeds, found, encoding)


def window_perplexities(cells: Sequence[Cell]) -> dict[int, float]:
    """The perplexity of each window of the longest sequences, by the position at which the window ends.

    The end represents the window: its last token has nearly that many tokens before it.
    """
    length = max(cell["length"] for cell in cells)
    longest = [cell for cell in cells if cell["length"] == length]
    window = longest[-1]["window"]  # of several window sizes, use the newest
    longest = [cell for cell in longest if cell["window"] == window]
    # Perplexities are averaged as losses, each record weighted by its number of sequences.
    losses = np.average([cell["windows"] for cell in longest], 0, [cell["n"] for cell in longest])
    ends = [min((number + 1) * window, length) for number in range(len(losses))]
    return dict(zip(ends, np.exp(losses).tolist(), strict=True))


def draw_curves(made: Experiment, table: Table, entries: Sequence[Entry]) -> Figure | None:
    """A table over lengths or positions as curves; None if its columns are something else or nothing is measured."""
    columns = [(column, column.evaluation) for column in table.columns if column.evaluation]
    kinds = {(evaluation.curve, column.position > 0, column.depth) for column, evaluation in columns}
    places = {_place(column) for column, _ in columns}
    # A curve needs two or more columns of the same kind, each at a different place.
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
        floor = {_place(each): passkey_floor(keys.depths) for each, keys in columns if isinstance(keys, Passkey)}
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


def passkey_floor(depths: int) -> float:
    """The share of keys next to their question, which every model with a few tokens of context finds."""
    return 1 / depths if depths > 1 else 0.0


def passkey_floors(runs: Iterable[Run]) -> dict[int, float]:
    """The floor by length in tokens; the largest one if runs have different depths."""
    depths: dict[int, dict[str, set[float | None]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        for cell in run.cells:
            if cell["eval"] == Passkey.name:
                depths[cell["length"]][run.name].add(cell["depth"])
    floor = lambda runs: max(passkey_floor(len(each)) for each in runs.values())
    return {length: floor(found) for length, found in sorted(depths.items())}


def make_grid(cells: Mapping[tuple[str, str], float], rows: list[str], columns: list[str]) -> Grid:
    """A grid of fractions by row and column; NaN where there is none."""
    return Grid(rows, columns, np.array([[cells.get((row, column), np.nan) for column in columns] for row in rows]))


def describe_grids(panels: Mapping[str, Grid], down: str) -> str:
    """The mean over the rows of each panel's last measured column, in words.

    >>> describe_grids({"BAM": Grid(["a", "b"], ["64", "128"], np.array([[1.0, 0.0], [1.0, 1.0]]))}, "task")
    'mean over every task, at 128 BAM 0.50.'
    """
    ends = {}
    for label, grid in panels.items():
        last = np.flatnonzero(~np.isnan(grid.values).all(0))[-1]
        ends[label] = (grid.columns[last], f"{np.nanmean(grid.values[:, last]):.2f}")
    return f"mean over every {down}, {describe_ends(ends)}."


def short_task(task: str) -> str:
    """A task of RULER without the common prefix.

    >>> short_task("niah_single_1")
    'single 1'
    """
    return task.removeprefix("niah_").replace("_", " ")
