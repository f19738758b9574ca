"""CABLE's Figure 7: the rows of Table 3, and a loss whose candidates are as many as in training."""

from pathlib import Path

import pytest

from bam_jax.evals.contrastive import Contrastive
from bam_jax.experiments import experiment, jobs
from bam_jax.experiments.experiment import SCALES

FILE = Path(__file__).parents[2] / "experiments" / "cable_figure7_contrastive.py"


@pytest.mark.parametrize("scale", SCALES)
def test_every_method_is_asked_as_it_was_trained(scale):
    made = experiment.load(FILE, scale=scale)
    (table,) = made.tables
    assert len(table.values) == 5 and set(table.values.values()) == {()}, "the paper prints no number"
    for root in jobs.jobs(made):
        (job,) = root.then
        assert (root.config.data.task, job.config.data.task) == ("masked", "triplets") and not root.row.evaluations
        (evaluation,) = job.row.evaluations
        assert isinstance(evaluation, Contrastive)
        assert (evaluation.lengths, evaluation.batch) == ((job.config.context,), job.config.batch)
        assert evaluation.quantity == "loss"
        assert job.config.optimizer.warmup == pytest.approx(0.05 * job.config.steps, abs=1), "of whole steps"


def test_the_paper_scale_is_one_epoch_of_the_paper():
    for root in jobs.jobs(experiment.load(FILE, scale="paper")):
        config = root.then[0].config
        assert (config.batch, config.context) == (128, 512) and 0 <= 1_250_000 - config.batch * config.steps < 128
        assert (config.optimizer.schedule, config.optimizer.final, config.optimizer.decay) == ("linear", 0.0, 0.0)


def test_table_3_measures_the_same_runs():
    names = [
        {job.name for root in jobs.jobs(experiment.load(path, scale="small")) for job in (root, *root.then)}
        for path in (FILE, FILE.with_name("cable_table3_retrieval.py"))
    ]
    assert names[0] == names[1]


def test_a_verdict_is_of_triplets_that_chose_no_rate():
    runs = [job for root in jobs.jobs(experiment.load(FILE, scale="small")) for job in root.then]
    for job in runs:
        chose = job.config.data.held_out_source
        assert {each.overrides["data.held_out_source"] for each in job.row.evaluations}.isdisjoint({"", chose})
        assert chose not in ("", job.config.data.source)
