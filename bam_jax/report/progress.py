"""The progress of experiments and of the training of their runs."""

import dataclasses
import enum
from pathlib import Path

from bam_jax.experiments import experiment, jobs, tables
from bam_jax.experiments.entries import Entry
from bam_jax.experiments.experiment import Experiment
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import Run
from bam_jax.system import regular
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder


class Status(enum.Enum):
    """The progress of an experiment as it is printed; the sign says it without colours."""

    DONE = "● done"
    PART = "◐ in part"
    MISSING = "○ missing"
    NOTHING = "– nothing to measure"


@dataclasses.dataclass(frozen=True)
class Progress:
    """An experiment with a paper's tables, and what its runs have measured so far.

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
    def asked(self) -> list[Entry]:
        """The cells that a run must measure."""
        return [entry for table in self.entries for entry in table if entry.asked]

    @property
    def settled(self) -> list[Entry]:
        """The asked cells that are measured completely, or left out by patience."""
        return [entry for entry in self.asked if entry.settled]

    @property
    def status(self) -> Status:
        """Done, in part or missing, by its cells."""
        if not self.asked:
            return Status.NOTHING
        if len(self.settled) == len(self.asked):
            return Status.DONE
        begun = any(entry.ours or entry.settled for entry in self.asked)
        return Status.PART if begun else Status.MISSING


def read_progress(path: Path, folder: Path, scale: str | None) -> Progress:
    """Compares an experiment with its runs.

    Args:
        path: its file.
        folder: of the runs.
        scale: "toy", "small" or "paper"; None: toy.

    Raises:
        UserError: it has no tables, or a file cannot be read.
    """
    return compare_with_runs(path, load_with_tables(path, folder, scale), folder)


def load_with_tables(path: Path, folder: Path, scale: str | None) -> Experiment:
    """Loads an experiment that has tables; arguments as in `read_progress`.

    Raises:
        UserError: it has none.
    """
    made = experiment.load(path, runs=folder, scale=scale)
    if not made.tables:
        raise UserError(f"{path} has no tables of a paper; give python -m bam_jax.report the folder of its runs")
    return made


def compare_with_runs(path: Path, made: Experiment, folder: Path) -> Progress:
    """Compares a loaded experiment with its runs; arguments as in `read_progress`.

    Raises:
        UserError: a file of a run cannot be read.
    """
    entries = tuple(tuple(tables.compare(table, made, folder)) for table in made.tables)
    return Progress(path, made, tuple(jobs.row_jobs(made)), entries)


def describe_training(run: Run | None, path: Path) -> str:
    """The progress of a run's training in words, and why it goes no further, from its files.

    Args:
        run: as `bam_jax.experiments.results` reads it; None: there is none.
        path: its folder.
    """
    if run is None or run.config is None:
        return "not begun"
    steps = run.config.steps
    step = max(run.metrics["step"] if run.metrics else 0, run_folder.latest_step(path))
    place = f"step {step:,} of {steps:,}" if step else "before its first record"
    if run_folder.is_claimed(path):
        return f"running, {place}"
    if (path / run_folder.DIVERGED).exists():
        said = regular.read(path / run_folder.DIVERGED).decode(errors="replace")
        return f"diverged at {said.strip()}"
    return f"{steps:,} of {steps:,}" if step == steps else f"stopped {'at ' if step else ''}{place}"
