"""The experiment of synthetic tasks: what it trains, and what it asks."""

from pathlib import Path

import pytest

from bam_jax.config.sections import SYNTHETIC
from bam_jax.evals.synthetic import Synthetic
from bam_jax.experiments import experiment, jobs
from bam_jax.system.errors import UserError
from bam_jax.training.loop import TASKS

PATH = Path(__file__).parents[2] / "experiments" / "synthetic.py"


def test_the_paper_has_no_such_scale():
    with pytest.raises(UserError, match="--scale=paper: these tasks are no paper's; give --scale=toy or --scale=small"):
        experiment.load(PATH, scale="paper")


def test_every_method_learns_all_tasks_and_text_and_is_asked_for_them():
    made = experiment.load(PATH)
    assert {table.group for table in made.tables} == {"symbols", "text"}
    methods = {label for table in made.tables for label in table.values}
    trained = jobs.jobs(made)
    assert len(trained) == 2 * len(methods - {"RoPE Local"})  # a window at evaluation alone makes no run of its own
    for job in trained:
        tasks = {part.task for _, part in job.config.data.parts().values()}
        assert tasks <= {*TASKS[True]}
        for evaluation in job.row.evaluations:
            assert isinstance(evaluation, Synthetic) == (tasks == {*SYNTHETIC})
            if isinstance(evaluation, Synthetic):
                assert {*evaluation.tasks} == tasks and min(evaluation.lengths) == job.config.context
