"""CABLE's Figure 6: the paper's setup, and what a CPU can do."""

import json
from pathlib import Path

import pytest

from bam_jax.experiments import experiment, jobs, paper_encoders, papers
from bam_jax.experiments import small as small_scale
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.paper_encoders import ENCODER_METHODS

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def planned(scale):
    made = experiment.load(EXPERIMENTS / "cable_figure6_mlm.py", scale=scale)
    return made, {job.row.label: job for job in jobs.row_jobs(made)}


def test_the_paper_scale_is_the_paper():
    made, found = planned("paper")
    rows = [f"{method}, {row}" for method in ENCODER_METHODS for row in ("masked", "early")]
    assert made.comparable and list(found) == rows
    _, preparation, _ = made.preparations
    assert "--tokenizer=bert:corpora/bert-base-uncased" in preparation.arguments
    for job in found.values():
        config = job.config
        assert f"--out={config.data.source}" in preparation.arguments
        assert (config.model.family, config.model.causal, config.model.vocab) == ("bert", False, 30_522)
        assert (config.context, config.optimizer.rate, config.optimizer.decay) == (512, 1e-4, 0.0)
        assert config.batch // config.optimizer.accumulate == 4 * 32
    for method in ENCODER_METHODS:
        whole, early = (found[f"{method}, {row}"].config for row in ("masked", "early"))
        assert whole.encoding == early.encoding == papers.CABLE_METHODS[method]
        assert (whole.steps, early.steps) == (14_000, 3500)
        assert whole.batch * whole.context * whole.steps == pytest.approx(10e9, rel=0.02), "about an epoch"


@pytest.mark.parametrize("scale", SCALES)
def test_every_encoding_is_asked_at_its_training_length(scale):
    made, _ = planned(scale)
    assert all(values == () for table in made.tables for values in table.values.values()), "the paper prints no number"
    for job in jobs.row_jobs(made):
        (evaluation,) = job.row.evaluations
        assert evaluation.encoder and evaluation.lengths == (job.config.context,)
        assert job.config.data.task == "masked"


def test_the_scales_of_a_cpu():
    toy, found = planned("toy")
    assert toy.platform == "cpu"
    assert sum(job.cost() for job in found.values()) / 2 < 400, "seconds of two cores"
    small, rows = planned("small")
    assert all(row.seeds == paper_encoders.SEEDS for row in small.rows) and len(paper_encoders.SEEDS) == 12
    rates = json.loads(small_scale.ENCODER_RATES.read_text())["rates"]
    for method in ENCODER_METHODS:
        whole, early = (rows[f"{method}, {row}"].config.optimizer.rate for row in ("masked", "early"))
        assert whole == early == rates[f"{method}, masked"]["optimizer.rate"]
