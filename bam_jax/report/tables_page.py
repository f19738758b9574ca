"""The page of a paper's tables beside our values, as Markdown, HTML and CSV."""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from bam_jax.experiments import experiment, results
from bam_jax.experiments.experiment import DASH, Column, Experiment, Table
from bam_jax.experiments.statistics import Kind
from bam_jax.experiments.tables import Entry, Outcome, State, compare, parse_number
from bam_jax.render import style
from bam_jax.report import page
from bam_jax.report.figures import draw_curves
from bam_jax.report.format import cell_formatter, cell_value, describe_interval, end_formatter, format_value
from bam_jax.report.page import Estimated, Section, Words
from bam_jax.system.errors import UserError
from bam_jax.system.files import keep_other, write_atomically

HEAD = ("row", "column", "ours", "95% interval", "paper", "ours - paper", "seeds")
CSV_HEAD = ("table", "row", "column", "ours", "low", "high", "paper", "difference", "seeds", "values", "note")
GIVEN_UP = "0 (stopped)"
MEANS = """Several training seeds: their mean (of perplexities the geometric one), its 95% t interval and their number n, in the
corner where all cells have the same; the error of an accuracy is at least that of its prompts. Every seed's value stands cell
by cell."""
COMPARED = "In brackets the paper's value."
NOT_COMPARED = "The paper's values, which models of this size cannot be held against, stand cell by cell."
HERE = "A column has the paper's name, and below it the tokens here."
LEGEND = f"{GIVEN_UP}: not measured, since no prompt was answered at the lengths before."
SEEDLESS = (Kind.SPEED, Kind.CONFIGURATION)
PROVENANCE = "Where the models were trained"
WORDS = {State.MISSING: "missing", State.STOPPED: GIVEN_UP, State.UNMEASURABLE: "not measurable"}
"""The words for some states; others have a remark."""


def write(
    files: Sequence[str], runs: Path, out: Path, scale: str | None, records: str | None = None
) -> Iterator[tuple[Path, str]]:
    """Writes the tables of experiments as NAME.md, NAME.html and NAME.csv, and yields each path of NAME and its Markdown."""
    for path, made, entries in _compare_all(files, runs, scale, records):
        sections = tables_sections(made, entries, runs)
        name = out / f"{Path(path).stem}-{scale or experiment.SCALES[0]}"
        markdown = page.to_markdown(made.heading, sections)
        texts = {"html": page.to_html(made.heading, sections), "md": markdown, "csv": to_csv(made, entries)}
        written = [Path(f"{name}.{suffix}") for suffix in texts]
        # Text and CSV files have no mark: they belong to this command only if its page is next to them.
        for file in written[:1] if written[0].exists() else written:
            keep_other(file, page.HEAD)
        out.mkdir(parents=True, exist_ok=True)
        for file, text in zip(written, texts.values(), strict=True):  # the page first
            write_atomically(file, text)
        yield name, markdown


def grids_to_markdown(files: Sequence[str], runs: Path, scale: str | None, records: str | None = None) -> Iterator[str]:
    """The tables of experiments as Markdown, each a title and a grid; arguments as in `write`."""
    for _, made, compared in _compare_all(files, runs, scale, records):
        for table, entries in zip(made.tables, compared, strict=True):
            grid = _grid(table, entries, comparable=made.comparable)
            yield f"{table.title}\n\n{page.table_to_markdown(grid)}\n"


def draw(files: Sequence[str], runs: Path, out: Path, scale: str | None, records: str | None = None) -> Iterator[Path]:
    """Draws the tables over lengths or positions as NAME.svg, NAME-2.svg ..., and yields their paths; see `write`."""
    for path, made, compared in _compare_all(files, runs, scale, records):
        both = zip(made.tables, compared, strict=True)
        drawn = [(each, figure) for each in both if (figure := draw_curves(made, *each)) is not None]
        for number, (each, figure) in enumerate(drawn, start=1):
            if len(drawn) > 1:
                _entitle(figure, *each)
            name = f"{Path(path).stem}-{scale or experiment.SCALES[0]}{f'-{number}' if number > 1 else ''}.svg"
            out.mkdir(parents=True, exist_ok=True)
            style.keep_other(out / name)
            style.save(figure, out / name)
            yield out / name


