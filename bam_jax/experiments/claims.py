"""What the papers claim, held against what was measured, as a page of Markdown.

python -m bam_jax.claims experiments/claims.py [--scale=toy] [--runs=runs] [--out=docs/claims.md]

A claim holds, does not, holds in part, is undecided where no model can do the task, or was not measured. Each is checked against
cells of the papers' tables and figures, as `bam_jax.tables` finds them in the runs; no verdict is written by hand.
"""

import dataclasses
import functools
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bam_jax.evals import records
from bam_jax.experiments import experiment, jobs, results, tables
from bam_jax.render.page import Section
from bam_jax.system.errors import UserError

TITLE = "What the papers claim, and what came out here"
VERDICTS = {True: "holds", False: "does not hold", None: "not measured"}
OTHER = ("in part", "not checked", "undecided")
"""Where some of several checks hold, where there is none, and where no model can do the task at all."""


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

    def entry(self, name: str, title: str, row: str, column: str, scale: str = "") -> tables.Entry:
        """A cell with all that is known of it; arguments and errors as in `cell`."""
        entries = self._entries(name, title, scale or self.scale)
        if (row, column) not in entries:
            raise UserError(f"{name} has no cell {row!r}, {column!r} in a table {title!r}")
        return entries[row, column]

    def _load(self, name: str, scale: str) -> experiment.Experiment:
        return experiment.load(str(self.experiments / f"{name}.py"), runs=self.folder, scale=scale)

    def _compare(self, name: str, title: str, scale: str) -> dict[tuple[str, str], tables.Entry]:
        made = self.load(name, scale)
        found = [table for table in made.tables if table.title.startswith(title)]
        if len(found) != 1:
            raise UserError(f"{name} has {len(found)} tables whose titles begin with {title!r}, not 1")
        return {(entry.row, entry.column): entry for entry in tables.compare(found[0], made, self.folder)}


class Printed(Measured):
    """The papers' own numbers in place of ours."""

    def cell(self, name: str, title: str, row: str, column: str, scale: str = "") -> float | None:
        """The number that the paper prints; arguments and errors as in `Measured`, whose value it has where that needs no run."""
        entry = self.entry(name, title, row, column, scale)
        printed = tables.number(entry.paper)
        return entry.mean if scale else None if printed is None else float(printed)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a check found.

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
class Claim:
    """A statement of a paper and how it is checked.

    Args:
        place: in the paper.
        says: the statement, in our words.
        checks: all of which it needs; none: `why` says why it is not checked.
        why: a remark.
        needs: what must hold for measurements to say anything about it.
    """

    place: str
    says: str
    checks: tuple[Check, ...] = ()
    why: str = ""
    needs: Check | None = None


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

    def of(self, measured: Measured, row: str) -> list[float | None]:
        """A row's values."""
        return [measured.cell(self.name, self.title, row, column, self.scale) for column in self.columns]

    def mean(self, measured: Measured, row: str) -> float | None:
        """The mean of a row's values; None where one is not there."""
        values = [value for value in self.of(measured, row) if value is not None]
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
    """Whether every cell of a row lies within bounds.

    Args:
        cells: the columns.
        row: its label.
        least, above, most: the bounds, the second of which it must exceed.
    """

    def check(measured: Measured) -> Finding:
        values = cells.of(measured, row)
        there = [value for value in values if value is not None]
        if len(there) < len(values):
            return Finding(None, f"{row}: {len(there)} of {len(values)} cells", cells.title)
        spread = _number(there[0]) if len(there) == 1 else f"{_number(min(there))} to {_number(max(there))}"
        holds = least <= min(there) > above and max(there) <= most
        return Finding(holds, f"{row} at {cells.span}: {spread}", cells.title)

    return check


