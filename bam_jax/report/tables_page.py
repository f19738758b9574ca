"""The page of a paper's tables beside our runs, ours | paper | difference | seeds (spread), as Markdown, HTML and CSV."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bam_jax.experiments import experiment, results
from bam_jax.experiments.experiment import DASH, Experiment, Table
from bam_jax.experiments.tables import Entry, Outcome, State, compare, parse_number
from bam_jax.render import page
from bam_jax.render.page import Section
from bam_jax.system.errors import UserError
from bam_jax.system.files import write_atomically

HEAD = ("row", "column", "ours", "paper", "difference", "seeds (spread)")
CSV_HEAD = ("table", "row", "column", "ours", "paper", "difference", "seeds", "least", "most", "note")
GIVEN_UP = "0 (stopped)"
LEGEND = f"{GIVEN_UP}: not measured, since no prompt was answered at the lengths before."
WORDS = {State.MISSING: "missing", State.STOPPED: GIVEN_UP, State.UNMEASURABLE: "not measurable"}
"""States that have words of their own; the remark says the others."""


def write(files: Sequence[str], runs: Path, out: Path, scale: str | None) -> Iterator[tuple[Path, str]]:
    """Writes the tables of experiments, each as NAME.md, NAME.html and NAME.csv.

    Args:
        files: experiments with tables of a paper.
        runs: their folder.
        out: the folder of the files.
        scale: "toy" or "paper"; None: toy.

    Yields:
        the path of an experiment's files without their suffix, and its Markdown.

    Raises:
        UserError: an experiment without tables, no folder of runs, or a file that cannot be read.
    """
    loaded = {path: experiment.load(path, runs=runs, scale=scale) for path in files}
    for path, made in loaded.items():
        if not made.tables:
            raise UserError(f"{path} has no tables of a paper; python -m bam_jax.report says what its runs found")
    columns = [column for made in loaded.values() for table in made.tables for column in table.columns]
    if any(column.evaluation or column.speed for column in columns):
        results.require_folder(runs)
    for path, made in loaded.items():
        entries = [compare(table, made, runs) for table in made.tables]
        sections = tables_sections(made, entries)
        name = out / f"{Path(path).stem}-{scale or experiment.SCALES[0]}"
        markdown = page.to_markdown(made.title, sections)
        texts = {"md": markdown, "html": page.to_html(made.title, sections), "csv": to_csv(made, entries)}
        out.mkdir(parents=True, exist_ok=True)
        for suffix, text in texts.items():
            write_atomically(Path(f"{name}.{suffix}"), text)
        yield name, markdown


def tables_sections(made: Experiment, entries: Sequence[Sequence[Entry]]) -> list[Section]:
    """For each table a grid "ours (paper)", then the same cell by cell; at last the notes.

    Args:
        made: the experiment.
        entries: the cells of each of its tables.
    """
    sections: list[Section] = []
    for table, cells in zip(made.tables, entries, strict=True):
        sections += table_sections(table, cells, comparable=made.comparable)
    return sections + notes_sections(made)


def table_sections(table: Table, entries: Sequence[Entry], *, comparable: bool) -> tuple[Section, Section]:
    """A grid "ours (paper)", and the same cell by cell.

    Args:
        table: of an experiment.
        entries: its cells.
        comparable: whether a difference from the paper means anything.
    """
    width = len(table.columns)
    grid = [
        [label, *(_in_grid(entry) for entry in entries[start : start + width])]
        for label, start in zip(table.values, range(0, len(entries), width), strict=True)
    ]
    text = f"{sum(bool(entry.ours) for entry in entries)} of {len(entries)} cells measured. Ours (paper)."
    if any(entry.stopped for entry in entries):
        text = f"{text} {LEGEND}"
    whole = Section(table.title, text, table=page.Table(["", *(each.label for each in table.columns)], grid))
    lines = [entry_line(entry, comparable=comparable) for entry in entries]
    return whole, Section(f"{table.title}: cell by cell", table=page.Table(HEAD, lines), folded=True)


def notes_sections(made: Experiment) -> list[Section]:
    """The section of an experiment's notes, if it has any."""
    return [Section("What these numbers say, and what they do not", items=made.notes)] if made.notes else []


def _in_grid(entry: Entry) -> str:
    if entry.mean is not None:
        ours = format_value(entry.mean, entry.paper)
    elif entry.stopped:
        ours = GIVEN_UP
    else:
        ours = "" if entry.paper == DASH else "…"
    return f"{ours} ({entry.paper})".strip() if entry.paper else ours


