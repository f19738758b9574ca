"""A paper's tables beside what our runs measured: ours | paper | difference | seeds (spread), as Markdown, CSV and HTML.

python -m bam_jax.tables experiments/cable_table*.py [--scale=paper] [--runs=runs] [--out=FOLDER]

What has not been measured, or only in part, is marked and never filled in.
"""

import csv
import dataclasses
import functools
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bam_jax.config import Config
from bam_jax.evals import records
from bam_jax.evals.base import Evaluation
from bam_jax.experiments import jobs, results, speed_jobs
from bam_jax.experiments.experiment import DASH, Column, Experiment, Table
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import Part
from bam_jax.models import counts
from bam_jax.render import page
from bam_jax.render.page import Section
from bam_jax.system.errors import UserError

HEAD = ("row", "column", "ours", "paper", "difference", "seeds (spread)")
MISSING = "missing"
GIVEN_UP = "0 (stopped)"
LEGEND = f"{GIVEN_UP}: not measured, since no prompt was answered at the lengths before."

QUANTITIES: Mapping[str, Callable[[Config], float]] = {
    "embedding_parameters": lambda config: counts.parameters(config).embedding,
    "transformer_parameters": lambda config: counts.parameters(config).transformer,
    "prior_parameters": lambda config: counts.parameters(config).prior,
    "trained_prior_parameters": lambda config: counts.parameters(config).trained_prior,
    "heads": lambda config: config.model.heads,
    "layers": lambda config: config.model.layers,
    "width": lambda config: config.model.width,
    "hidden": lambda config: config.model.hidden,
    "rate": lambda config: config.optimizer.rate,
}
"""What a configuration tells without a run."""

FACTORS = {"K": Decimal(10) ** 3, "M": Decimal(10) ** 6, "B": Decimal(10) ** 9}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Args:
        row, column: labels in the paper.
        ours: a value for each seed that has been measured.
        paper: as printed; "": nothing.
        note: why nothing, or not everything, of ours is there; "": all is.
        about: of a speed: quartiles, the ratio to NoPE and the machine; of questions: how many, where some were left out.
    """

    row: str
    column: str
    ours: tuple[float, ...]
    paper: str
    note: str = ""
    about: str = ""

    @property
    def mean(self) -> float | None:
        """Over the seeds; None where there are none."""
        return float(np.mean(self.ours)) if self.ours else None

    @property
    def settled(self) -> bool:
        """Whether nothing of it is left to measure: each seed has its value, or was given up."""
        return all(GIVEN_UP in part for part in self.note.split("; ")) if self.note else bool(self.ours)

    @property
    def score(self) -> float | None:
        """The mean over all seeds, of which one that was given up has 0; None where it is not settled."""
        return sum(self.ours) / (len(self.ours) + self.note.count(GIVEN_UP)) if self.settled else None


def number(printed: str) -> Decimal | None:
    """What a paper printed, as a number; None where that is nothing or a dash.

    >>> [str(number(text)) for text in ("17.00", "~25M", "2 × 768", "32.84 ± 0.40", ">0.8", "—")]
    ['17.00', '25000000', '1536', '32.84', '0.8', 'None']
    >>> number("1 × 10^-3")
    Decimal('0.001')

    Args:
        printed: digits, with "~", "<" or ">" before them, a factor K, M or B or a spread "± ..." after them, or a product.

    Raises:
        UserError: it is something else.
    """
    if printed in ("", DASH):
        return None
    product = Decimal(1)
    for factor in printed.partition("±")[0].lstrip("~<>").split("×"):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?:\^(-?\d+))?([KMB]?)\s*", factor)
        if found is None:
            raise UserError(f"{printed!r} is not a number as tables print them")
        base, power, unit = found.groups()
        product *= Decimal(base) ** int(power or 1) * (FACTORS[unit] if unit else 1)
    return product


def compare(table: Table, made: Experiment, folder: Path) -> list[Entry]:
    """Every cell of a table, row after row.

    Args:
        table: of the experiment.
        made: the experiment.
        folder: of the runs.

    Raises:
        UserError: a configuration or a file of a run will not do.
    """
    planned = jobs.row_jobs(made)
    read = reader(folder)
    timed = speed_jobs.read_newest(made, table, folder)
    found = []
    for label in table.values:
        mine = [job for job in planned if job.row.label == table.row(label)]
        for column, paper in table.cells(label):
            if column.speed:
                found.append(_timed(label, column, paper, timed))
            else:
                found.append(_entry(label, column, paper, mine, read))
    return found


class Shown(NamedTuple):
    """A run's results: what was measured, and what was left out."""

    cells: Sequence[results.Cell]
    stops: Sequence[Mapping[str, Any]]


def reader(folder: Path) -> Callable[[Job], Shown]:
    """What reads the results of a job, each file once.

    Args:
        folder: of the runs.
    """
    read = functools.cache(lambda name: Shown(*records.results(folder / name)))
    return lambda job: read(job.name)


