"""The experiment of synthetic tasks: what it trains, and what it asks."""

import json
from pathlib import Path

import pytest
import small_scale

from bam_jax.config.sections import SYNTHETIC
from bam_jax.evals.synthetic import Synthetic
from bam_jax.experiments import experiment, jobs
from bam_jax.system.errors import UserError
from bam_jax.training.loop import DECODER_TASKS

PATH = Path(__file__).parents[2] / "experiments" / "synthetic.py"


def test_the_small_scale_has_the_rates_of_its_search(tmp_path, monkeypatch):
    search = experiment.load(PATH.with_name("synthetic_rates.py"))
    learners = {row.label.rpartition(", try ")[0] for row in search.rows}
    assert len(search.rows) == 3 * len(learners) and all(row.seeds == (100,) for row in search.rows)
    rates = {learner: {"optimizer.rate": 1e-4 * n} for n, learner in enumerate(sorted(learners), start=1)}
    monkeypatch.setattr(small_scale, "SYNTHETIC_RATES", tmp_path / "synthetic_rates.json")
    with pytest.raises(UserError, match="after python experiments/synthetic_rates.py"):
        experiment.load(PATH, scale="small")
    small_scale.SYNTHETIC_RATES.write_text(json.dumps({"rates": rates}))
    made = experiment.load(PATH, scale="small")
    for row in made.rows:
        learner = row.label.replace("RoPE Local", "RoPE")
        assert row.overrides["optimizer.rate"] == rates[learner]["optimizer.rate"] and len(row.seeds) == 8


def test_every_method_learns_all_tasks_and_text_and_is_asked_for_them():
    made = experiment.load(PATH)
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