def better(
    cells: Cells, row: str, others: Sequence[str], *, lower: bool = False, margin: float = 0.0, each: bool = False
) -> Check:
    """Whether a row is better than others by more than a margin.

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
        means = {label: cells.mean(measured, label) for label in (row, *others)}
        if None in means.values():
            absent = [label for label, value in means.items() if value is None]
            return Finding(None, f"{', '.join(absent)} at {cells.span}: not measured", cells.title)
        columns = [dataclasses.replace(cells, columns=(column,)) for column in cells.columns] if each else [cells]
        gaps = [
            sign * ((part.mean(measured, row) or 0.0) - (part.mean(measured, other) or 0.0))
            for part in columns
            for other in others
        ]
        numbers = ", ".join(f"{label} {_number(value or 0.0)}" for label, value in means.items())
        count = f"; better in {sum(gap > margin for gap in gaps)} of {len(gaps)} comparisons" if each else ""
        return Finding(
            all(gap > margin for gap in gaps),
            f"{'mean at ' if len(cells.columns) > 1 else ''}{cells.span}: {numbers}{count}",
            cells.title,
        )

    return check


def ratio(
    first: tuple[Cells, str], second: tuple[Cells, str], *, least: float = 0.0, most: float = float("inf")
) -> Check:
    """Whether one mean divided by another lies within bounds.

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
    """Whether a row grows less from one column to another than another row does.

    Args:
        cells: the table.
        far, near: the columns.
        row, other: labels.
    """

    def check(measured: Measured) -> Finding:
        at = lambda label, column: dataclasses.replace(cells, columns=(column,)).mean(measured, label)
        found = {label: (at(label, far), at(label, near)) for label in (row, other)}
        growth = {label: over / under for label, (over, under) in found.items() if over is not None and under}
        if len(growth) < len(found):
            return Finding(None, f"{row}, {other} at {far} / {near}: not measured", cells.title)
        says = ", ".join(f"{label} {value:.4g}" for label, value in growth.items())
        return Finding(growth[row] < growth[other], f"{far} / {near}: {says}", cells.title)

    return check


def learned(tables: Sequence[Cells], rows: Sequence[str], above: float) -> Check:
    """Whether some row's mean exceeds what a model gets that cannot do the task.

    Args:
        tables: the columns.
        rows: labels.
        above: the bound.
    """

    def check(measured: Measured) -> Finding:
        means = [cells.mean(measured, row) for cells in tables for row in rows]
        there = [value for value in means if value is not None]
        if len(there) < len(means):
            return Finding(None, f"{len(there)} of {len(means)} means")
        return Finding(max(there) > above, f"the best mean is {_number(max(there))}, not above {_number(above)}")

    return check


def reach(cells: Cells, row: str, *, least: float = 0.8) -> Callable[[Measured], tuple[float, str] | None]:
    """The number of the last column up to which all of a row's cells are at least so much; see `reaches_further`."""

    def found(measured: Measured) -> tuple[float, str] | None:
        values = cells.of(measured, row)
        if None in values:
            return None
        far = next((n for n, value in enumerate(values) if value is not None and value < least), len(values))
        return far, cells.columns[far - 1] if far else f"below {cells.columns[0]}"

    return found


def reaches_further(cells: Cells, row: str, others: Sequence[str], *, columns: int, least: float = 0.8) -> Check:
    """Whether a row stays at or above a bound for so many columns more than any other row.

    Args:
        cells: the columns, each twice as far as the one before.
        row: its label.
        others: theirs.
        columns: how many more.
        least: the bound.
    """

    def check(measured: Measured) -> Finding:
        found = {label: reach(cells, label, least=least)(measured) for label in (row, *others)}
        if None in found.values():
            return Finding(None, f"{', '.join(label for label, far in found.items() if far is None)}: not measured")
        far = {label: value for label, value in found.items() if value is not None}
        best = max(far[other][0] for other in others)
        says = ", ".join(f"{label} {where}" for label, (_, where) in far.items())
        return Finding(far[row][0] - best >= columns, f"{least:g} or more up to: {says}")

    return check


