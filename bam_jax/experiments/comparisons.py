"""The kinds of comparisons that claims consist of: each reads cells and returns its criteria.

In a file of claims, `is` names the kind. If there are several columns, their mean is compared unless `each` is set.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Union

import msgspec
import numpy as np

from bam_jax.experiments import criteria, statistics
from bam_jax.experiments.cells import Measured, PairedRow, Place, Series, TableName, read
from bam_jax.experiments.criteria import Criterion, number

type Number = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
type Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
type Labels = Annotated[list[str], msgspec.Meta(min_length=1)]
type Pair = Annotated[list[str], msgspec.Meta(min_length=2, max_length=2)]
type Tables = Annotated[list[TableName], msgspec.Meta(min_length=1)]


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="is"):
    """A comparison of rows; it is met if all of its criteria are."""

    rows: Labels

    def __post_init__(self) -> None:
        bounds = [getattr(self, name) for name in ("least", "above", "most", "below") if hasattr(self, name)]
        if bounds and all(bound is None for bound in bounds):
            raise ValueError("it has no bound; give least or most")

    def criteria(self, measured: Measured) -> list[Criterion]:
        """The criteria with their measurements."""
        raise NotImplementedError


class InTable(Comparison, frozen=True, kw_only=True):
    """A comparison of rows of one table, in some columns."""

    table: TableName
    columns: Labels

    def place(self, row: str, columns: Sequence[str] = ()) -> Place:
        """A row of the table, in the given columns or else those of the comparison."""
        return Place(self.table, columns or self.columns, row)


class Bound(InTable, frozen=True, kw_only=True, tag="bound"):
    """Each row is within bounds in each column.

    `tolerance` widens the bounds: no number of seeds can show that an accuracy is 1, but seeds can show that it is above 0.98.
    """

    least: Number | None = None
    above: Number | None = None
    most: Number | None = None
    tolerance: Number = 0.0

    def criteria(self, measured: Measured) -> list[Criterion]:
        bounds = [(self.least, False, False), (self.above, False, True), (self.most, True, False)]
        made = []
        for row in self.rows:
            (found,) = read(measured, self.place(row))
            for column, series in zip(self.columns, found.columns(), strict=True):
                for bound, upper, strict in bounds:
                    if bound is not None:
                        widened = bound + self.tolerance * (1 if upper else -1)
                        name = f"{row} at {column}"
                        made.append(criteria.bounded(name, row, series, widened, upper=upper, strict=strict))
        return made


class Better(InTable, frozen=True, kw_only=True, tag="better"):
    """Each row is better than each row of `than` by more than `margin`, seed by seed; with a negative margin it may be worse."""

    than: Labels
    than_table: TableName | None = None
    lower: bool = False
    margin: Number = 0.0
    each: bool = False

    def criteria(self, measured: Measured) -> list[Criterion]:
        made, table = [], self.than_table or self.table
        for row in self.rows:
            mine, *theirs = read(measured, self.place(row), *(Place(table, self.columns, other) for other in self.than))
            for other in theirs:
                for name, one, another in self._pairs(mine, other):
                    unmet = f"{row} worse than {other.place.row}"
                    if row == other.place.row:
                        unmet = f"{row} better than {self.table.title}"
                    made.append(criteria.ahead(name, one, another, self.margin, lower=self.lower, unmet=unmet))
        return made

    def _pairs(self, mine: PairedRow, other: PairedRow) -> Iterator[tuple[str, Series, Series]]:
        if self.than_table:
            title = other.place.table.title
            under = title if str(other.place) == str(mine.place) else f"{other.place} ({title})"
            yield f"{mine.place} ({self.table.title}) minus {under}", mine.mean(), other.mean()
        elif self.each:
            for column, one, another in zip(self.columns, mine.columns(), other.columns(), strict=True):
                yield f"{mine.place.row} minus {other.place.row} at {column}", one, another
        else:
            yield f"{mine.place.row} minus {other.place}", mine.mean(), other.mean()


class Ratio(InTable, frozen=True, kw_only=True, tag="ratio"):
    """Each row divided by each of `over`, or by itself in `over_columns`, is within bounds, seed by seed."""

    over: list[str] = []
    over_columns: list[str] = []
    least: Positive | None = None
    most: Positive | None = None
    each: bool = False

    def criteria(self, measured: Measured) -> list[Criterion]:
        made = []
        for row in self.rows:
            for other in self.over or [row]:
                for columns in [[column] for column in self.columns] if self.each else [self.columns]:
                    under = self.place(other, self.over_columns or columns)
                    pair = read(measured, self.place(row, columns), under)
                    name = f"{pair[0].place} / {under}"
                    if under.columns == columns:
                        name = f"{row} / {under}"
                    made += _within(name, pair[0].mean(), pair[1].mean(), self.least, self.most, row=row)
        return made


class Growth(Comparison, frozen=True, kw_only=True, tag="growth", rename={"start": "from", "end": "to"}):
    """Each row's growth from one column to another, divided by the growth of each row of `than`, is within bounds.

    For perplexities by position, the growth of a row that sees only a window, such as Local RoPE, is that of the text itself.
    """

    table: TableName
    start: str
    end: str
    than: Labels
    least: Positive | None = None
    most: Positive | None = None
    below: Positive | None = None

    def criteria(self, measured: Measured) -> list[Criterion]:
        made = []
        for row in self.rows:
            for other in self.than:
                places = [Place(self.table, [self.end, self.start], label) for label in (row, other)]
                mine, theirs = (_growth(found) for found in read(measured, *places))
                name = f"growth of {row} / that of {other}, from {self.start} to {self.end}"
                made += _within(name, mine, theirs, self.least, self.most, row=row)
                if self.below is not None:
                    made.append(criteria.compared(name, mine, theirs, self.below, upper=True, strict=True, row=row))
        return made


def _within(
    name: str, over: Series, under: Series, least: float | None, most: float | None, *, row: str
) -> list[Criterion]:
    bounds = [(bound, upper) for bound, upper in ((least, False), (most, True)) if bound is not None]
    return [criteria.compared(name, over, under, bound, upper=upper, row=row) for bound, upper in bounds]


def _growth(row: PairedRow) -> Series:
    end, start = row.columns()
    return end._replace(values=end.values / start.values)


class Gain(InTable, frozen=True, kw_only=True, tag="gain"):
    """The first of two rows gains more over the second than the first row of `than` gains over its second.

    A gain is the difference within a seed or, with `lower`, where lower values are better, the ratio second / first.
    """

    rows: Pair
    than: Pair
    lower: bool = False

    def criteria(self, measured: Measured) -> list[Criterion]:
        means = [row.mean() for row in read(measured, *map(self.place, [*self.rows, *self.than]))]
        span, gains = self.place("").span, [f"the gain of {a} over {b}" for a, b in (self.rows, self.than)]
        gain = self._ratio if self.lower else self._difference
        name, unmet = f"{gains[0]} minus {gains[1]} at {span}", f"{self.rows[0]} worse than {self.than[0]}"
        return [criteria.ahead(name, gain(*means[:2]), gain(*means[2:]), 0.0, lower=False, unmet=unmet)]

    def _ratio(self, improved: Series, plain: Series) -> Series:
        return plain._replace(values=plain.values / improved.values)

    def _difference(self, improved: Series, plain: Series) -> Series:
        floor = float(np.hypot(improved.floor, plain.floor))
        return improved._replace(values=improved.values - plain.values, floor=floor)


class AnyAbove(InTable, frozen=True, kw_only=True, tag="any"):
    """The mean of some row exceeds a bound, such as the score of a model that cannot do the task."""

    above: Number

    def criteria(self, measured: Measured) -> list[Criterion]:
        several = []
        for row in self.rows:  # each is read separately, so that one row's missing seeds do not affect the others
            (found,) = read(measured, self.place(row))
            several.append(criteria.bounded(str(found.place), row, found.mean(), self.above, upper=False, strict=True))
        says = f"the best mean of {', '.join(self.rows)} at {self.place('').span} > {number(self.above)}"
        return [criteria.quorum(says, several, 1)]


class Some(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="is", tag="some"):
    """At least `least` of the criteria of several comparisons are met."""

    least: Annotated[int, msgspec.Meta(ge=1)]
    checks: list["Check"]

    def __post_init__(self) -> None:
        if self.least > len(self.checks):
            raise ValueError(f"least={self.least} of {len(self.checks)} checks")

    def criteria(self, measured: Measured) -> list[Criterion]:
        several = [criterion for check in self.checks for criterion in check.criteria(measured)]
        return [criteria.quorum(f"{self.least} or more of {len(several)}", several, self.least)]


class Count(Comparison, frozen=True, kw_only=True, tag="count"):
    """In most seeds, between `least` and `most` of a row's cells in several tables have the value `equal`."""

    tables: Tables
    columns: Labels
    equal: Number
    least: int = 0
    most: int | None = None

    def criteria(self, measured: Measured) -> list[Criterion]:
        (row,) = self.rows
        total = len(self.tables) * len(self.columns)
        most = total if self.most is None else self.most
        (values,) = _values(measured, [Place(table, self.columns, row) for table in self.tables])
        votes = [bool(self.least <= count <= most) for count in (values == self.equal).sum(axis=0)]
        limits = f"{self.least} or more" if self.most is None else f"{self.most} or fewer"
        says = f"{row} in most seeds is {number(self.equal)} in {limits} of {total} cells"
        return [criteria.voted(says, votes if values.size else [])]