@style.styled
def _entitle(figure: style.Figure, table: Table, entries: Sequence[Entry]) -> None:
    """Adds a table's title to its curves, with the number of seeds if all cells have the same."""
    counts = {len(entry.by_seed) for entry in entries if cell_value(entry) is not None}
    seeds = f", n={max(counts)}" if len(counts) == 1 else ""
    figure.suptitle(f"{style.plain(table.title, 60)}{seeds}", x=0.02, ha="left", fontsize=9)


def _compare_all(
    files: Sequence[str], runs: Path, scale: str | None, records: str | None
) -> Iterator[tuple[str, Experiment, list[list[Entry]]]]:
    loaded = {path: experiment.load(path, runs=runs, scale=scale, records=records) for path in files}
    for path, made in loaded.items():
        if not made.tables:
            raise UserError(f"{path} has no tables of a paper; python -m bam_jax.report says what its runs found")
    columns = [column for made in loaded.values() for table in made.tables for column in table.columns]
    if any(column.evaluation or column.speed for column in columns):
        if not runs.is_dir() and not any(made.records and made.records.exists() for made in loaded.values()):
            raise UserError(
                f"there is no folder {runs}; make runs with python -m bam_jax.sweep, or give theirs with --runs"
            )
    for path, made in loaded.items():
        yield path, made, [compare(table, made, runs) for table in made.tables]


def tables_sections(made: Experiment, entries: Sequence[Sequence[Entry]], runs: Path) -> list[Section]:
    """The legend of the tables, each table as a grid and cell by cell, and the notes."""
    sections = reading_sections(made, entries)
    for table, cells in zip(made.tables, entries, strict=True):
        sections += table_sections(table, cells, comparable=made.comparable)
    return sections + notes_sections(made, runs)


def table_sections(table: Table, entries: Sequence[Entry], *, comparable: bool) -> tuple[Section, Section]:
    """A grid of our values, with the paper's in brackets if they are comparable, and the same values cell by cell."""
    asked = [entry for entry in entries if entry.asked or entry.ours]  # parameters are counted unasked
    unasked = len(entries) - len(asked)
    others = f"; of {unasked} others nothing is asked at this scale" if unasked else ""
    text = f"{sum(bool(entry.ours) for entry in asked)} of {len(asked)} cells measured{others}."
    whole = Section(table.title, text, table=_grid(table, entries, comparable=comparable))
    lines = [entry_line(entry, comparable=comparable) for entry in entries]
    return whole, Section(f"{table.title}: cell by cell", table=page.Table(HEAD, lines), folded=True)


def reading_sections(made: Experiment, entries: Sequence[Sequence[Entry]]) -> list[Section]:
    """A folded section on the signs in the tables; none if they have none."""
    cells = [entry for table in entries for entry in table]
    heads = [_head(column, comparable=made.comparable) for table in made.tables for column in table.columns]
    used = {
        COMPARED if made.comparable else NOT_COMPARED: any(entry.paper for entry in cells),
        HERE: any(isinstance(head, Estimated) for head in heads),
        MEANS: any(entry.interval for entry in cells),
        LEGEND: any(entry.stopped for entry in cells),
        style.COLOUR_KEY: bool(cells),
    }
    items = [" ".join(words.split()) for words, is_used in used.items() if is_used]
    return [Section("The signs in the tables", items=items, folded=True)] if items else []


def notes_sections(made: Experiment, runs: Path) -> list[Section]:
    said = {
        "What these numbers say, and what they do not": made.notes,
        PROVENANCE: results.describe_provenance(results.read_provenance(made, runs).values()),
    }
    return [Section(title, items=items) for title, items in said.items() if items]


