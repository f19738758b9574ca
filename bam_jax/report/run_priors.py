"""The priors of runs: from their weights, or from a folder of records where those are not here."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from bam_jax.analysis import priors
from bam_jax.experiments import recorded_runs
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.results import Run
from bam_jax.render.learned import Heads
from bam_jax.training import run_folder


def find_priors(runs: Iterable[Run], folder: Path) -> dict[str, Heads]:
    """The priors of those runs that have any, by name: others have another encoding, or are not trained yet.

    Args:
        runs: whose names are paths from the folder.
        folder: of the runs.

    Raises:
        UserError: a file that cannot be read.
    """
    found: dict[str, Heads] = {}
    for run in runs:
        if run.heads is None:
            found |= priors.find_priors({run.name: folder / run.name})
        elif (heads := as_heads(run.heads)) is not None:
            found[run.name] = heads
    return found


def find_job_priors(job: Job, folder: Path, file: Path | None) -> Heads | None:
    """The priors that a job has learned; None where it is not trained.

    Args:
        job: of a BAM model.
        folder: of the runs.
        file: of records; None: there is none.

    Raises:
        UserError: a file that cannot be read, or another encoding.
    """
    if run_folder.latest_step(folder / job.name) == job.config.steps:
        return priors.learned_priors(folder / job.name)
    recorded = recorded_runs.find(file, job.digest)
    return as_heads(recorded.heads) if recorded else None


def as_heads(recorded: Mapping[str, np.ndarray]) -> Heads | None:
    """Recorded parameters as BAM's priors; None where they are another encoding's, or of different shapes.

    Args:
        recorded: [layers, heads] each, by name.
    """
    if not {*Heads._fields} <= recorded.keys():
        return None
    heads = Heads(**{name: recorded[name] for name in Heads._fields})
    return heads if len({values.shape for values in heads}) == 1 else None
