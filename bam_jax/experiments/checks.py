"""Checks of measured cells of the papers' tables: bounds, comparisons and ratios, which a claim is made of."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from bam_jax.experiments import experiment, tables
from bam_jax.experiments.experiment import Experiment
from bam_jax.experiments.tables import Entry
from bam_jax.system.errors import UserError


class Measured:
    """Cells of the papers' tables, by experiment, table, row and column.

    Args:
        folder: of the runs.
        scale: "toy" or "paper".
        experiments: where the files of the experiments are.
    """

    def __init__(self, folder: Path, scale: str, experiments: Path) -> None:
        self.folder, self.scale, self.experiments = folder, scale, experiments
        self.load = functools.cache(self._load)
        self._entries = functools.cache(self._compare)

    def cell(self, name: str, title: str, row: str, column: str, scale: str = "") -> float | None:
        """The mean over the seeds, 0 for a length that was given up; None where it is not there, or only in part.

        Args:
            name: of the experiment's file, without ".py".
            title: what the table's title begins with.
            row, column: labels in the paper.
            scale: another one than the page's, for what a configuration tells without a run.

        Raises:
            UserError: the experiment has no such cell.
        """
        return self.entry(name, title, row, column, scale).score

    def entry(self, name: str, title: str, row: str, column: str, scale: str = "") -> Entry:
        """A cell with all that is known of it; arguments and errors as in `cell`."""
        entries = self._entries(name, title, scale or self.scale)
        if (row, column) not in entries:
            raise UserError(f"{name} has no cell {row!r}, {column!r} in a table {title!r}")
        return entries[row, column]

    def _load(self, name: str, scale: str) -> Experiment:
        return experiment.load(str(self.experiments / f"{name}.py"), runs=self.folder, scale=scale)

    def _compare(self, name: str, title: str, scale: str) -> dict[tuple[str, str], Entry]:
        made = self.load(name, scale)
        named = [table for table in made.tables if table.title.startswith(title)]
        if len(named) != 1:
            raise UserError(f"{name} has {len(named)} tables whose titles begin with {title!r}, not 1")
        return {(entry.row, entry.column.label): entry for entry in tables.compare(named[0], made, self.folder)}


class Printed(Measured):
    """The papers' own numbers in place of ours."""

    def cell(self, name: str, title: str, row: str, column: str, scale: str = "") -> float | None:
        """The number that the paper prints; arguments and errors as in `Measured`.

        With a scale of its own a cell needs no run, and both have the value that the configuration tells.
        """
        entry = self.entry(name, title, row, column, scale)
        if scale:
            return entry.mean
        printed = tables.parse_number(entry.paper)
        return None if printed is None else float(printed)


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of a check.

    Args:
        holds: None: something was not measured.
        says: the numbers.
        where: the title of their table, or what it begins with.
    """

    holds: bool | None
    says: str
    where: str = ""


type Check = Callable[[Measured], Finding]


@dataclasses.dataclass(frozen=True)
class Cells:
    """Some columns of a table.

    Args:
        name: of the experiment's file, without ".py".
        title: what the table's title begins with.
        columns: of it.
        scale: see `Measured.cell`.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    scale: str = ""

    def values(self, measured: Measured, row: str) -> list[float | None]:
        """A row's values."""
        return [measured.cell(self.name, self.title, row, column, self.scale) for column in self.columns]

    def mean(self, measured: Measured, row: str) -> float | None:
        """The mean of a row's values; None where one is not there."""
        values = [value for value in self.values(measured, row) if value is not None]
        return sum(values) / len(values) if len(values) == len(self.columns) else None

    @property
    def span(self) -> str:
        """The columns, in words."""
        return self.columns[0] if len(self.columns) == 1 else f"{self.columns[0]} to {self.columns[-1]}"


def within(
    cells: Cells,
    row: str,
    *,
    least: float = float("-inf"),
    above: float = float("-inf"),
    most: float = float("inf"),
) -> Check:
    """A check that every cell of a row lies within bounds.

    Args:
        cells: the columns.
        row: its label.
        least, above, most: the bounds, the second of which it must exceed.
    """

    def check(measured: Measured) -> Finding:
        values = cells.values(measured, row)
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return Finding(None, f"{row}: {len(known)} of {len(values)} cells", cells.title)
        low, high = min(known), max(known)
        spread = _number(low) if len(known) == 1 else f"{_number(low)} to {_number(high)}"
        return Finding(low >= least and low > above and high <= most, f"{row} at {cells.span}: {spread}", cells.title)

    return check


