"""How far an experiment with a paper's tables is."""

import dataclasses
from pathlib import Path

from bam_jax.experiments import experiment, jobs, tables
from bam_jax.experiments.experiment import DASH, Column, Experiment, Table
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import Run
from bam_jax.experiments.tables import Entry
from bam_jax.system import lock
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder

STATUSES = DONE, PART, MISSING, NOTHING = ("● done", "◐ in part", "○ missing", "– nothing to measure")
"""What an experiment can be; signs need no colours."""


@dataclasses.dataclass(frozen=True)
class Standing:
    """An experiment and what its runs have shown so far.

    Args:
        path: its file.
        made: the experiment.
        planned: its rows with their seeds.
        entries: the cells of each of its tables.
    """

    path: Path
    made: Experiment
    planned: tuple[Job, ...]
    entries: tuple[tuple[Entry, ...], ...]

    @property
    def wanted(self) -> list[Entry]:
        """The cells that a run must measure."""
        return [
            entry
            for table, entries in zip(self.made.tables, self.entries, strict=True)
            for (column, paper), entry in zip(_cells(table), entries, strict=True)
            if column.evaluation is not None and paper != DASH
        ]

    @property
    def settled(self) -> list[Entry]:
        """Those of them that are measured completely, or left out by patience."""
        return [entry for entry in self.wanted if entry.settled]

    @property
    def status(self) -> str:
        """In two words."""
        if not self.wanted:
            return NOTHING
        if len(self.settled) == len(self.wanted):
            return DONE
        return PART if any(entry.ours or entry.settled for entry in self.wanted) else MISSING


def state(run: Run | None, path: Path) -> str:
    """How far the training of a run is, and why no further, from its files.

    Args:
        run: as `bam_jax.experiments.results` reads it; None: there is none.
        path: its folder.
    """
    if run is None or run.config is None:
        return "not begun"
    steps = run.config.steps
    step = max(run.metrics["step"] if run.metrics else 0, run_folder.latest_step(path))
    place = f"step {step:,} of {steps:,}" if step else "before its first record"
    if lock.is_held(path / run_folder.LOCK):
        return f"running, {place}"
    if (path / run_folder.DIVERGED).exists():
        said = (path / run_folder.DIVERGED).read_text(encoding="utf-8", errors="replace")
        return f"diverged at {said.strip()}"
    return f"{steps:,} of {steps:,}" if step == steps else f"stopped {'at ' if step else ''}{place}"


def standing(path: Path, folder: Path, scale: str | None) -> Standing:
    """Where an experiment stands.

    Args:
        path: its file.
        folder: of the runs.
        scale: "toy" or "paper"; None: toy.

    Raises:
        UserError: it has no tables, or a file cannot be read.
    """
    made = experiment.load(path, runs=folder, scale=scale)
    if not made.tables:
        raise UserError(f"{path} has no tables of a paper; give python -m bam_jax.report the folder of its runs")
    entries = tuple(tuple(tables.compare(table, made, folder)) for table in made.tables)
    return Standing(path, made, tuple(jobs.row_jobs(made)), entries)


def _cells(table: Table) -> list[tuple[Column, str]]:
    return [cell for label in table.values for cell in table.cells(label)]
