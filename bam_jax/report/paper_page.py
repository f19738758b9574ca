"""The page of an experiment with a paper's tables: progress, findings, tables and figures."""

import dataclasses
import enum
import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bam_jax import render
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.records import Cell
from bam_jax.experiments import jobs, results, statistics, tables
from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import Run
from bam_jax.experiments.statistics import Kind
from bam_jax.experiments.tables import Entry
from bam_jax.render.maps import Grid
from bam_jax.report import page
from bam_jax.report.figures import describe_grids, draw_curves, make_grid, passkey_floor, short_task
from bam_jax.report.format import cell_formatter, cell_value, describe_interval, end_formatter, with_interval
from bam_jax.report.page import Link, Section, Words
from bam_jax.report.run_page import describe_training
from bam_jax.report.tables_page import notes_sections, own_tokens, reading_sections, table_sections

KINDS = {
    Kind.ACCURACY: "finds most",
    Kind.PERPLEXITY: "has the lowest perplexity",
    Kind.LOSS: "has the lowest loss",
    Kind.GAIN: "gains most",
}
"""Kinds of values that rank rows, with the predicate for the best row."""


class Status(enum.Enum):
    """The progress of an experiment, with a sign that does not depend on colours."""

    DONE = "● done"
    PART = "◐ in part"
    MISSING = "○ missing"
    NOTHING = "– nothing to measure"


@dataclasses.dataclass(frozen=True)
class Progress:
    """An experiment with a paper's tables, and the cells of each table."""

    path: Path
    made: Experiment
    planned: tuple[Job, ...]
    entries: tuple[tuple[Entry, ...], ...]

    @property
    def asked(self) -> list[Entry]:
        return [entry for table in self.entries for entry in table if entry.asked]

    @property
    def settled(self) -> list[Entry]:
        """Requested cells that are complete, or that were given up."""
        return [entry for entry in self.asked if entry.settled]

    @property
    def status(self) -> Status:
        if not self.asked:
            return Status.NOTHING
        if len(self.settled) == len(self.asked):
            return Status.DONE
        begun = any(entry.ours or entry.settled for entry in self.asked)
        return Status.PART if begun else Status.MISSING


def read_progress(path: Path, made: Experiment, folder: Path) -> Progress:
    """Compares the experiment of a file with the runs in a folder."""
    entries = tuple(tuple(tables.compare(table, made, folder)) for table in made.tables)
    return Progress(path, made, tuple(jobs.row_jobs(made)), entries)


def page_sections(
    progress: Progress, runs: Mapping[str, Run], run_file: Callable[[str], str], folder: Path, given: Sequence[str]
) -> list[Section]:
    made = progress.made
    sections = [_summary(progress, runs, folder, given), *reading_sections(made, progress.entries)]
    for number, (table, entries) in enumerate(zip(made.tables, progress.entries, strict=True), start=1):
        grid, lines = table_sections(table, entries, comparable=made.comparable)
        figure = draw_curves(made, table, entries)
        shows = describe_finding(table, entries, comparable=made.comparable)
        sections += [dataclasses.replace(grid, figure=figure, shows=shows, name=f"table{number}"), lines]
    for count, panels in passkey_grids(progress, folder).items():
        text = """Mean over prompts and training seeds, at the lengths that the columns of the tables name. At depth 0 the key
            is at the start, as far from the question as it can be."""
        title = f"Passkey accuracy by depth and length, {count} depths"
        sections.append(_grids_section(title, text, panels, f"depths{count}", "depth", "depth of the passkey"))
    if panels := ruler_grids(progress):
        text = "The fraction of the answers that the model wrote, mean over samples and training seeds."
        sections.append(_grids_section("RULER by task and length", text, panels, "ruler", "task", "task"))
    rows: list[list[Words]] = []
    for job in progress.planned:
        if job.row.train:
            label: Words = Link(job.row.label, run_file(job.name)) if job.name in runs else job.row.label
            rows.append([label, f"{job.seed}", describe_training(runs.get(job.name), folder / job.name)])
    if rows:  # folded, since rows with many seeds would hide the notes below them
        sections.append(Section("The runs", table=page.Table(["row", "seed", "steps"], rows), folded=True))
    return [*sections, *notes_sections(made, folder)]