def _timed(label: str, column: Column, paper: str, timed: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> Entry:
    assert column.speed is not None
    at = label, *column.speed
    if at not in timed:
        return Entry(label, column.label, (), paper, MISSING)
    record, on = timed[at], timed[at]["machine"]
    spread = ""
    if "low" in record:
        low, high = (_digits(record[name] / column.unit, paper) for name in ("low", "high"))
        spread = f"median of {record['n']}, quartiles {low} to {high}; "
    where = f"{on['device']} ({on['processor']}, {on['cores']} cores), jax {on['versions']['jax']}"
    about = f"{spread}{record['ratio']:.2f} times NoPE's; {where}"
    return Entry(label, column.label, (record["value"] / column.unit,), paper, about=about)


def _entry(label: str, column: Column, paper: str, planned: Sequence[Job], read: Callable[[Job], Shown]) -> Entry:
    if column.missing:
        return Entry(label, column.label, (), paper, column.missing)
    if paper == DASH:
        return Entry(label, column.label, (), paper, "not measurable")
    if column.quantity:
        return Entry(label, column.label, (QUANTITIES[column.quantity](planned[0].config),), paper)
    values: list[float] = []
    said: dict[bool, list[str]] = {True: [], False: []}  # of what has a value; of what has none
    for job in planned:
        value, note = _measured(column, job, read(job))
        values += [] if value is None else [value / column.unit]
        said[value is not None] += [f"seed {job.seed}: {note}" if len(planned) > 1 else note] if note else []
    return Entry(label, column.label, tuple(values), paper, note="; ".join(said[False]), about="; ".join(said[True]))


def _measured(column: Column, job: Job, shown: Shown) -> tuple[float | None, str]:
    """A seed's value and a remark on it, or why there is none."""
    assert column.evaluation is not None
    found = parts(column.evaluation, job, shown)
    there = {at: part for at, part in found.items() if column.depth is None or column.depth == at[0]}
    if not any(part.cells for part in there.values()):
        return None, _stopped(column.evaluation, job, shown) or MISSING
    if column.evaluation.grouped:
        return _answered(there, column.evaluation)
    count, wanted = sum(min(part.n, part.wanted) for part in there.values()), sum(p.wanted for p in there.values())
    if count < wanted:
        return None, f"{count} of {wanted} samples"
    more = sum(part.n for part in there.values())
    return _mean(there, column.position), f"{more} samples, of which {wanted} are asked for" if more > wanted else ""


def _mean(found: Mapping[Any, Part], position: int = 0) -> float:
    """The mean over parts, each of which counts as often as samples of it are asked for."""
    values = [_window(part.cells, position) if position else results.mean(part.cells) for part in found.values()]
    return float(np.average(values, weights=[part.wanted for part in found.values()]))


def _window(cells: Sequence[results.Cell], position: int) -> float:
    """The perplexity of the window of positions that ends at one.

    Raises:
        UserError: the windows that were measured end elsewhere.
    """
    cell = cells[0]
    if position % cell["window"] or position > cell["length"]:
        raise UserError(
            f"no window of {cell['window']} positions in {cell['length']} ends at {position}; give the column a position "
            f"that is a multiple of {cell['window']}, the run's context"
        )
    losses = [cell["windows"][position // cell["window"] - 1] for cell in cells]
    return math.exp(np.average(losses, weights=[cell["n"] for cell in cells]))


def parts(evaluation: Evaluation, job: Job, shown: Shown) -> dict[tuple[float | None, str], Part]:
    """What a run's trained model showed in an evaluation of a single length, by depth and task.

    Args:
        evaluation: of a column.
        job: the row with a seed.
        shown: by its run.
    """
    cells = [cell for cell in shown.cells if cell["step"] == job.config.steps]
    overrides = {**evaluation.overrides, **job.row.changes}
    return results.parts(cells, evaluation, evaluation.lengths[0], job.config, overrides)


def _stopped(evaluation: Evaluation, job: Job, shown: Shown) -> str:
    """What the run says of a length that was left out; "" if nothing.

    It holds for those who ask for no more patience, and for the very prompts that were not answered.
    """
    overrides = {**evaluation.overrides, **job.row.changes}
    for record in shown.stops:
        mine = evaluation.asks({**record, "eval": record["of"]}, job.config, overrides)
        if (
            mine
            and record["step"] == job.config.steps
            and evaluation.lengths[0] in record["lengths"]
            and evaluation.gives_up(len(record["after"]))
            and all(_empty(dataclasses.replace(evaluation, lengths=(n,)), job, shown) for n in record["after"])
        ):
            after = " and ".join(f"{length:,}" for length in record["after"])
            return f"{GIVEN_UP}: no prompt answered at {after} tokens"
    return ""


def _empty(evaluation: Evaluation, job: Job, shown: Shown) -> bool:
    """Whether all that an evaluation asks for was measured, and nothing was right."""
    found = parts(evaluation, job, shown).values()
    return all(part.n >= part.wanted and not results.mean(part.cells) for part in found)


def _answered(found: Mapping[tuple[float | None, str], Part], evaluation: Evaluation) -> tuple[float | None, str]:
    """The value of a benchmark, whose questions weigh the same; without those that were skipped, of which a note tells."""
    there = {at: part for at, part in found.items() if part.cells}
    count, wanted = sum(min(part.n, part.wanted) for part in there.values()), sum(p.wanted for p in there.values())
    part = f"{len(there)} of {len(found)} tasks"
    if count < wanted:
        return None, f"{count} of {wanted} questions of {part}"
    if evaluation.skips_samples:
        return _mean(there), f"{count} questions of {part}"
    return (_mean(there), "") if len(there) == len(found) else (None, part)


def cells(entry: Entry, *, comparable: bool) -> list[str]:
    """An entry as it is printed, a text for each of `HEAD`.

    Args:
        entry: the cell.
        comparable: whether the difference means anything.
    """
    paper, mean = number(entry.paper), entry.mean
    if mean is None:
        return [entry.row, entry.column, entry.note, entry.paper, "", ""]
    spread = f" ({_digits(min(entry.ours), entry.paper)} to {_digits(max(entry.ours), entry.paper)})"
    spread = spread if len(entry.ours) > 1 else ""
    seeds = "; ".join(text for text in (f"{len(entry.ours)}{spread}", entry.note, entry.about) if text)
    difference = ""
    if paper is not None and comparable:
        difference = _digits(mean - float(paper), entry.paper, sign="+")
    return [entry.row, entry.column, _digits(mean, entry.paper), entry.paper, difference, seeds]


def _digits(value: float, printed: str, sign: str = "") -> str:
    """A value with as many decimals as the paper prints, or two digits where those would all be 0."""
    decimals = re.fullmatch(r"[~<>]?\d+(?:\.(\d+))?(?: ±.*)?", printed)
    if decimals is not None:
        text = f"{value:{sign}.{len(decimals[1] or '')}f}"
        return text if float(text) or not value else f"{value:{sign}.2g}"
    if not printed and abs(value) < 1000:
        return f"{value:{sign}.2f}" if abs(value) >= 0.1 or not value else f"{value:{sign}.3g}"
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.4g}"


def sections(made: Experiment, folder: Path) -> Iterator[Section]:
    """For each table a grid "ours (paper)", and then cell by cell.

    Args:
        made: the experiment.
        folder: of the runs.
    """
    for table in made.tables:
        yield from pair(table, made, compare(table, made, folder))
    yield from notes(made)


def pair(table: Table, made: Experiment, entries: Sequence[Entry]) -> tuple[Section, Section]:
    """A grid "ours (paper)", and the same cell by cell.

    Args:
        table: of the experiment.
        made: the experiment.
        entries: the table's.
    """
    lines = [cells(entry, comparable=made.comparable) for entry in entries]
    width = len(table.columns)
    grid = [
        [label, *(_short(entry, line) for entry, line in zip(entries[start:][:width], lines[start:], strict=False))]
        for label, start in zip(table.values, range(0, len(lines), width), strict=True)
    ]
    there = sum(bool(entry.ours) for entry in entries)
    text = f"{there} of {len(entries)} cells measured. Ours (paper)."
    if any(GIVEN_UP in entry.note for entry in entries):
        text = f"{text} {LEGEND}"
    whole = Section(table.title, text, table=page.Table(["", *(each.label for each in table.columns)], grid))
    return whole, Section(f"{table.title}: cell by cell", table=page.Table(HEAD, lines), folded=True)


def notes(made: Experiment) -> Iterator[Section]:
    """What the experiment's numbers say and do not say, if it says so."""
    if made.notes:
        yield Section("What these numbers say, and what they do not", items=made.notes)


def _short(entry: Entry, line: Sequence[str]) -> str:
    ours = line[2] if entry.ours else "…" if entry.paper != DASH else ""
    if not entry.ours and GIVEN_UP in entry.note:
        ours = GIVEN_UP
    return f"{ours} ({entry.paper})".strip() if entry.paper else ours


def to_csv(made: Experiment, folder: Path) -> str:
    """All tables of an experiment as one CSV file.

    Args:
        made: the experiment.
        folder: of the runs.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", "row", "column", "ours", "paper", "difference", "seeds", "least", "most", "note"])
    for table in made.tables:
        for entry in compare(table, made, folder):
            paper, mean = number(entry.paper), entry.mean
            difference = "" if paper is None or mean is None or not made.comparable else mean - float(paper)
            spread = [min(entry.ours), max(entry.ours)] if entry.ours else ["", ""]
            ours = "" if mean is None else mean
            rest = [entry.paper, difference, len(entry.ours), *spread, entry.note or entry.about]
            writer.writerow([table.title, entry.row, entry.column, ours, *rest])
    return file.getvalue()