def entry_line(entry: Entry, *, comparable: bool) -> list[str]:
    """An entry as it is printed, a text for each of `HEAD`.

    Args:
        entry: the cell.
        comparable: whether the difference means anything.
    """
    row, column, mean = entry.row, entry.column.label, entry.mean
    if mean is None:
        return [row, column, _remarks(entry, measured=False), entry.paper, "", ""]
    paper = parse_number(entry.paper)
    difference = ""
    if paper is not None and comparable:
        difference = format_value(mean - float(paper), entry.paper, sign="+")
    seeds = f"{len(entry.ours)}"
    if len(entry.ours) > 1:
        least, most = (format_value(value, entry.paper) for value in (min(entry.ours), max(entry.ours)))
        seeds = f"{seeds} ({least} to {most})"
    remarks = [_remarks(entry, measured=False), _remarks(entry, measured=True)]
    seeds = "; ".join([seeds, *filter(None, remarks)])
    return [row, column, format_value(mean, entry.paper), entry.paper, difference, seeds]


def _remarks(entry: Entry, *, measured: bool) -> str:
    """The remarks on the seeds that have a value, or on those that have none."""
    said = []
    for outcome in entry.outcomes:
        if (outcome.state is State.MEASURED) == measured:
            words = _describe(outcome, entry)
            # One seed alone needs no number.
            said += [f"seed {outcome.seed}: {words}" if len(entry.outcomes) > 1 else words] if words else []
    return "; ".join(said)


def _describe(outcome: Outcome, entry: Entry) -> str:
    """An outcome in words; "" where its value says all."""
    if outcome.speed is not None:
        return _describe_speed(outcome, entry)
    word = WORDS[outcome.state] if outcome.state in WORDS else ""
    return ": ".join(filter(None, [word, outcome.remark]))


def _describe_speed(outcome: Outcome, entry: Entry) -> str:
    """The quartiles, the ratio to NoPE and the machine of a speed."""
    record = outcome.speed
    assert record is not None
    machine = record["machine"]
    spread = ""
    if "low" in record:  # a memory is measured once and has none
        low, high = (format_value(record[name] / entry.column.unit, entry.paper) for name in ("low", "high"))
        spread = f"median of {record['n']}, quartiles {low} to {high}; "
    place = f"{machine['device']} ({machine['processor']}, {machine['cores']} cores), jax {machine['versions']['jax']}"
    return f"{spread}{record['ratio']:.2f} times NoPE's; {place}"


def format_value(value: float, printed: str, sign: str = "") -> str:
    """A value with as many decimals as the paper prints, or two digits where those would all be 0.

    >>> format_value(1.2345, "1.74"), format_value(0.00413, "1.74"), format_value(0.5, "1.74", sign="+")
    ('1.23', '0.0041', '+0.50')

    Args:
        value: ours.
        printed: the paper's; of nothing and of products a readable number of digits follows.
        sign: "+" where a positive number shows its sign.
    """
    decimals = re.fullmatch(r"[~<>]?\d+(?:\.(\d+))?(?: ±.*)?", printed)
    if decimals is not None:
        text = f"{value:{sign}.{len(decimals[1] or '')}f}"
        return text if float(text) or not value else f"{value:{sign}.2g}"
    if not printed and abs(value) < 1000:
        return f"{value:{sign}.2f}" if abs(value) >= 0.1 or not value else f"{value:{sign}.3g}"
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.4g}"


def to_csv(made: Experiment, entries: Sequence[Sequence[Entry]]) -> str:
    """All tables of an experiment as one CSV file.

    Args:
        made: the experiment.
        entries: the cells of each of its tables.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for table, cells in zip(made.tables, entries, strict=True):
        for entry in cells:
            paper, mean = parse_number(entry.paper), entry.mean
            difference = "" if paper is None or mean is None or not made.comparable else mean - float(paper)
            ours = ["" if mean is None else mean, entry.paper, difference, len(entry.ours)]
            spread = [min(entry.ours), max(entry.ours)] if entry.ours else ["", ""]
            note = _remarks(entry, measured=False) or _remarks(entry, measured=True)
            writer.writerow([table.title, entry.row, entry.column.label, *ours, *spread, note])
    return file.getvalue()
