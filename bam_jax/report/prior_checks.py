"""Checks that read the learned priors of runs, where those of `bam_jax.experiments` read tables."""

from collections.abc import Callable, Sequence

from bam_jax.experiments import criteria, jobs
from bam_jax.experiments.cells import Measured
from bam_jax.experiments.checks import Check, Finding
from bam_jax.report.run_priors import find_job_priors

NEGATIVE = -0.1
"""The shape below which a head's is negative. Heads that start at 0 end on both sides of it, whatever they learn."""


def has_negative_shapes(name: str, row: str) -> Check:
    """A check that in most seeds some head of a row has learned a shape below `NEGATIVE`.

    Args:
        name: of the experiment's file, without ".py".
        row: whose priors are looked at.

    Source: BAM, section 2.5.
    """
    return check_shapes(
        name, row, f"in most seeds has a shape below {NEGATIVE:g}", lambda shapes: min(shapes) < NEGATIVE
    )


def check_shapes(name: str, row: str, says: str, is_so: Callable[[Sequence[float]], bool]) -> Check:
    """A check that in most seeds the learned shapes of a row are so.

    Args:
        name: of the experiment's file, without ".py".
        row: whose priors are looked at.
        says: how they are, in words.
        is_so: True of shapes, one for each head, that are.
    """

    def check(measured: Measured) -> Finding:
        made = measured.load(name, measured.scale)
        planned = [job for job in jobs.row_jobs(made) if job.row.label == row]
        learned = [find_job_priors(job, measured.folder, made.records) for job in planned]
        votes = [is_so(heads.shape.ravel().tolist()) for heads in learned if heads is not None]
        return Finding([criteria.voted(f"{row} {says}", votes)], row, says)

    return check
