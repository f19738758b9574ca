"""Cells of the papers' tables as checks read them: a value for each seed, ours or a paper's own."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bam_jax.experiments import entries, experiment, origins, statistics, tables
from bam_jax.experiments.entries import Entry
from bam_jax.experiments.experiment import Experiment, Table
from bam_jax.experiments.statistics import Interval, Kind
from bam_jax.system.errors import UserError


@dataclasses.dataclass(frozen=True)
class SeedValues:
    """A cell with the values that there are.

    Args:
        values: by training seed, in the column's unit; what has no seeds has the seed 0.
        kind: of the values.
        prompts: of all seeds together.
        unit: of the column: 0.01 for percent.
        device: on which a speed was measured.
    """

    values: Mapping[int, float]
    kind: Kind
    prompts: int = 0
    unit: float = 1.0
    device: str = ""


class Measured:
    """Cells of the papers' tables, by experiment, table, row and column.

    Args:
        folder: of the runs.
        scale: one of `experiment.SCALES`.
        experiments: where the files of the experiments are.
    """

    def __init__(self, folder: Path, scale: str, experiments: Path) -> None:
        self.folder, self.scale, self.experiments = folder, scale, experiments
        self.load = functools.cache(self._load)
        self._entries = functools.cache(self._compare)
        self._compared: dict[tuple[str, str], None] = {}

    def seed_values(self, name: str, title: str, row: str, column: str, scale: str = "") -> SeedValues:
        """A cell's values by seed, 0 for a length that was given up; without values where nothing is whole.

        Args:
            name: of the experiment's file, without ".py".
            title: what the table's title begins with.
            row, column: labels in the paper.
            scale: another one than the page's, for what a configuration tells without a run.

        Raises:
            UserError: the experiment has no such cell.
        """
        entry = self.entry(name, title, row, column, scale)
        devices = {outcome.speed["machine"]["device"] for outcome in entry.outcomes if outcome.speed}
        return SeedValues(entry.by_seed, entry.kind, entry.samples, entry.column.unit, " and ".join(sorted(devices)))

    def entry(self, name: str, title: str, row: str, column: str, scale: str = "") -> Entry:
        """A cell with all that is known of it; arguments and errors as in `seed_values`."""
        entries = self._entries(name, title, scale or self.scale)
        if (row, column) not in entries:
            raise UserError(f"{name} has no cell {row!r}, {column!r} in a table {title!r}")
        return entries[row, column]

    def _load(self, name: str, scale: str) -> Experiment:
        return experiment.load(str(self.experiments / f"{name}.py"), runs=self.folder, scale=scale)

    def table(self, name: str, title: str, scale: str) -> Table:
        """The table of an experiment whose title begins so; arguments and errors as in `seed_values`."""
        named = [table for table in self.load(name, scale).tables if table.title.startswith(title)]
        if len(named) != 1:
            raise UserError(f"{name} has {len(named)} tables whose titles begin with {title!r}, not 1")
        return named[0]

    def origins(self) -> list[str]:
        """A line for each machine that trained the models of the experiments that were read; see `origins.describe`."""
        experiments = [self.load(*each) for each in self._compared]
        sources = [origins.read_sources(made, self.folder) for made in experiments]
        return origins.describe({digest: source for each in sources for digest, source in each.items()}.values())

    def _compare(self, name: str, title: str, scale: str) -> dict[tuple[str, str], Entry]:
        self._compared[name, scale] = None
        compared = tables.compare(self.table(name, title, scale), self.load(name, scale), self.folder)
        return {(entry.row, entry.column.label): entry for entry in compared}


class Printed(Measured):
    """The papers' own numbers in place of ours."""

    def _load(self, name: str, scale: str) -> Experiment:
        """At the given scale, or where the experiment has it not, which no paper has then, at the first one."""
        first = super()._load(name, experiment.SCALES[0])
        return super()._load(name, scale) if scale in first.scales else first

    def _compare(self, name: str, title: str, scale: str) -> dict[tuple[str, str], Entry]:
        # No run is looked at, which would take longer than all the rest.
        table = self.table(name, title, scale)
        entries = [Entry(label, column, paper, ()) for label in table.values for column, paper in table.cells(label)]
        return {(entry.row, entry.column.label): entry for entry in entries}

    def seed_values(self, name: str, title: str, row: str, column: str, scale: str = "") -> SeedValues:
        """The number that the paper prints, as if of one seed; arguments and errors as in `Measured`.

        With a scale of its own a cell needs no run, and both have the value that the configuration tells.
        """
        if scale:
            return Measured(self.folder, scale, self.experiments).seed_values(name, title, row, column)
        entry = self.entry(name, title, row, column)
        printed = entries.parse_number(entry.paper)
        return SeedValues({} if printed is None else {0: float(printed)}, entry.kind, unit=entry.column.unit)


