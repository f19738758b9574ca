"""The page of an experiment with a paper's tables."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bam_jax import render
from bam_jax.experiments.experiment import Experiment
from bam_jax.experiments.results import Run
from bam_jax.render.maps import Grid
from bam_jax.report.findings import describe_finding
from bam_jax.report.page import Link, Section, Table, Words
from bam_jax.report.paper_figures import describe_grids, draw_curves, passkey_grids, ruler_grids
from bam_jax.report.progress import Progress, describe_training
from bam_jax.report.tables_page import notes_sections, reading_sections, table_sections


def page_sections(
    progress: Progress, runs: Mapping[str, Run], page: Callable[[str], str], folder: Path, given: Sequence[str]
) -> list[Section]:
    """The page's sections, in their order."""
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
            label: Words = Link(job.row.label, page(job.name)) if job.name in runs else job.row.label
            rows.append([label, f"{job.seed}", describe_training(runs.get(job.name), folder / job.name)])
    if rows:  # folded, since rows with many seeds would hide the notes below them
        sections.append(Section("The runs", table=Table(["row", "seed", "steps"], rows), folded=True))
    return [*sections, *notes_sections(made, folder)]


def _summary(progress: Progress, runs: Mapping[str, Run], folder: Path, given: Sequence[str]) -> Section:
    """The findings of its tables, the experiment's progress, and the commands that make it."""
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
    """The note on what its models are, where they are not the paper's; "" where they are."""
    return "" if made.comparable or not made.notes else made.notes[0]


def findings(progress: Progress) -> list[str]:
    """The finding of each table that has one, after the table's name where there are several."""
    made, found = progress.made, []
    for table, entries in zip(made.tables, progress.entries, strict=True):
        if finding := describe_finding(table, entries, comparable=made.comparable):
            found.append(f"{table.title}: {finding}" if len(made.tables) > 1 else finding)
    return found


def _grids_section(title: str, text: str, panels: Mapping[str, Grid], name: str, row: str, down: str) -> Section:
    """Heat maps of all models, and their numbers below each other."""
    first = next(iter(panels.values()))
    rows = [
        [label, row_name, *("–" if np.isnan(value) else f"{value:.2f}" for value in values)]
        for label, grid in panels.items()
        for row_name, values in zip(grid.rows, grid.values, strict=True)
    ]
    figure = render.grids(panels, down=down, across="length")
    table = Table(["", row, *first.columns], rows)
    return Section(title, text, figure=figure, name=name, shows=describe_grids(panels, row), table=table)
