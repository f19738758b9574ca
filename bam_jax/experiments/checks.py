"""Checks of the papers' tables, of which a claim is made: bounds, comparisons and ratios, each as criteria over seeds."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from bam_jax.experiments import criteria
from bam_jax.experiments.cells import Cells, Measured, PairedRow, Series, read
from bam_jax.experiments.criteria import SIGNS, Criterion, number


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of a check.

    Args:
        criteria: all of which must be met, one at least.
        subject: a row, or a quantity of some.
        says: of the subject, as it stands before any run.
        where: the title of the table, or what it begins with.
    """

    criteria: Sequence[Criterion]
    subject: str
    says: str
    where: str = ""


type Check = Callable[[Measured], Finding]


def within(
    cells: Cells,
    row: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    tolerance: float = 0.0,
) -> Check:
    """A check that a row's mean over seeds lies within bounds in every column, each of which is a criterion of its own.

    Args:
        cells: the columns.
        row: its label.
        least, above, most: the bounds, the second of which it must exceed.
        tolerance: by which it may miss them: no number of seeds shows that an accuracy is 1, but that it is above .95.
    """
    bounds = [
        (bound + tolerance * (1 if lower else -1), lower, strict)
        for bound, lower, strict in ((least, False, False), (above, False, True), (most, True, False))
        if abs(bound) != math.inf
    ]
    limits = " and ".join(f"{SIGNS[lower, strict]} {number(bound)}" for bound, lower, strict in bounds)
    allowed = f", a tolerance of {number(tolerance)} included" if tolerance else ""
    says = f"{limits} {_at(cells, each=True)}{allowed}"

    def check(measured: Measured) -> Finding:
        (found,) = read(measured, [(cells, row)])
        made = [
            criteria.bounded(f"{row} at {label}", series, bound, lower=lower, strict=strict)
            for label, series in found.columns()
            for bound, lower, strict in bounds
        ]
        return Finding(made, row, says, cells.title)

    return check


def better(
    cells: Cells, row: str, others: Sequence[str], *, lower: bool = False, margin: float = 0.0, each: bool = False
) -> Check:
    """A check that a row is better than others by more than a margin, seed by seed; each other is a criterion of its own.

    Args:
        cells: the columns, whose mean is compared.
        row: its label.
        others: theirs.
        lower: whether less is better, as with a perplexity.
        margin: by which it is better; negative: by which it may be worse.
        each: whether it must be better in each column, which is then a criterion of its own, not in the mean.
    """
    by = ""
    if margin:
        by = f" by more than {number(margin)}" if margin > 0 else f", or worse by less than {number(-margin)},"
    side = "below" if lower else "above"
    says = f"{side} {_any(others)}{by} {_at(cells, each=each)}"

    def check(measured: Measured) -> Finding:
        mine, *theirs = read(measured, [(cells, label) for label in (row, *others)])
        made = []
        for other in theirs:
            pairs = [(cells.span, mine.mean(), other.mean())]
            if each:
                both = zip(mine.columns(), other.columns(), strict=True)
                pairs = [(label, one, another) for (label, one), (_, another) in both]
            made += [
                criteria.ahead(f"{row} minus {other.label} at {label}", one, another, margin, lower=lower)
                for label, one, another in pairs
            ]
        return Finding(made, row, says, cells.title)

    return check


def ratio(
    first: tuple[Cells, str],
    second: tuple[Cells, str],
    *,
    least: float = 0.0,
    most: float = math.inf,
    margin: float = 0.0,
) -> Check:
    """A check that one mean divided by another lies within bounds, seed by seed; each bound is a criterion of its own.

    Args:
        first, second: the columns and the row of each.
        least, most: the bounds.
        margin: by which it must stay within them; negative: by which it may miss them.
    """
    (over, row), (under, label) = first, second
    name = f"{row} at {over.span} / {label} at {under.span}"
    bounds, limits = bounds_of(least, most, margin)

    def check(measured: Measured) -> Finding:
        one, other = read(measured, [first, second])
        made = [criteria.compared(name, one.mean(), other.mean(), bound, lower=lower) for bound, lower in bounds]
        return Finding(made, name, limits, over.title)

    return check


def bounds_of(least: float, most: float, margin: float = 0.0) -> tuple[list[tuple[float, bool]], str]:
    """The bounds of a quotient, each with whether it is the greatest, and both in words.

    Args:
        least, most: the bounds; 0 and infinity are none.
        margin: by which it must stay within them.
    """
    bounds = ([(least + margin, False)] if least else []) + ([(most - margin, True)] if most < math.inf else [])
    return bounds, " and ".join(f"{SIGNS[lower, False]} {number(bound)}" for bound, lower in bounds)


def steadier(cells: Cells, far: str, near: str, row: str, other: str) -> Check:
    """A check that a row grows less from one column to another than another row does, by the quotient of both.

    Args:
        cells: the table, of perplexities or other positive numbers.
        far, near: the columns.
        row, other: labels.
    """
    name = f"growth of {row} / that of {other}, from {near} to {far}"
    columns = dataclasses.replace(cells, columns=(far, near))

    def check(measured: Measured) -> Finding:
        mine, theirs = (growth(found) for found in read(measured, [(columns, row), (columns, other)]))
        made = criteria.compared(name, mine, theirs, 1.0, lower=True, strict=True)
        return Finding([made], name, "< 1", cells.title)

    return check


def growth(row: PairedRow) -> Series:
    """The first column of a row divided by the second, for each seed.

    Args:
        row: of perplexities or other positive numbers.
    """
    far, near = row.column(0), row.column(1)
    return far._replace(values=far.values / near.values)


def above_chance(places: Sequence[Cells], rows: Sequence[str], chance: float) -> Check:
    """A check that some row's mean exceeds the score of a model that cannot do the task.

    Args:
        places: the columns of each table.
        rows: labels.
        chance: the score of such a model.
    """
    where = " and ".join(dict.fromkeys(cells.span for cells in places))
    subject, says = f"the best mean of {', '.join(rows)} at {where}", f"> {number(chance)}"

    def check(measured: Measured) -> Finding:
        several = []
        for cells in places:
            for label in rows:  # each for itself: a row that lacks a seed takes none from the others
                (found,) = read(measured, [(cells, label)])
                name = f"{label} at {cells.span}"
                several.append(criteria.bounded(name, found.mean(), chance, lower=False, strict=True))
        titles = " and ".join(dict.fromkeys(cells.title for cells in places))
        return Finding([criteria.quorum(f"{subject} {says}", several, 1)], subject, says, titles)

    return check


def _at(cells: Cells, *, each: bool) -> str:
    """The columns of a check, each of which counts or their mean, in words."""
    if len(cells.columns) == 1:
        return f"at {cells.span}"
    return f"at each of {cells.span}" if each else f"in the mean of {cells.span}"


def _any(labels: Sequence[str]) -> str:
    """Some labels, in words."""
    return labels[0] if len(labels) == 1 else f"each of {', '.join(labels)}"
