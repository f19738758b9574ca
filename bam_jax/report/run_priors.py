"""The priors of runs: from their weights, or from a folder of records where those are not here."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bam_jax.analysis import priors
from bam_jax.experiments import recorded_runs
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import Run
from bam_jax.render.learned import Heads
from bam_jax.training import run_folder


def find_run_priors(run: Run, folder: Path) -> Heads | None:
    """The priors of a run below a folder; None where it has another encoding, or no checkpoint yet."""
    if run.heads is not None:
        return as_heads(run.heads)
    path = folder / run.name
    if run.config is None or run.config.encoding != "bam" or not run_folder.latest_step(path):
        return None
    return priors.learned_priors(path)


def find_job_priors(job: Job, folder: Path, file: Path | None) -> Heads | None:
    """The priors that a job of a BAM model has learned, here or in a file of records; None where it is not trained."""
    if run_folder.latest_step(folder / job.name) == job.config.steps:
        return priors.learned_priors(folder / job.name)
    recorded = recorded_runs.find(file, job.digest)
    return as_heads(recorded.heads) if recorded else None


def as_heads(recorded: Mapping[str, np.ndarray]) -> Heads | None:
    """Recorded parameters [layers, heads] as BAM's priors; None where they are another encoding's, or of different shapes."""
    if not {*Heads._fields} <= recorded.keys():
        return None
    heads = Heads(**{name: recorded[name] for name in Heads._fields})
    return heads if len({values.shape for values in heads}) == 1 else None
