"""Checks across several tables, rows or checks, for what bounds and comparisons of one table do not say."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from bam_jax.experiments import criteria, statistics
from bam_jax.experiments.cells import Cells, Measured, Series, read
from bam_jax.experiments.checks import Check, Finding, bounds_of, growth
from bam_jax.experiments.criteria import number

COUNT = 2**31
"""More cells than any table has."""

Place = tuple[Cells, str]
"""The columns of a table, and a row's label."""


def better_across(first: Place, second: Place, *, margin: float = 0.0, lower: bool = False) -> Check:
    """A check that a row's mean in one table is better than a row's in another by more than a margin, seed by seed.

    Args:
        first, second: the better one and the other.
        margin: by which it is better; negative: by which it may be worse.
        lower: whether less is better, as with a perplexity.
    """
    (cells, row), (others, other) = first, second
    subject, compared = f"{row} at {cells.span} ({cells.title})", f"{other} at {others.span} ({others.title})"
    by = f" by more than {number(margin)}" if margin else ""
    says = f"{'below' if lower else 'above'} {compared}{by}"

    def check(measured: Measured) -> Finding:
        mine, theirs = read(measured, [first, second])
        made = criteria.ahead(f"{subject} minus {compared}", mine.mean(), theirs.mean(), margin, lower=lower)
        return Finding([made], subject, says)

    return check


def gains_more(cells: Cells, pair: tuple[str, str], other: tuple[str, str], *, lower: bool = False) -> Check:
    """A check that something improves one row by more than it improves another: a difference of differences by seed.

    Args:
        cells: the columns, whose mean is compared.
        pair: the row with it and the row without it.
        other: the same of the other.
        lower: of perplexities, whose gain is the quotient without / with.
    """
    subject = f"the gain of {pair[0]} over {pair[1]}"
    says = f"above that of {other[0]} over {other[1]} at {cells.span}"

    def check(measured: Measured) -> Finding:
        means = [row.mean() for row in read(measured, [(cells, label) for label in (*pair, *other)])]
        mine, theirs = _gain(*means[:2], lower=lower), _gain(*means[2:], lower=lower)
        name = f"{subject} minus that of {other[0]} over {other[1]} at {cells.span}"
        return Finding([criteria.ahead(name, mine, theirs, 0.0, lower=False)], subject, says, cells.title)

    return check


def _gain(with_it: Series, without: Series, *, lower: bool) -> Series:
    """The gain of each seed: a quotient of perplexities, or a difference."""
    if lower:
        return without._replace(values=without.values / with_it.values)
    return with_it._replace(values=with_it.values - without.values, floor=math.hypot(with_it.floor, without.floor))


def relative_growth(
    cells: Cells, far: str, near: str, row: str, control: str, *, least: float = 0.0, most: float = math.inf
) -> Check:
    """A check of a row's growth from one column to another, divided by the growth of a row that shows the text's own.

    Args:
        cells: the table, of perplexities by position.
        far, near: the columns.
        row: its label.
        control: the label of a row whose perplexity does not depend on the position, such as Local RoPE.
        least, most: the bounds of the quotient, each a criterion of its own.
    """
    name = f"growth of {row} / that of {control}, from {near} to {far}"
    bounds, limits = bounds_of(least, most)
    columns = dataclasses.replace(cells, columns=(far, near))

    def check(measured: Measured) -> Finding:
        mine, theirs = (growth(found) for found in read(measured, [(columns, row), (columns, control)]))
        made = [criteria.compared(name, mine, theirs, bound, lower=lower) for bound, lower in bounds]
        return Finding(made, name, limits, cells.title)

    return check


def count_cells(places: Sequence[Cells], row: str, *, equal: float, least: int = 0, most: int = COUNT) -> Check:
    """A check that in most seeds so many of a row's cells have a value.

    Args:
        places: the columns of each table.
        row: its label.
        equal: the value.
        least, most: how many at least, and at most.
    """
    total = sum(len(cells.columns) for cells in places)
    limits = " and ".join([f"{least} or more"] * (least > 0) + [f"{most} or fewer"] * (most < COUNT))
    says = f"in most seeds is {number(equal)} in {limits} of {total} cells"

    def check(measured: Measured) -> Finding:
        values = _values(measured, places, [row])[0]
        counts = np.sum(values == equal, axis=0)
        votes = [bool(least <= count <= most) for count in counts] if values.size else []
        return Finding([criteria.voted(f"{row} {says}", votes)], row, says)

    return check


