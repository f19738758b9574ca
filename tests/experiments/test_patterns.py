"""The experiment of patterns: what it trains, and what it asks."""

from pathlib import Path

import pytest
from flax import nnx

from bam_jax.experiments import experiment, jobs
from bam_jax.models import transformer
from bam_jax.system.errors import UserError

PATH = Path(__file__).parents[2] / "experiments" / "patterns.py"


def test_no_paper_has_them():
    with pytest.raises(
        UserError, match="--scale=paper: these patterns are no paper's; give --scale=toy or --scale=small"
    ):
        experiment.load(PATH, scale="paper")


@pytest.mark.parametrize(("scale", "seeds"), [("toy", 1), ("small", 8)])
def test_every_method_is_trained_and_asked_alike(scale, seeds):
    trained = jobs.jobs(experiment.load(PATH, scale=scale))
    assert len({job.name for job in trained}) == len(trained) == 9 * seeds
    assert len({job.row.evaluations for job in trained}) == 1
    patterns = {job.config.encoding for job in trained if "/" in job.config.encoding}
    assert len(patterns) == 4
    for job in trained:
        assert job.name.isascii() and "/" not in job.name
        if job.config.seed == 0:
            made = nnx.eval_shape(lambda job=job: transformer.build(job.config, vocab=64, rngs=nnx.Rngs(0)))
            assert sum(stack.attention.query.kernel.shape[0] for stack in made.stacks()) == job.config.model.layers == 4
