"""Cells of the papers' tables for comparisons: one value per seed, from our runs or from a paper."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from bam_jax.experiments import experiment, jobs, results, statistics, tables
from bam_jax.experiments.experiment import Experiment, Table
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.statistics import Interval, Kind
from bam_jax.experiments.tables import Entry
from bam_jax.system.errors import UserError


class TableName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of an experiment."""

    file: str  # the experiment's file, without ".py"
    title: str  # the start of the table's title
    scale: str = ""  # another scale than the page's, for values that follow from a configuration without a run


class SeedValues(NamedTuple):
    """A cell's values by training seed, in the column's unit; values without seeds have the seed 0."""

    values: Mapping[int, float]
    kind: Kind
    prompts: int = 0  # of all seeds together
    unit: float = 1.0  # of the column: 0.01 for percent
    device: str = ""  # on which a speed was measured


type ShapeReader = Callable[[Job, Path, Path | None], np.ndarray | None]
"""Reads the shapes that a job has learned, from the folder of runs or the folder of records."""


class Measured:
    """Our runs' cells of the papers' tables; `experiments` is the folder of their files."""

    def __init__(self, folder: Path, scale: str, experiments: Path, read_shapes: ShapeReader | None = None) -> None:
        self.folder, self.scale, self.experiments, self._read_shapes = folder, scale, experiments, read_shapes
        self.load = functools.cache(self._load)
        self._entries = functools.cache(self._compare)
        self._compared: dict[tuple[str, str], None] = {}

    def seed_values(self, table: TableName, row: str, column: str) -> SeedValues:
        """A cell's values, 0 for a length that was given up; empty if no seed is complete."""
        entry = self.entry(table, row, column)
        devices = {outcome.speed["machine"]["device"] for outcome in entry.outcomes if outcome.speed}
        return SeedValues(entry.by_seed, entry.kind, entry.samples, entry.column.unit, " and ".join(sorted(devices)))

    def learned_shapes(self, name: str, row: str) -> list[np.ndarray]:
        """The shapes of a row's learned priors, for each trained seed."""
        made = self.load(name, self.scale)
        if self._read_shapes is None:
            return []
        found = [
            self._read_shapes(job, self.folder, made.records) for job in jobs.row_jobs(made) if job.row.label == row
        ]
        return [shapes for shapes in found if shapes is not None]

    def entry(self, table: TableName, row: str, column: str) -> Entry:
        found = self._entries(table.file, table.title, table.scale or self.scale)
        if (row, column) not in found:
            raise UserError(f"{table.file} has no cell {row!r}, {column!r} in a table {table.title!r}")
        return found[row, column]

    def provenance(self) -> list[str]:
        experiments = [self.load(*each) for each in self._compared]
        sources = [results.read_provenance(made, self.folder) for made in experiments]
        return results.describe_provenance({key: source for each in sources for key, source in each.items()}.values())

    def _load(self, name: str, scale: str) -> Experiment:
        return experiment.load(str(self.experiments / f"{name}.py"), runs=self.folder, scale=scale)

    def _table(self, name: str, title: str, scale: str) -> Table:
        named = [table for table in self.load(name, scale).tables if table.title.startswith(title)]
        if len(named) != 1:
            raise UserError(f"{name} has {len(named)} tables whose titles begin with {title!r}, not 1")
        return named[0]

    def _compare(self, name: str, title: str, scale: str) -> dict[tuple[str, str], Entry]:
        self._compared[name, scale] = None
        compared = tables.compare(self._table(name, title, scale), self.load(name, scale), self.folder)
        return {(entry.row, entry.column.label): entry for entry in compared}


class Printed(Measured):
    """The papers' own numbers in place of ours, as if of one seed."""

    def seed_values(self, table: TableName, row: str, column: str) -> SeedValues:
        """The number that the paper prints; a cell with its own scale has the value of our configuration."""
        if table.scale:
            return Measured(self.folder, table.scale, self.experiments).seed_values(table, row, column)
        entry = self.entry(table, row, column)
        printed = tables.parse_number(entry.paper)
        return SeedValues({} if printed is None else {0: float(printed)}, entry.kind, unit=entry.column.unit)

    def learned_shapes(self, name: str, row: str) -> list[np.ndarray]:
        """None: no paper prints its shapes."""
        return []

    def _load(self, name: str, scale: str) -> Experiment:
        # Experiments that are not from a paper lack the scale "paper".
        first = super()._load(name, experiment.SCALES[0])
        return super()._load(name, scale) if scale in first.scales else first

    def _compare(self, name: str, title: str, scale: str) -> dict[tuple[str, str], Entry]:
        # Runs are not read, which would take longer than everything else.
        table = self._table(name, title, scale)
        found = [Entry(label, column, paper, ()) for label in table.values for column, paper in table.cells(label)]
        return {(entry.row, entry.column.label): entry for entry in found}


class Series(NamedTuple):
    """A row's values in one column, or means over several columns: one for each seed."""

    values: np.ndarray
    kind: Kind
    floor: float = 0.0  # lower bound of the standard error of their mean
    top: float = math.inf  # the largest possible accuracy
    device: str = ""

    def interval(self) -> Interval:
        if self.kind is Kind.PERPLEXITY:
            return statistics.summarise(np.log(self.values)).exp()
        return statistics.summarise(self.values, self.floor).clipped(0.0, self.top)


class Place(NamedTuple):
    """A row of a table, in some of its columns."""

    table: TableName
    columns: Sequence[str]
    row: str

    @property
    def span(self) -> str:
        if len(self.columns) > 3:
            return f"{self.columns[0]} to {self.columns[-1]}"
        return " and ".join(filter(None, [", ".join(self.columns[:-1]), self.columns[-1]]))

    def __str__(self) -> str:
        return f"{self.row} at {self.span}"


class PairedRow(NamedTuple):
    """A row's values for the seeds that it shares with the rows that it is compared with."""

    place: Place
    cells: Sequence[SeedValues]
    seeds: Sequence[int]

    def columns(self) -> list[Series]:
        return [_mean([cell], self.seeds) for cell in self.cells]

    def mean(self) -> Series:
        """The mean over all columns, seed by seed; for perplexities, the mean of their logarithms."""
        return _mean(self.cells, self.seeds)


def read(measured: Measured, *places: Place) -> list[PairedRow]:
    """Reads rows for the seeds that all their cells have.

    Seeds are paired: the same seed means the same initialisation, order of texts and prompts in every row.
    """
    found = [[measured.seed_values(place.table, place.row, column) for column in place.columns] for place in places]
    seeds = sorted(set.intersection(*(set(cell.values) for cells in found for cell in cells)))
    return [PairedRow(place, cells, seeds) for place, cells in zip(places, found, strict=True)]


def _mean(cells: Sequence[SeedValues], seeds: Sequence[int]) -> Series:
    kind, unit = cells[0].kind, cells[0].unit
    values = np.array([[cell.values[seed] for seed in seeds] for cell in cells], np.float64)
    if not seeds:
        return Series(np.empty(0), kind)
    if kind is Kind.PERPLEXITY:
        return Series(np.exp(np.log(values).mean(axis=0)), kind)
    means = values.mean(axis=0)
    if kind is not Kind.ACCURACY:
        return Series(means, kind, device=cells[0].device)
    # Count only the prompts of these seeds.
    prompts = sum(round(cell.prompts * len(seeds) / len(cell.values)) for cell in cells)
    floor = statistics.binomial_floor(float(means.mean()) * unit, prompts) / unit
    return Series(means, kind, floor, 1 / unit)
