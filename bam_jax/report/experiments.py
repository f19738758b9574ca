"""The page of an experiment with a paper's tables."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bam_jax import render
from bam_jax.experiments import tables
from bam_jax.experiments.results import Run
from bam_jax.render.fractions import Grid
from bam_jax.render.page import Link, Section, Table, Words
from bam_jax.report import drawn
from bam_jax.report.standing import Standing, state


def sections(
    each: Standing, runs: Mapping[str, Run], page: Callable[[str], str], folder: Path, given: Sequence[str]
) -> list[Section]:
    """The page's parts, in their order.

    Args:
        each: the experiment.
        runs: those that are there, by name.
        page: a run's, by its name.
        folder: of the runs.
        given: further arguments of the commands, such as the scale.

    Raises:
        UserError: results that cannot be read.
    """
    context = each.planned[0].config.context
    parts = [_short(each, runs, page, folder, given)]
    for number, (table, entries) in enumerate(zip(each.made.tables, each.entries, strict=True), start=1):
        whole, cells = tables.pair(table, each.made, entries)
        figure = drawn.curves(table, entries, context)
        parts += [dataclasses.replace(whole, figure=figure, name=f"table{number}"), cells]
    depths, tasks = drawn.passkeys(each, folder), drawn.ruler(each)
    if depths:
        parts.append(
            Section(
                "Passkey accuracy by depth and length",
                """Mean over prompts and training seeds, at the lengths that the columns of the tables name. At depth 0 the
                key stands at the start, as far from the question as it can.""",
                figure=render.grids(depths, down="depth of the passkey", across="length"),
                name="depths",
                table=_table(depths, "depth"),
            )
        )
    if tasks:
        parts.append(
            Section(
                "RULER by task and length",
                "The fraction of the answers that the model wrote, mean over samples and training seeds.",
                figure=render.grids(tasks, down="task", across="length"),
                name="ruler",
                table=_table(tasks, "task"),
            )
        )
    return [*parts, *tables.notes(each.made)]


def _short(
    each: Standing, runs: Mapping[str, Run], page: Callable[[str], str], folder: Path, given: Sequence[str]
) -> Section:
    """How far it is, its runs, and the commands that make it."""
    trained = {job.name: job for job in each.planned if job.row.train}
    there = [runs[name] for name in trained if name in runs]
    done = sum(run.metrics["step"] == trained[run.name].config.steps for run in there if run.metrics)
    stopped = sum(bool(entry.note) for entry in each.settled)
    patience = f", {stopped} of them given up where no prompt was answered before" if stopped else ""
    text = f"""**{each.status}**: {len(each.settled)} of {len(each.wanted)} cells measured{patience}; {done} of
        {len(trained)} models trained."""
    rows: list[list[Words]] = []
    for job in each.planned:
        if job.row.train:
            label: Words = Link(job.row.label, page(job.name)) if job.name in runs else job.row.label
            run = runs[job.name] if job.name in runs else None
            rows.append([label, f"{job.seed}", state(run, folder / job.name)])
    commands = [
        shlex.join(["python", "-m", module, str(each.path), *given, f"--runs={folder}"])
        for module in ("bam_jax.sweep", "bam_jax.tables")
    ]
    table = Table(["row", "seed", "steps"], rows) if rows else None
    return Section("In short", text, table=table, commands=commands)


def _table(panels: Mapping[str, Grid], down: str) -> Table:
    """All panels below each other, in numbers."""
    first = next(iter(panels.values()))
    rows = [
        [label, name, *("–" if np.isnan(value) else f"{value:.2f}" for value in values)]
        for label, grid in panels.items()
        for name, values in zip(grid.rows, grid.values, strict=True)
    ]
    return Table(["", down, *first.columns], rows)