def better(
    cells: Cells, row: str, others: Sequence[str], *, lower: bool = False, margin: float = 0.0, each: bool = False
) -> Check:
    """A check that a row is better than others by more than a margin.

    Args:
        cells: the columns, whose mean is compared.
        row: its label.
        others: theirs.
        lower: whether less is better, as with a perplexity.
        margin: by which it is better; negative: by which it may be worse.
        each: whether it must be better in each column, not in the mean.
    """
    sign = -1 if lower else 1

    def check(measured: Measured) -> Finding:
        values = {label: cells.values(measured, label) for label in (row, *others)}
        known = {label: [value for value in found if value is not None] for label, found in values.items()}
        absent = [label for label in known if len(known[label]) < len(cells.columns)]
        if absent:
            return Finding(None, f"{', '.join(absent)} at {cells.span}: not measured", cells.title)
        means = {label: sum(found) / len(found) for label, found in known.items()}
        compared = known if each else {label: [mean] for label, mean in means.items()}
        ahead = [
            sign * (mine - theirs) > margin
            for other in others
            for mine, theirs in zip(compared[row], compared[other], strict=True)
        ]
        numbers = ", ".join(f"{label} {_number(mean)}" for label, mean in means.items())
        count = f"; better in {sum(ahead)} of {len(ahead)} comparisons" if each else ""
        start = "mean at " if len(cells.columns) > 1 else ""
        return Finding(all(ahead), f"{start}{cells.span}: {numbers}{count}", cells.title)

    return check


def ratio(
    first: tuple[Cells, str], second: tuple[Cells, str], *, least: float = 0.0, most: float = float("inf")
) -> Check:
    """A check that one mean divided by another lies within bounds.

    Args:
        first, second: the columns and the row of each.
        least, most: the bounds.
    """

    def check(measured: Measured) -> Finding:
        (cells, row), (other, label) = first, second
        over, under = cells.mean(measured, row), other.mean(measured, label)
        where = f"{row} at {cells.span} / {label} at {other.span}"
        if over is None or under is None:
            return Finding(None, f"{where}: not measured", cells.title)
        if under == 0:
            return Finding(False, f"{where}: {_number(over)} / 0", cells.title)
        return Finding(least <= over / under <= most, f"{where}: {over / under:.4g}", cells.title)

    return check


def steadier(cells: Cells, far: str, near: str, row: str, other: str) -> Check:
    """A check that a row grows less from one column to another than another row does.

    Args:
        cells: the table.
        far, near: the columns.
        row, other: labels.
    """

    def check(measured: Measured) -> Finding:
        growth = {}
        for label in (row, other):
            over, under = dataclasses.replace(cells, columns=(far, near)).values(measured, label)
            if over is None or under is None:
                return Finding(None, f"{row}, {other} at {far} / {near}: not measured", cells.title)
            if under == 0:
                return Finding(False, f"{label} at {far} / {near}: {_number(over)} / 0", cells.title)
            growth[label] = over / under
        says = ", ".join(f"{label} {value:.4g}" for label, value in growth.items())
        return Finding(growth[row] < growth[other], f"{far} / {near}: {says}", cells.title)

    return check


def above_chance(places: Sequence[Cells], rows: Sequence[str], chance: float) -> Check:
    """A check that some row's mean exceeds the score of a model that cannot do the task.

    Args:
        places: the columns of each table.
        rows: labels.
        chance: the score of such a model.
    """

    def check(measured: Measured) -> Finding:
        means = [cells.mean(measured, row) for cells in places for row in rows]
        known = [mean for mean in means if mean is not None]
        if len(known) < len(means):
            return Finding(None, f"{len(known)} of {len(means)} means")
        best = max(known)
        verb = "above" if best > chance else "not above"
        return Finding(best > chance, f"the best mean is {_number(best)}, {verb} {_number(chance)}")

    return check


def reaches_further(cells: Cells, row: str, others: Sequence[str], *, columns: int, least: float = 0.8) -> Check:
    """A check that a row stays at or above a bound for so many columns more than any other row.

    Args:
        cells: the columns, each twice as far as the one before.
        row: its label.
        others: theirs.
        columns: how many more.
        least: the bound.
    """

    def check(measured: Measured) -> Finding:
        reach: dict[str, int] = {}
        absent = []
        for label in (row, *others):
            values = cells.values(measured, label)
            known = [value for value in values if value is not None]
            if len(known) < len(values):
                absent.append(label)
            low = [value < least for value in known]
            reach[label] = low.index(True) if True in low else len(low)
        if absent:
            return Finding(None, f"{', '.join(absent)}: not measured")
        ends = [f"below {cells.columns[0]}", *cells.columns]
        says = ", ".join(f"{label} {ends[far]}" for label, far in reach.items())
        ahead = reach[row] - max(reach[other] for other in others)
        return Finding(ahead >= columns, f"{least:g} or more up to: {says}")

    return check


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
