"""The work of a sweep's jobs with a folder of records: recorded work is skipped, and new work is added to the records."""

import dataclasses
import sys
from pathlib import Path

from bam_jax.evals.base import Evaluation
from bam_jax.experiments import recorded_runs, tables
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import RunResults
from bam_jax.system import files, git, jsonl
from bam_jax.system.machine import machine
from bam_jax.training import run_folder


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Runs jobs, and keeps their records."""

    file: Path | None  # of records
    command: str  # of the sweep, without the folder of runs

    def is_done(self, job: Job) -> bool:
        """Whether the records have a job's run with everything requested of it, and the same for jobs that start from it."""
        return self._is_recorded(job) and all(map(self.is_done, job.then))

    def work(self, job: Job, folder: Path) -> None:
        """Trains and evaluates a run, then the runs that start from it, skipping whatever is done or recorded."""
        if self.file is not None:
            recorded_runs.require_arrow(self.file)  # fail before hours of training, not after
        later = [after for after in job.then if not self.is_done(after)]
        if not self._is_recorded(job):
            self._train(job, folder)
            for evaluation in self._missing(job):
                job.evaluate(folder, evaluation)
            if self.file is not None:
                recorded_runs.append(self.file, folder / job.name, job.name, job.config)
        elif not all(_has_weights(after, folder) for after in later):
            self._train(job, folder)  # later jobs start from its weights, which records do not contain
        for after in later:
            self.work(after, folder)

    def _train(self, job: Job, folder: Path) -> None:
        run, begun = folder / job.name, _has_weights(job, folder)
        if not begun and recorded_runs.find(self.file, job.digest) is not None:
            why = f"{self.file} has not all that is asked of it, and no weights"
            print(f"{job.name} is trained again: {why}", file=sys.stderr)
        job.train(folder)
        if not begun:
            source = {"command": self.command, "commit": git.describe(), "machine": machine()}
            files.write_atomically(run / recorded_runs.SOURCE, jsonl.document(source, 2))

    def _is_recorded(self, job: Job) -> bool:
        return recorded_runs.find(self.file, job.digest) is not None and not self._missing(job)

    def _missing(self, job: Job) -> list[Evaluation]:
        run = recorded_runs.find(self.file, job.digest)
        measured = RunResults(run.cells, run.stops) if run else RunResults((), ())
        # Each evaluation includes the changes of the row that requests it; the job has those of only one of the rows.
        plain = dataclasses.replace(job, row=dataclasses.replace(job.row, changes={}))
        return [each for each in job.row.evaluations if not tables.is_measured(each, plain, measured)]


def _has_weights(job: Job, folder: Path) -> bool:
    return run_folder.latest_step(folder / job.name) == job.config.steps