def reliable(places: Sequence[Place], *, least: float, share: float) -> Check:
    """A check that more than a share of all models reach a value, where each row of several has models of its own.

    A model is a seed of a row. The rows' shares are taken for one: it is that of a model whose row is drawn as well.

    Args:
        places: the column and the row of each, such as one for each depth.
        least: the value.
        share: from 0 to 1.
    """
    names = ", ".join(dict.fromkeys(row for _, row in places))
    says = f"≥ {number(least)} at {places[0][0].span} in more than {number(share)} of all models"

    def check(measured: Measured) -> Finding:
        rows = [read(measured, [place])[0].mean() for place in places]
        values = np.concatenate([row.values for row in rows])
        # A row that lacks seeds would leave its part to the others.
        whole = min(row.n for row in rows) >= statistics.SEEDS
        votes = [bool(value >= least) for value in values] if whole else []
        return Finding([criteria.voted(f"{names} {says}", votes, share)], names, says)

    return check


def _values(measured: Measured, places: Sequence[Cells], labels: Sequence[str]) -> list[np.ndarray]:
    """Rows' values in the columns of several tables, [columns, seeds], for the seeds that all their cells have."""
    found = read(measured, [(cells, label) for label in labels for cells in places])
    count = len(places)
    return [np.concatenate([row.table() for row in found[k * count : (k + 1) * count]]) for k in range(len(labels))]


def most_of(checks: Sequence[Check], *, least: int) -> Check:
    """A check that at least so many of several checks hold.

    Args:
        checks: the several.
        least: how many.
    """

    def check(measured: Measured) -> Finding:
        findings = [each(measured) for each in checks]
        words = [f"{finding.subject} {finding.says}" for finding in findings]
        several = [
            criteria.quorum(word, finding.criteria, len(finding.criteria))
            for word, finding in zip(words, findings, strict=True)
        ]
        subject = f"{least} or more of {len(findings)}:"
        whole = criteria.quorum(f"{subject} see below", several, least)
        return Finding([whole], subject, ", ".join(words))

    return check


def all_of(checks: Sequence[Check], says: str) -> Check:
    """A check of one criterion: that all criteria of several checks are met.

    Args:
        checks: the several.
        says: the criterion in words.
    """

    def check(measured: Measured) -> Finding:
        several = [criterion for each in checks for criterion in each(measured).criteria]
        return Finding([criteria.quorum(says, several, len(several))], says, "")

    return check


def reaches_times(
    places: Sequence[Cells],
    tokens: Mapping[str, int],
    row: str,
    others: Sequence[str],
    *,
    times: float,
    least: float = 0.8,
) -> Check:
    """A check that in most seeds a row's reach is more than so many times that of each other.

    The reach of the row ends where it first falls below a bound. That of another ends where it stays below: a RoPE whose
    base was multiplied may miss near keys and find far ones. A row that never falls below the bound has reached the last
    length at least, and another that is below it everywhere may have fallen before the first. Such a seed speaks for the
    claim where that is enough, and else for neither side.

    Args:
        places: columns of ascending lengths, in one table or several.
        tokens: by column.
        row, others: labels; a seed must beat all others, so that the check is one criterion.
        times: the factor.
        least: the bound.
    """
    lengths = [tokens[column] for cells in places for column in cells.columns]
    says = (
        f"in most seeds ≥ {number(least)} to more than {times:g} times the length from which on each of "
        f"{', '.join(others)} stays below"
    )

    def check(measured: Measured) -> Finding:
        mine, *theirs = _values(measured, places, [row, *others])
        votes = []
        for seed in range(mine.shape[1]):
            reach = _first_below(mine[:, seed], least)
            votes.append(_all([_reaches(reach, _stays_below(near[:, seed], least), lengths, times) for near in theirs]))
        return Finding([criteria.voted(f"{row} {says}", votes)], row, says)

    return check


def _first_below(values: np.ndarray, least: float) -> int:
    """The index of the first value below a bound; their number where none is."""
    below = np.flatnonzero(values < least)
    return int(below[0]) if below.size else len(values)


def _stays_below(values: np.ndarray, least: float) -> int:
    """The index from which on all values are below a bound; their number where the last is not."""
    reached = np.flatnonzero(values >= least)
    return int(reached[-1]) + 1 if reached.size else 0


def _all(answers: Sequence[bool | None]) -> bool | None:
    """False where one of several answers is; else None where one cannot be said."""
    return False if False in answers else None if None in answers else True


def _reaches(mine: int, theirs: int, lengths: Sequence[int], times: float) -> bool | None:
    """True where one reach is more than so many times the end of another's; None where the table's ends hide it."""
    censored = mine == len(lengths) or theirs == 0
    if theirs == len(lengths):
        return None if censored else False
    reached = lengths[mine - 1] if mine else 0
    return True if reached > times * lengths[theirs] else None if censored else False
