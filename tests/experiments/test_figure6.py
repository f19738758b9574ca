"""CABLE's Figure 6: the paper's setup, and what a CPU can do."""

from pathlib import Path

import pytest

from bam_jax.experiments import experiment, jobs, papers
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.paper_encoders import ENCODER_METHODS

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def planned(scale):
    made = experiment.load(EXPERIMENTS / "cable_figure6_mlm.py", scale=scale)
    return made, {job.row.label: job for job in jobs.row_jobs(made)}


def test_the_paper_scale_is_the_paper():
    made, found = planned("paper")
    assert made.comparable and tuple(found) == tuple(f"{method}, masked" for method in ENCODER_METHODS)
    preparation, _ = made.preparations
    assert "--tokenizer=bert:corpora/bert-base-uncased" in preparation.arguments
    for job in found.values():
        config = job.config
        assert f"--out={config.data.source}" in preparation.arguments
        assert (config.model.family, config.model.causal, config.model.vocab) == ("bert", False, 30_522)
        assert (config.context, config.steps, config.optimizer.rate, config.optimizer.decay) == (512, 14_000, 1e-4, 0.0)
        assert config.batch // config.optimizer.accumulate == 4 * 32
        assert config.batch * config.context * config.steps == pytest.approx(10e9, rel=0.02), "about an epoch"
    encodings = [job.config.encoding for job in found.values()]
    assert encodings == [papers.CABLE_METHODS[method] for method in ENCODER_METHODS]


@pytest.mark.parametrize("scale", SCALES)
def test_every_encoding_is_asked_at_its_training_length(scale):
    made, _ = planned(scale)
    (table,) = made.tables
    assert set(table.values.values()) == {()}, "the paper prints no number"
    for job in jobs.row_jobs(made):
        (evaluation,) = job.row.evaluations
        assert evaluation.encoder and evaluation.lengths == (job.config.context,)
        assert job.config.data.task == "masked"


def test_the_scales_of_a_cpu():
    toy, found = planned("toy")
    assert toy.platform == "cpu"
    assert sum(job.cost() for job in found.values()) / 2 < 400, "seconds of two cores"
    small, rows = planned("small")
    assert all(row.seeds == tuple(range(8)) for row in small.rows)
    assert len({job.config.optimizer.rate for job in rows.values()}) == 1, "one for all, as in the paper"
