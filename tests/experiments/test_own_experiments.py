"""The experiments of patterns and of synthetic tasks, which no paper has: what they train, and what they ask."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_scale
from flax import nnx

from bam_jax import biases
from bam_jax.config.sections import SYNTHETIC
from bam_jax.encodings import ENCODINGS
from bam_jax.evals.synthetic import Synthetic
from bam_jax.experiments import experiment, jobs
from bam_jax.experiments.cells import Printed, TableName
from bam_jax.models import transformer
from bam_jax.system.errors import UserError
from bam_jax.training.loop import DECODER_TASKS

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("name", ["patterns", "synthetic", "leaderboard", "null_models"])
def test_no_paper_has_them(name):
    with pytest.raises(UserError, match=f"{name}.py compares is no paper's; give --scale=toy or --scale=small"):
        experiment.load(EXPERIMENTS / f"{name}.py", scale="paper")
    cell = Printed(Path("nowhere"), "paper", EXPERIMENTS).seed_values(TableName("patterns", "Keys found"), "RoPE", "1×")
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


def test_the_leaderboard_has_every_encoding_and_the_factors_of_those_that_are_stretched():
    made = experiment.load(EXPERIMENTS / "leaderboard.py")
    planned = {job.row.label: job for job in jobs.jobs(made)}
    assert {*ENCODINGS} < {*planned} == {row.label for row in made.rows}
    stretched = {}
    for label, job in planned.items():
        for each in job.row.evaluations:
            if each.overrides:
                stretched.setdefault(label, set()).add((each.lengths, *each.overrides.values()))
    assert {*stretched} == {label for label in ENCODINGS if label.startswith("rope_")} | {"alibi"}
    assert all(found == {((256,), 4.0), ((1024,), 16.0), ((4096,), 64.0)} for found in stretched.values())


def test_the_null_models_differ_in_one_part_each():
    made = experiment.load(EXPERIMENTS / "null_models.py")
    planned = {job.row.label: job.config for job in jobs.row_jobs(made)}
    tables = {}
    for name in ("ladder", "frozen ladder", "NAPE"):
        config = planned[f"{name}, effective SSMax, 2 layers"]
        encoding = transformer.build(config, vocab=64, rngs=nnx.Rngs(0)).layers.attention.encoding
        trained = {path[-1] for path, _ in nnx.to_flat_state(nnx.state(encoding, nnx.Param))}
        assert (name == "frozen ladder") <= trained.isdisjoint({"shape", "log_scale", "loc"})
        graph, state = nnx.split(encoding)
        first = nnx.merge(graph, jax.tree.map(lambda x: x[0], state))
        tables[name] = biases.table(first.bias(), *[jnp.arange(8.0)[None, None]] * 2)[0]
    np.testing.assert_array_equal(tables["ladder"], tables["frozen ladder"])
    np.testing.assert_allclose(tables["ladder"][1:], tables["NAPE"][:3], atol=1e-4)  # near heads, in another order
    assert not tables["NAPE"][3].any()
