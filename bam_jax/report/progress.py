"""The progress of experiments and of the training of their runs."""

import dataclasses
import enum
from pathlib import Path

from bam_jax.experiments import jobs, tables
from bam_jax.experiments.entries import Entry
from bam_jax.experiments.experiment import Experiment
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import Run
from bam_jax.system import regular
from bam_jax.training import run_folder


class Status(enum.Enum):
    """The progress of an experiment as it is printed; the sign shows it without colours."""

    DONE = "● done"
    PART = "◐ in part"
    MISSING = "○ missing"
    NOTHING = "– nothing to measure"


@dataclasses.dataclass(frozen=True)
class Progress:
    """An experiment with a paper's tables, and the cells that its runs have measured so far, by table."""

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


def read_progress(path: Path, made: Experiment, folder: Path) -> Progress:
    """Compares the experiment of a file with the runs in a folder."""
    entries = tuple(tuple(tables.compare(table, made, folder)) for table in made.tables)
    return Progress(path, made, tuple(jobs.row_jobs(made)), entries)


def describe_training(run: Run | None, path: Path) -> str:
    """How far the training of the run in a folder is, and why it goes no further."""
    if run is None or run.config is None:
        return "not begun"
    steps = run.config.steps
    step = max(run.metrics["step"] if run.metrics else 0, run_folder.latest_step(path))
    place = f"step {step:,} of {steps:,}" if step else "before its first record"
    if run_folder.is_claimed(path):
        return f"running, {place}"
    if (path / run_folder.DIVERGED).exists():
        reason = regular.read(path / run_folder.DIVERGED).decode(errors="replace")
        return f"diverged at {reason.strip()}"
    return f"{steps:,} of {steps:,}" if step == steps else f"stopped {'at ' if step else ''}{place}"
