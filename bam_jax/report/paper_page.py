"""The page of an experiment with a paper's tables."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bam_jax import render
from bam_jax.experiments.experiment import Experiment
from bam_jax.experiments.results import Run
from bam_jax.render.fractions import Grid
from bam_jax.render.page import Link, Section, Table, Words
from bam_jax.report.findings import describe_finding
from bam_jax.report.paper_figures import describe_grids, draw_curves, passkey_grids, ruler_grids
from bam_jax.report.progress import Progress, describe_training
from bam_jax.report.tables_page import notes_sections, reading_sections, table_sections


def page_sections(
    progress: Progress, runs: Mapping[str, Run], page: Callable[[str], str], folder: Path, given: Sequence[str]
) -> list[Section]:
    """The page's sections, in their order.

    Args:
        progress: of the experiment.
        runs: those that are there, by name.
        page: a run's, by its name.
        folder: of the runs.
        given: further arguments of the commands, such as the scale.

    Raises:
        UserError: results that cannot be read.
    """
    made = progress.made
    sections = [_summary(progress, runs, folder, given), *reading_sections(made, progress.entries)]
    for number, (table, entries) in enumerate(zip(made.tables, progress.entries, strict=True), start=1):
        grid, lines = table_sections(table, entries, comparable=made.comparable)
        figure = draw_curves(made, table, entries)
        shows = describe_finding(table, entries, comparable=made.comparable)
        sections += [dataclasses.replace(grid, figure=figure, shows=shows, name=f"table{number}"), lines]
    tasks = ruler_grids(progress)
    for count, depths in passkey_grids(progress, folder).items():
        sections.append(
            Section(
                f"Passkey accuracy by depth and length, {count} depths",
                """Mean over prompts and training seeds, at the lengths that the columns of the tables name. At depth 0 the
                key stands at the start, as far from the question as it can.""",
                figure=render.grids(depths, down="depth of the passkey", across="length"),
                name=f"depths{count}",
                shows=describe_grids(depths, "depth"),
                table=_grids_table(depths, "depth"),
            )
        )
    if tasks:
        sections.append(
            Section(
                "RULER by task and length",
                "The fraction of the answers that the model wrote, mean over samples and training seeds.",
                figure=render.grids(tasks, down="task", across="length"),
                name="ruler",
                shows=describe_grids(tasks, "task"),
                table=_grids_table(tasks, "task"),
            )
        )
    return [*sections, *_runs_sections(progress, runs, page, folder), *notes_sections(made, folder)]


def _summary(progress: Progress, runs: Mapping[str, Run], folder: Path, given: Sequence[str]) -> Section:
    """The findings of its tables, the experiment's progress, and the commands that make it."""
    made = progress.made
    trained = {job.name: job for job in progress.planned if job.row.train}
    begun = [runs[name] for name in trained if name in runs]
    done = sum(run.metrics["step"] == trained[run.name].config.steps for run in begun if run.metrics)
    stopped = sum(entry.stopped for entry in progress.settled)
    patience = f", {stopped} of them given up where no prompt was answered before" if stopped else ""
    text = f"""**{progress.status.value}**: {len(progress.settled)} of {len(progress.asked)} cells measured{patience};
        {done} of {len(trained)} models trained. {caveat(made)}"""
    commands = [
        shlex.join(["python", "-m", module, str(progress.path), *given, f"--runs={folder}"])
        for module in ("bam_jax.sweep", "bam_jax.tables")
    ]
    return Section("In short", text, items=findings(progress), commands=commands)


def caveat(made: Experiment) -> str:
    """The note on what its models are, where they are not the paper's; "" where they are.

    Args:
        made: the experiment.
    """
    return "" if made.comparable or not made.notes else made.notes[0]


def findings(progress: Progress) -> list[str]:
    """The finding of each table that has one, after the table's name where there are several.

    Args:
        progress: of the experiment.
    """
    comparable = progress.made.comparable
    both = zip(progress.made.tables, progress.entries, strict=True)
    found = {
        table.title: said
        for table, entries in both
        if (said := describe_finding(table, entries, comparable=comparable))
    }
    return [f"{title}: {said}" for title, said in found.items()] if len(progress.made.tables) > 1 else [*found.values()]


def _runs_sections(
    progress: Progress, runs: Mapping[str, Run], page: Callable[[str], str], folder: Path
) -> list[Section]:
    """A line for each row and seed that is trained, with its page; no section where there is none."""
    rows: list[list[Words]] = []
    for job in progress.planned:
        if job.row.train:
            label: Words = Link(job.row.label, page(job.name)) if job.name in runs else job.row.label
            run = runs[job.name] if job.name in runs else None
            rows.append([label, f"{job.seed}", describe_training(run, folder / job.name)])
    # Rows with many seeds would hide the tables below them.
    return [Section("The runs", table=Table(["row", "seed", "steps"], rows), folded=True)] if rows else []


def _grids_table(panels: Mapping[str, Grid], down: str) -> Table:
    """All panels below each other, in numbers."""
    first = next(iter(panels.values()))
    rows = [
        [label, name, *("–" if np.isnan(value) else f"{value:.2f}" for value in values)]
        for label, grid in panels.items()
        for name, values in zip(grid.rows, grid.values, strict=True)
    ]
    return Table(["", down, *first.columns], rows)