def _summary(progress: Progress, runs: Mapping[str, Run], folder: Path, given: Sequence[str]) -> Section:
    trained = {job.name: job for job in progress.planned if job.row.train}
    begun = [runs[name] for name in trained if name in runs]
    done = sum(run.metrics["step"] == trained[run.name].config.steps for run in begun if run.metrics)
    stopped = sum(entry.stopped for entry in progress.settled)
    patience = f", {stopped} of them given up where no prompt was answered before" if stopped else ""
    text = f"""**{progress.status.value}**: {len(progress.settled)} of {len(progress.asked)} cells measured{patience};
        {done} of {len(trained)} models trained. {caveat(progress.made)}"""
    commands = [
        shlex.join(["python", "-m", module, str(progress.path), *given, f"--runs={folder}"])
        for module in ("bam_jax.sweep", "bam_jax.tables")
    ]
    return Section("In short", text, items=findings(progress), commands=commands)


def caveat(made: Experiment) -> str:
    """The note on its models if they are not the paper's; otherwise ""."""
    return "" if made.comparable or not made.notes else made.notes[0]


def findings(progress: Progress) -> list[str]:
    """The findings of the tables, each after its table's name if there are several tables."""
    made, found = progress.made, []
    for table, entries in zip(made.tables, progress.entries, strict=True):
        if finding := describe_finding(table, entries, comparable=made.comparable):
            found.append(f"{table.title}: {finding}" if len(made.tables) > 1 else finding)
    return found


def describe_finding(table: Table, entries: Sequence[Entry], *, comparable: bool = True) -> str:
    """The best row and the next ones in the last column with two measured rows; "" if there is none.

    It compares rows that are chosen by their values, so it is not a verdict. For a table of one row, it is the row's last
    measured value.
    """
    measured = [entry for entry in entries if entry.kind in KINDS and cell_value(entry) is not None]
    for column in reversed(table.columns):
        ranked = [entry for entry in measured if entry.column is column]
        if len(ranked) > 1:
            kind = ranked[0].kind
            ranked.sort(key=lambda entry: cell_value(entry) or 0.0, reverse=kind.more_is_better)
            best, second, *others = ranked
            where = f"At {_place(column, comparable=comparable)}"
            if _words(best) == _words(second):
                equal = f"{where} {best.row} and {second.row} are equal, {_words(best)}, and no other is better."
                return f"{equal}{_floor(second)}"
            alike = [second.row, *(entry.row for entry in others if _shown(entry) == _shown(second))]
            then = f"next is {_words(second, second.row)}{_doubt(best, second)}"
            if len(alike) > 1:
                then = f"next are {', '.join(alike[:-1])} and {alike[-1]}, {_shown(second)} each"
            return f"{where} {best.row} {KINDS[kind]}: {_words(best)}; {then}.{_floor(second)}"
    if len(table.values) > 1 or not measured or measured[-1].column.depth is not None:
        return ""
    where = _place(measured[-1].column, comparable=comparable)
    return f"At {where} {measured[-1].row} has {_words(measured[-1])}.{_floor(measured[-1])}"


def _place(column: Column, *, comparable: bool) -> str:
    """The column's name; for a length of the paper that these models do not use, their length and the paper's."""
    tokens = None if comparable else own_tokens(column)
    return column.label if tokens is None else f"{tokens:,} tokens (the paper's {column.label})"