@dataclasses.dataclass(frozen=True)
class Cells:
    """Some columns of a table.

    Args:
        name: of the experiment's file, without ".py".
        title: what the table's title begins with.
        columns: of it.
        scale: see `Measured.seed_values`.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    scale: str = ""

    @property
    def span(self) -> str:
        """The columns, in words."""
        if len(self.columns) <= 3:
            return " and ".join(filter(None, [", ".join(self.columns[:-1]), self.columns[-1]]))
        return f"{self.columns[0]} to {self.columns[-1]} ({len(self.columns)} columns)"


class Series(NamedTuple):
    """A row's values in one column, or the means of several, for some seeds.

    Args:
        values: one for each seed.
        kind: of the values.
        floor: the least standard error of their mean.
        top: the greatest value that an accuracy can have.
        device: on which a speed was measured.
    """

    values: np.ndarray
    kind: Kind
    floor: float = 0.0
    top: float = math.inf
    device: str = ""

    @property
    def n(self) -> int:
        """The number of values."""
        return self.values.size

    def interval(self) -> Interval:
        """The mean between the ends of its interval, which are nan where there is none."""
        if self.kind is Kind.PERPLEXITY:
            return summarise(np.log(self.values)).exp()
        return summarise(self.values, self.floor).clipped(0.0, self.top)


def summarise(values: np.ndarray, floor: float = 0.0) -> Interval:
    """The mean of some values between the ends of its interval, which are nan of one value alone.

    Args:
        values: [seeds].
        floor: the least standard error.
    """
    if values.size < 2:
        return Interval(math.nan, float(values[0]) if values.size else math.nan, math.nan)
    return statistics.estimate(values, floor).interval()


class PairedRow(NamedTuple):
    """A row's values in some columns, for the seeds that it has in common with the rows that it is compared with.

    Args:
        label: of the row.
        cells: the columns.
        by_column: the values of each column.
        seeds: in ascending order.
    """

    label: str
    cells: Cells
    by_column: Sequence[SeedValues]
    seeds: Sequence[int]

    def column(self, k: int) -> Series:
        """The values in a column.

        Args:
            k: its index.
        """
        return _mean(self.by_column[k : k + 1], self.seeds)

    def columns(self) -> list[tuple[str, Series]]:
        """Every column's label and values."""
        return [(label, self.column(k)) for k, label in enumerate(self.cells.columns)]

    def table(self) -> np.ndarray:
        """All values, [columns, seeds]."""
        return np.array([series.values for _, series in self.columns()])

    def mean(self) -> Series:
        """The mean of all columns, seed by seed: that of logarithms where the values are perplexities."""
        return _mean(self.by_column, self.seeds)


def read(measured: Measured, places: Sequence[tuple[Cells, str]]) -> list[PairedRow]:
    """Reads rows for the seeds that all their cells have.

    Seeds are paired: the same seed has the same start, the same order of texts and the same prompts in every row.

    Args:
        measured: the cells.
        places: columns of a table and the label of a row.

    Raises:
        UserError: there is no such cell.
    """
    found = [
        [measured.seed_values(cells.name, cells.title, label, column, cells.scale) for column in cells.columns]
        for cells, label in places
    ]
    seeds = sorted(set.intersection(*(set(cell.values) for by_column in found for cell in by_column)))
    return [PairedRow(label, cells, row, seeds) for (cells, label), row in zip(places, found, strict=True)]


def _mean(cells: Sequence[SeedValues], seeds: Sequence[int]) -> Series:
    """The mean of some cells in each seed."""
    kind, unit = cells[0].kind, cells[0].unit
    if not seeds:
        return Series(np.empty(0), kind)
    values = np.array([[cell.values[seed] for seed in seeds] for cell in cells], np.float64)
    if kind is Kind.PERPLEXITY:
        return Series(np.exp(np.log(values).mean(axis=0)), kind)
    means = values.mean(axis=0)
    if kind is not Kind.ACCURACY:
        return Series(means, kind, device=cells[0].device)
    # Only the prompts of these seeds count.
    prompts = sum(round(cell.prompts * len(seeds) / len(cell.values)) for cell in cells)
    floor = statistics.binomial_floor(float(means.mean()) * unit, prompts) / unit
    return Series(means, kind, floor, 1 / unit)
