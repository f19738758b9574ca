"""The experiments of patterns and of synthetic tasks, which no paper has: what they train, and what they ask."""

import json
from pathlib import Path

import pytest
import small_scale
from flax import nnx

from bam_jax.config.sections import SYNTHETIC
from bam_jax.evals.synthetic import Synthetic
from bam_jax.experiments import experiment, jobs
from bam_jax.experiments.cells import Printed, TableName
from bam_jax.models import transformer
from bam_jax.system.errors import UserError
from bam_jax.training.loop import DECODER_TASKS

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("name", ["patterns", "synthetic"])
def test_no_paper_has_them(name):
    with pytest.raises(UserError, match=f"{name}.py compares is no paper's; give --scale=toy or --scale=small"):
        experiment.load(EXPERIMENTS / f"{name}.py", scale="paper")


def test_no_paper_prints_a_number_of_them(tmp_path):
    cell = Printed(tmp_path, "paper", EXPERIMENTS).seed_values(TableName("patterns", "Keys found"), "RoPE", "1×")
    assert cell.values == {}


def test_every_pattern_is_trained_and_asked_alike():
    trained = jobs.jobs(experiment.load(EXPERIMENTS / "patterns.py"))
    assert len({job.name for job in trained}) == len(trained) == 9
    assert all(job.name.isascii() and "/" not in job.name for job in trained)
    grown = {job.row.label for job in trained if any(each.overrides for each in job.row.evaluations)}
    assert grown == {"RNoPE", "RNoPE, gated"}, "iRoPE's rows are models of these, asked twice"
    assert len({tuple(each for each in job.row.evaluations if not each.overrides) for job in trained}) == 1
    for job in trained:
        made = nnx.eval_shape(lambda job=job: transformer.build(job.config, vocab=64, rngs=nnx.Rngs(0)))
        assert sum(stack.attention.query.kernel.shape[0] for stack in made.stacks()) == job.config.model.layers == 4


def test_the_small_scale_has_the_rates_of_its_search(tmp_path, monkeypatch):
    search = experiment.load(EXPERIMENTS / "synthetic_rates.py")
    learners = {row.label.rpartition(", try ")[0] for row in search.rows}
    assert len(search.rows) == 3 * len(learners) and all(row.seeds == (100,) for row in search.rows)
    rates = {learner: {"optimizer.rate": 1e-4 * n} for n, learner in enumerate(sorted(learners), start=1)}
    monkeypatch.setattr(small_scale, "SYNTHETIC_RATES", tmp_path / "synthetic_rates.json")
    with pytest.raises(UserError, match="after python experiments/synthetic_rates.py"):
        experiment.load(EXPERIMENTS / "synthetic.py", scale="small")
    small_scale.SYNTHETIC_RATES.write_text(json.dumps({"rates": rates}))
    for row in experiment.load(EXPERIMENTS / "synthetic.py", scale="small").rows:
        learner = row.label.replace("RoPE Local", "RoPE")
        assert row.overrides["optimizer.rate"] == rates[learner]["optimizer.rate"] and len(row.seeds) == 8


def test_every_method_learns_all_tasks_and_text_and_is_asked_for_them():
    made = experiment.load(EXPERIMENTS / "synthetic.py")
    assert {table.group for table in made.tables} == {"symbols", "text"}
    methods = {label for table in made.tables for label in table.values}
    trained = jobs.jobs(made)
    assert len(trained) == 2 * len(methods - {"RoPE Local"})  # a window at evaluation alone makes no run of its own
    for job in trained:
        tasks = {part.task for _, part in job.config.data.parts().values()}
        assert tasks <= {*DECODER_TASKS}
        for evaluation in job.row.evaluations:
            assert isinstance(evaluation, Synthetic) == (tasks == {*SYNTHETIC})
            if isinstance(evaluation, Synthetic):
                assert {*evaluation.tasks} == tasks and min(evaluation.lengths) == job.config.context