def _doubt(best: Entry, second: Entry) -> str:
    """A remark if the common seeds of two rows are inconclusive; otherwise ""."""
    shared = sorted(best.by_seed.keys() & second.by_seed.keys())
    if len(shared) < 2:
        return ", and one seed shows no difference"
    of = math.log if best.kind is Kind.PERPLEXITY else float
    ends = statistics.estimate([of(best.by_seed[seed]) - of(second.by_seed[seed]) for seed in shared]).interval()
    return ", and the difference is inconclusive" if ends.low <= 0 <= ends.high else ""


def _floor(entry: Entry) -> str:
    """A remark on the keys next to their question, which every model sees; "" for other values."""
    evaluation = entry.column.evaluation
    if not isinstance(evaluation, Passkey):
        return ""
    share = passkey_floor(evaluation.depths)
    beside = f" One of {evaluation.depths} keys stands beside its question, which gives {share:.2f} to all."
    return beside if share else ""


def _words(entry: Entry, row: str = "") -> str:
    shown = _shown(entry)
    sure = describe_interval(entry.interval, len(entry.by_seed), end_formatter(shown))
    return f"{row} {with_interval(shown, sure)}".strip()


def _shown(entry: Entry) -> str:
    value = cell_value(entry)
    assert value is not None
    return cell_formatter(entry)(value)


def passkey_grids(progress: Progress, folder: Path) -> dict[int, dict[str, Grid]]:
    """Passkey accuracy of each measured row by depth and length, mean over prompts and seeds; by number of depths."""
    read = tables.results_reader(folder, progress.made.records)
    columns: dict[int, list[str]] = defaultdict(list)
    cells: dict[int, dict[str, dict[tuple[str, str], list[Cell]]]] = defaultdict(dict)
    for table in progress.made.tables:
        for column in table.columns:
            if column.evaluation is None or column.evaluation.figure != "depth":
                continue
            depths = len(column.evaluation.places())
            columns[depths].append(column.label)
            by_row = [job for row in map(table.row, table.values) for job in progress.planned if job.row.label == row]
            for job in by_row:
                for (depth, _), part in tables.parts_of(column.evaluation, job, read(job)).items():
                    found = cells[depths].setdefault(job.row.label, defaultdict(list))
                    found[f"{depth:.2f}", column.label] += part.cells
    grids: dict[int, dict[str, Grid]] = {}
    for count, rows in sorted(cells.items(), reverse=True):
        means = {
            row: {at: results.mean(several) for at, several in found.items() if several} for row, found in rows.items()
        }
        names = sorted({depth for each in means.values() for depth, _ in each})
        made = {row: make_grid(each, names, list(dict.fromkeys(columns[count]))) for row, each in means.items() if each}
        grids |= {count: made} if made else {}
    return grids


def ruler_grids(progress: Progress) -> dict[str, Grid]:
    """RULER's accuracy of each measured row by task and length, mean over samples and seeds."""
    means: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    tasks, lengths = dict[str, None](), dict[str, None]()  # ordered sets
    for table, entries in zip(progress.made.tables, progress.entries, strict=True):
        for entry in entries:
            column = entry.column
            if column.evaluation is None or column.evaluation.figure != "task":
                continue
            task = short_task(column.evaluation.places()[0][1])
            tasks[task] = lengths[column.label] = None
            if entry.mean is not None:
                means[table.row(entry.row)][task, column.label] = entry.mean
    return {label: make_grid(cells, [*tasks], [*lengths]) for label, cells in means.items()}


def _grids_section(title: str, text: str, panels: Mapping[str, Grid], name: str, row: str, down: str) -> Section:
    first = next(iter(panels.values()))
    rows = [
        [label, row_name, *("–" if np.isnan(value) else f"{value:.2f}" for value in values)]
        for label, grid in panels.items()
        for row_name, values in zip(grid.rows, grid.values, strict=True)
    ]
    figure = render.grids(panels, down=down, across="length")
    table = page.Table(["", row, *first.columns], rows)
    return Section(title, text, figure=figure, name=name, shows=describe_grids(panels, row), table=table)