def clusters(name: str, row: str, bounds: tuple[float, float]) -> Check:
    """Whether each of the three classes that two bounds cut the learned shapes into has a head, the lowest the fewest.

    Args:
        name: of the experiment's file, without ".py".
        row: whose first seed's priors are looked at.
        bounds: of the shapes, ascending.

    Source: BAM, appendix H.8.
    """

    def check(measured: Measured) -> Finding:
        planned = [job for job in jobs.row_jobs(measured.load(name, measured.scale)) if job.row.label == row]
        run = measured.folder / planned[0].name
        if not (run / records.RESULTS).exists():
            return Finding(None, f"{row}: not trained")
        shapes = results.learned(run).shape.ravel()
        low, high = bounds
        counts = (
            int((shapes < low).sum()),
            int(((shapes >= low) & (shapes <= high)).sum()),
            int((shapes > high).sum()),
        )
        says = f"{row}: {counts[0]} shapes below {low:g}, {counts[1]} from there to {high:g}, {counts[2]} above"
        return Finding(0 < counts[0] < min(counts[1:]), says)

    return check


def verdict(findings: Sequence[Finding]) -> str:
    """One word or two for a claim, from what its checks found.

    >>> verdict([Finding(True, ""), Finding(False, "")]), verdict([])
    ('in part', 'not checked')
    """
    if not findings:
        return OTHER[1]
    held = {finding.holds for finding in findings}
    if None in held:
        return VERDICTS[None]
    return VERDICTS[held.pop()] if len(held) == 1 else OTHER[0]


def _worded(findings: Sequence[Finding]) -> list[str]:
    """What findings say, with their tables where those differ."""
    differ = len({finding.where for finding in findings}) > 1
    return [f"{finding.where}: {finding.says}" if differ and finding.where else finding.says for finding in findings]


def sections(claims: Mapping[str, Sequence[Claim]], measured: Measured, printed: Measured) -> Iterator[Section]:
    """A list for each paper, a point for each claim.

    Args:
        claims: by paper.
        measured: what they are held against.
        printed: the papers' own numbers, which they are held against as well.

    Raises:
        UserError: a claim names a cell that there is not.
    """
    for paper, said in claims.items():
        items, words = [], []
        for claim in said:
            findings = [check(measured) for check in claim.checks]
            able = claim.needs(measured) if claim.needs else Finding(True, "")
            words.append(OTHER[2] if able.holds is False else verdict(findings))
            unknown = [each for each in findings if each.holds is None][:1]
            shown = [able.says] if able.holds is False else _worded(unknown or findings)
            evidence = ". ".join([*shown, *([claim.why] if claim.why else [])])
            theirs = verdict([check(printed) for check in claim.checks])
            own = "" if theirs in (VERDICTS[None], OTHER[1]) else f" (by the paper's own numbers: {theirs})"
            items.append(f"**{words[-1]}**{own} · {claim.place}: {claim.says} — {evidence}.")
        counted = ", ".join(f"{word} {words.count(word)}" for word in (*VERDICTS.values(), *OTHER) if word in words)
        yield Section(paper, f"{len(items)} claims: {counted}.", items=items)


def parts(path: Path, folder: Path, scale: str) -> list[Section]:
    """The page's parts: what the scale means, then every claim.

    Args:
        path: a Python file with `get_claims()` and `NOTES`, beside the experiments.
        folder: of the runs.
        scale: "toy" or "paper".

    Raises:
        UserError: a file without claims, no folder, or a run that cannot be read.
    """
    if not path.is_file():
        raise UserError(f"no file {path}; give one with get_claims(), such as experiments/claims.py")
    names = runpy.run_path(str(path))
    if "get_claims" not in names:
        raise UserError(f"{path} has no get_claims(), which returns the claims by paper")
    results.there(folder)
    measured, printed = Measured(folder, scale, path.parent), Printed(folder, "paper", path.parent)
    notes = Section(f"At the {scale} scale", items=names["NOTES"])
    return [notes, *sections(names["get_claims"](), measured, printed)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