class Share(Comparison, frozen=True, kw_only=True, tag="share"):
    """More than a share of all models reach a value, if each of several tables has its own models.

    A model is a seed of a table. The tables' models are pooled, as if each model's table were drawn at random, too.
    """

    tables: Tables
    columns: Labels
    least: Number
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)]

    def criteria(self, measured: Measured) -> list[Criterion]:
        (row,) = self.rows
        places = [Place(table, self.columns, row) for table in self.tables]
        found = [read(measured, place)[0].mean().values for place in places]
        # If a table lacked seeds, the others would have more weight.
        whole = min(values.size for values in found) >= statistics.SEEDS
        votes = [bool(value >= self.least) for value in np.concatenate(found)] if whole else []
        says = f"{places[0]} ≥ {number(self.least)} in more than {number(self.share)} of all models"
        return [criteria.voted(says, votes, self.share)]


class Reach(Comparison, frozen=True, kw_only=True, tag="reach"):
    """In most seeds, a row extrapolates to more than `times` the length of each row of `than`.

    The row's own length is the last one before it first falls below a bound. Another row's length is the one from which on it
    stays below: a RoPE whose base was multiplied may miss near keys and find far ones. A row that never falls below the bound
    extrapolates at least to the last length, and a row that is always below it may have fallen before the first length. Such a
    seed supports the claim if that suffices, and otherwise counts for neither side.
    """

    tables: Tables
    columns: list[Labels]  # the columns of each table, of ascending lengths
    tokens: list[int]  # the length of each column
    than: Labels
    times: Positive
    least: Number

    def __post_init__(self) -> None:
        if len(self.tables) != len(self.columns) or sum(map(len, self.columns)) != len(self.tokens):
            raise ValueError("each table needs a list of columns, and each column its tokens")

    def criteria(self, measured: Measured) -> list[Criterion]:
        (row,) = self.rows
        by_table = list(zip(self.tables, self.columns, strict=True))
        places = [[Place(table, columns, label) for table, columns in by_table] for label in (row, *self.than)]
        mine, *theirs = _values(measured, *places)
        votes: list[bool | None] = []
        for seed in range(mine.shape[1]):
            answers = [self._extrapolates(mine[:, seed], other[:, seed]) for other in theirs]
            votes.append(False if False in answers else None if None in answers else True)
        limit = f"{self.times:g} times the length where each other falls below"
        return [criteria.voted(f"{row} in most seeds ≥ {number(self.least)} to more than {limit}", votes)]

    def _extrapolates(self, mine: np.ndarray, other: np.ndarray) -> bool | None:
        """Whether one length is more than `times` the other; None if it lies beyond the table's lengths."""
        count, below, reached = len(self.tokens), np.flatnonzero(mine < self.least), np.flatnonzero(other >= self.least)
        first_below = int(below[0]) if below.size else count
        stays_below = int(reached[-1]) + 1 if reached.size else 0
        hidden = first_below == count or stays_below == 0
        length = self.tokens[first_below - 1] if first_below else 0
        if stays_below < count and length > self.times * self.tokens[stays_below]:
            return True
        return None if hidden else False


