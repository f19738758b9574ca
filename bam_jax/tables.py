"""A paper's tables beside what our runs measured: ours | paper | difference | seeds (spread), as Markdown, CSV and HTML.

python -m bam_jax.tables experiments/cable_table*.py [--scale=paper] [--runs=runs] [--out=FOLDER]

What has not been measured, or only in part, is marked and never filled in.
"""

import csv
import dataclasses
import io
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax import budget, comparisons, errors, experiment, jobs, log, page, results
from bam_jax.config import Config
from bam_jax.data import benchmarks, ruler
from bam_jax.errors import UserError
from bam_jax.experiment import DASH, Column, Evaluation, Experiment, Table
from bam_jax.jobs import Job
from bam_jax.page import Section

HEAD = ("row", "column", "ours", "paper", "difference", "seeds (spread)")
MISSING = "missing"
GIVEN_UP = "0 (stopped)"
LEGEND = f"{GIVEN_UP}: not measured, since no prompt was answered at the lengths before."

QUANTITIES: Mapping[str, Callable[[Config], float]] = {
    "embedding_parameters": lambda config: budget.parameters(config).embedding,
    "transformer_parameters": lambda config: budget.parameters(config).transformer,
    "prior_parameters": lambda config: budget.parameters(config).prior,
    "trained_prior_parameters": lambda config: budget.parameters(config).trained_prior,
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
    planned = jobs.each(made)
    timed = comparisons.found(made, table, folder)
    found = []
    for label in table.values:
        mine = [job for job in planned if job.row.label == table.row(label)]
        for column, paper in table.cells(label):
            if column.timed:
                found.append(_timed(label, column, paper, timed))
            else:
                found.append(_entry(label, column, paper, mine, folder))
    return found


def _timed(label: str, column: Column, paper: str, timed: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> Entry:
    assert column.evaluation is not None
    at = label, column.evaluation.measure, column.evaluation.lengths[0]
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


def _entry(label: str, column: Column, paper: str, planned: Sequence[Job], folder: Path) -> Entry:
    if column.missing:
        return Entry(label, column.label, (), paper, column.missing)
    if paper == DASH:
        return Entry(label, column.label, (), paper, "not measurable")
    if column.quantity:
        return Entry(label, column.label, (QUANTITIES[column.quantity](planned[0].config),), paper)
    values: list[float] = []
    said: dict[bool, list[str]] = {True: [], False: []}  # of what has a value; of what has none
    for job in planned:
        value, note = _measured(column, job, folder / job.name)
        values += [] if value is None else [value / column.unit]
        said[value is not None] += [f"seed {job.seed}: {note}" if len(planned) > 1 else note] if note else []
    return Entry(label, column.label, tuple(values), paper, note="; ".join(said[False]), about="; ".join(said[True]))


def _measured(column: Column, job: Job, run: Path) -> tuple[float | None, str]:
    """A seed's value and a remark on it, or why there is none."""
    assert column.evaluation is not None
    cells = [cell for cell in records(column.evaluation, job, run) if column.depth in (None, cell["depth"])]
    if not cells:
        return None, _stopped(column.evaluation, job, run) or MISSING
    if column.evaluation.name == "harness":
        return _answered(cells, column.evaluation)
    count, wanted = sum(cell["n"] for cell in cells), _wanted(column)
    if count < wanted:
        return None, f"{count} of {wanted} samples"
    if not column.position:
        return results.mean(cells), ""
    window = column.position // cells[0]["window"] - 1
    losses = [cell["windows"][window] for cell in cells]
    return math.exp(np.average(losses, weights=[cell["n"] for cell in cells])), ""


def records(evaluation: Evaluation, job: Job, run: Path) -> list[results.Cell]:
    """What a run's trained model showed in an evaluation of a single length, all depths of it.

    Args:
        evaluation: of a column.
        job: the row with a seed.
        run: its folder.

    Raises:
        UserError: the run's results cannot be read.
    """
    overrides = (*evaluation.overrides, *job.row.changes)
    return [
        cell
        for cell in results.records(run)
        if _belongs(cell, evaluation, overrides) and cell["step"] == job.config.steps
    ]


def _stopped(evaluation: Evaluation, job: Job, run: Path) -> str:
    """What the run says of a length that was left out; "" if nothing."""
    overrides = (*evaluation.overrides, *job.row.changes)
    for record in results.stops(run):
        at = {"eval": record["of"], "length": evaluation.lengths[0]}
        mine = _belongs(record | at, evaluation, overrides) and record["step"] == job.config.steps
        if mine and evaluation.lengths[0] in record["lengths"]:
            after = " and ".join(f"{length:,}" for length in record["after"])
            return f"{GIVEN_UP}: no prompt answered at {after} tokens"
    return ""


def _answered(cells: Sequence[results.Cell], evaluation: Evaluation) -> tuple[float | None, str]:
    """The value of a benchmark, whose questions weigh the same; without those that were skipped, of which a note tells."""
    asked = dict.fromkeys(benchmarks.leaves(evaluation.tasks), 0)
    there = {}
    for cell in cells:
        asked[cell["task"]] += cell["n"]
        there[cell["task"]] = min(cell["of"], evaluation.questions)
    count, wanted = sum(asked.values()), sum(there.values())
    part = f"{len(there)} of {len(asked)} tasks"
    if count < wanted:
        return None, f"{count} of {wanted} questions of {part}"
    if evaluation.longer == "skip":
        return results.mean(cells), f"{count} questions of {part}"
    return (results.mean(cells), "") if len(there) == len(asked) else (None, part)


def _belongs(cell: Mapping[str, Any], evaluation: Evaluation, overrides: Sequence[str]) -> bool:
    asked: dict[str, Any] = {}
    if evaluation.name == "harness":
        asked = {name: getattr(evaluation, name) for name in ("shots", "data", "longer")}
    if evaluation.name in ("passkey", "ruler"):
        asked["seed"] = evaluation.seed
    if evaluation.name == "ruler":
        asked["task"] = evaluation.tasks[0]
        if ruler.TASKS[evaluation.tasks[0]].haystack == "essay":
            asked["essays"] = evaluation.essays
    return (
        cell["eval"] == evaluation.name
        and cell["length"] == evaluation.lengths[0]
        and (evaluation.name != "harness" or cell["task"] in benchmarks.leaves(evaluation.tasks))
        and cell["overrides"] == dict(each.removeprefix("--config.").split("=", 1) for each in overrides)
        and all(cell[option] == value for option, value in asked.items())
    )


def _wanted(column: Column) -> int:
    """Samples that make a cell whole; of perplexity only the run knows how many there are."""
    evaluation = column.evaluation
    assert evaluation is not None
    depths = evaluation.depths if column.depth is None else 1
    return {"passkey": depths * evaluation.trials, "perplexity": 1, "ruler": evaluation.samples}[evaluation.name]


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


def main(argv: Sequence[str]) -> None:
    """Prints the tables of experiments and writes them into files.

    Raises:
        UserError: bad arguments, no tables in the experiment, or a file that cannot be read.
    """
    parser = errors.Parser(prog="python -m bam_jax.tables", description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="+", metavar="experiment", help="Python files with get_experiment()")
    parser.add_argument("--scale", help="toy (the default) or paper")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (runs)")
    parser.add_argument("--out", type=Path, help="folder of the files (default: tables, in that of the runs)")
    given = parser.parse_args(argv)
    loaded = {path: experiment.load(path, runs=given.runs, scale=given.scale) for path in given.experiments}
    for path, made in loaded.items():
        if not made.tables:
            raise UserError(f"{path} has no tables of a paper; python -m bam_jax.report says what its runs found")
    if any(column.evaluation for made in loaded.values() for table in made.tables for column in table.columns):
        results.there(given.runs)
    out = given.out or given.runs / "tables"
    for path, made in loaded.items():
        parts = list(sections(made, given.runs))
        name = f"{Path(path).stem}-{given.scale or experiment.SCALES[0]}"
        markdown = page.to_markdown(made.title, parts)
        out.mkdir(parents=True, exist_ok=True)
        texts = {"md": markdown, "html": page.to_html(made.title, parts), "csv": to_csv(made, given.runs)}
        for suffix, text in texts.items():
            log.replace(out / f"{name}.{suffix}", text)
        sys.stdout.write(markdown)
        print(f"wrote {out / name}.md, .html and .csv", file=sys.stderr)


if __name__ == "__main__":
    errors.run(main)