def _grid(table: Table, entries: Sequence[Entry], *, comparable: bool) -> page.Table:
    counts = {len(entry.by_seed) for entry in entries if cell_value(entry) is not None and entry.kind not in SEEDLESS}
    common = len(counts) == 1 and max(counts) > 1  # then the number of seeds is shown once, in the corner
    rows: list[list[Words]] = [[label] for label in table.values]
    for number, entry in enumerate(entries):
        rows[number // len(table.columns)].append(_in_grid(entry, comparable=comparable, counted=not common))
    corner = f"n={max(counts)}" if common else ""
    return page.Table([corner, *(_head(each, comparable=comparable) for each in table.columns)], rows)


def _head(column: Column, *, comparable: bool) -> Words:
    """A column's name; below a length of the paper that these models do not use, their own length."""
    tokens = None if comparable else own_tokens(column)
    return column.label if tokens is None else Estimated(column.label, f"{tokens:,}")


def own_tokens(column: Column) -> int | None:
    """The tokens of a column whose name is a length of the paper; None for other columns."""
    if column.evaluation is None or not re.fullmatch(r"[<>~]?[\d.,]+[KM]?", column.label):
        return None
    return column.position or column.evaluation.lengths[0]


def _in_grid(entry: Entry, *, comparable: bool, counted: bool) -> Words:
    paper = f" ({entry.paper})" if entry.paper and comparable else ""
    value = cell_value(entry)
    if value is None:
        ours = GIVEN_UP if entry.stopped else entry.paper if entry.paper == DASH else "…"
        return f"{ours}{paper if entry.paper != DASH else ''}"
    shown = cell_formatter(entry)(value)
    if entry.kind in SEEDLESS:
        return f"{shown}{paper}"
    n = len(entry.by_seed) if counted else None
    return Estimated(f"{shown}{paper}", describe_interval(entry.interval, n, end_formatter(shown)))


def entry_line(entry: Entry, *, comparable: bool) -> list[str]:
    """A cell as texts, one for each of `HEAD`."""
    row, column, value = entry.row, entry.column.label, cell_value(entry)
    if value is None:
        return [row, column, _remarks(entry, measured=False), "", entry.paper, "", ""]
    show = cell_formatter(entry)
    paper, difference, interval = parse_number(entry.paper), "", ""
    if paper is not None and comparable:
        difference = format_value(value - float(paper), entry.paper, sign="+")
    if entry.interval:
        end = end_formatter(show(value))
        interval = f"{end(entry.interval.low)} to {end(entry.interval.high)}"
    seeds = f"{len(entry.by_seed)}"
    if len(entry.by_seed) > 1:
        seeds = f"{seeds} ({', '.join(f'{seed}: {show(own)}' for seed, own in entry.by_seed.items())})"
    remarks = [_remarks(entry, measured=False), _remarks(entry, measured=True)]
    seeds = "; ".join([seeds, *filter(None, remarks)])
    return [row, column, show(value), interval, entry.paper, difference, seeds]


def _remarks(entry: Entry, *, measured: bool) -> str:
    said: dict[str, list[str]] = defaultdict(list)
    for outcome in entry.outcomes:
        if (outcome.state is State.MEASURED) == measured:
            said[_describe(outcome, entry)].append(f"{outcome.seed}")
    # A remark that applies to all seeds does not list them.
    return "; ".join(
        words if len(seeds) == len(entry.outcomes) else f"seed {', '.join(seeds)}: {words}"
        for words, seeds in said.items()
        if words
    )


def _describe(outcome: Outcome, entry: Entry) -> str:
    if outcome.speed is not None:
        return _describe_speed(outcome, entry)
    word = WORDS[outcome.state] if outcome.state in WORDS else ""
    return ": ".join(filter(None, [word, outcome.remark]))


def _describe_speed(outcome: Outcome, entry: Entry) -> str:
    record = outcome.speed
    assert record is not None
    machine = record["machine"]
    spread = ""
    if "low" in record:  # a memory is measured once and has none
        low, high = (format_value(record[name] / entry.column.unit, entry.paper) for name in ("low", "high"))
        spread = f"median of {record['n']}, quartiles {low} to {high}; "
    place = f"{machine['device']} ({machine['processor']}, {machine['cores']} cores)"
    place += f", jax {machine['versions'].get('jax', 'of no version')}"
    return f"{spread}{record['ratio']:.2f} times NoPE's; {place}"


def to_csv(made: Experiment, entries: Sequence[Sequence[Entry]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for table, cells in zip(made.tables, entries, strict=True):
        for entry in cells:
            paper, value, seeds = parse_number(entry.paper), cell_value(entry), entry.by_seed if entry.ours else {}
            difference = "" if paper is None or value is None or not made.comparable else value - float(paper)
            ends = [entry.interval.low, entry.interval.high] if entry.ours and entry.interval else ["", ""]
            ours = ["" if value is None else value, *ends, entry.paper, difference]
            values = " ".join(f"{seed}:{own}" for seed, own in seeds.items())
            note = _remarks(entry, measured=False) or _remarks(entry, measured=True)
            writer.writerow([table.title, entry.row, entry.column.label, *ours, len(seeds), values, note])
    return file.getvalue()