def _values(measured: Measured, *rows: Sequence[Place]) -> list[np.ndarray]:
    """Rows' values in the columns of several tables, [columns, seeds], for the seeds that all their cells have."""
    found = iter(read(measured, *(place for places in rows for place in places)))
    return [np.array([series.values for _ in places for series in next(found).columns()]) for places in rows]


class Shapes(Comparison, frozen=True, kw_only=True, tag="shapes"):
    """In most seeds, a row has learned a shape below a bound. Source: BAM, section 2.5."""

    file: str
    below: Number

    def criteria(self, measured: Measured) -> list[Criterion]:
        return _shapes_vote(self, measured, f"a shape below {self.below:g}", lambda shapes: shapes.min() < self.below)


class Clusters(Comparison, frozen=True, kw_only=True, tag="clusters"):
    """In most seeds, a row's learned shapes form three classes, each with at least one head, and the lowest has the fewest.

    Source: BAM, appendix H.8.
    """

    file: str
    bounds: tuple[Number, Number]

    def criteria(self, measured: Measured) -> list[Criterion]:
        low, high = self.bounds

        def is_clustered(shapes: np.ndarray) -> bool:
            below, above = (shapes < low).sum(), (shapes > high).sum()
            return bool(0 < below < min(shapes.size - below - above, above))

        says = f"shapes below {low:g}, from there to {high:g} and above, the fewest below"
        return _shapes_vote(self, measured, says, is_clustered)


def _shapes_vote(
    check: Shapes | Clusters, measured: Measured, says: str, is_so: Callable[[np.ndarray], bool]
) -> list[Criterion]:
    return [
        criteria.voted(
            f"{row} in most seeds has {says}", [bool(is_so(each)) for each in measured.learned_shapes(check.file, row)]
        )
        for row in check.rows
    ]


Check = Union[Bound, Better, Ratio, Growth, Gain, AnyAbove, Some, Count, Share, Reach, Shapes, Clusters]  # noqa: UP007
