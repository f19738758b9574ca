"""The experiment of patterns: what it trains, and what it asks."""

import json
import runpy
from pathlib import Path

import pytest
import small_scale
from flax import nnx

from bam_jax.experiments import experiment, jobs
from bam_jax.experiments.cells import Printed, TableName
from bam_jax.models import transformer
from bam_jax.system.errors import UserError

PATH = Path(__file__).parents[2] / "experiments" / "patterns.py"


@pytest.fixture
def rates(tmp_path, monkeypatch):
    """Rates as the search writes them: here the last try of each method."""
    tries = runpy.run_path(str(PATH.with_name("patterns_rates.py")))["TRIES"]
    assert {len(tried) for tried in tries.values()} == {3}
    monkeypatch.setattr(small_scale, "PATTERN_RATES", tmp_path / "patterns_rates.json")
    chosen = {method: {**tried[-1], "optimizer.rate": 1e-3 * n} for n, (method, tried) in enumerate(tries.items(), 1)}
    small_scale.PATTERN_RATES.write_text(json.dumps({"rates": chosen}))
    return chosen


@pytest.mark.parametrize("name", ["patterns", "synthetic"])
def test_no_paper_has_them(name):
    with pytest.raises(UserError, match=f"{name}.py compares is no paper's; give --scale=toy or --scale=small"):
        experiment.load(PATH.with_stem(name), scale="paper")


def test_no_paper_prints_a_number_of_them(tmp_path):
    cell = Printed(tmp_path, "paper", PATH.parent).seed_values(TableName("patterns", "Keys found"), "RoPE", "1×")
    assert cell.values == {}


def test_the_small_scale_has_the_rates_of_its_search(rates):
    made = experiment.load(PATH, scale="small")
    assert {row.overrides["optimizer.rate"] for row in made.rows} == {each["optimizer.rate"] for each in rates.values()}
    trained = {row.label: rates[row.label] for row in made.rows if not row.changes}
    prior = {label for label, chosen in trained.items() if "optimizer.prior_rate" in chosen}
    assert prior == {label for label in rates if "BAM" in label} and len(prior) == 2


@pytest.mark.parametrize(("scale", "seeds"), [("toy", 1), ("small", 8)])
def test_every_method_is_trained_and_asked_alike(scale, seeds, rates):
    trained = jobs.jobs(experiment.load(PATH, scale=scale))
    assert len({job.name for job in trained}) == len(trained) == 9 * seeds
    grown = {job.row.label for job in trained if any(each.overrides for each in job.row.evaluations)}
    assert grown == {"RNoPE", "RNoPE, gated"}, "iRoPE's rows are models of these, asked twice"
    asked = {tuple(each for each in job.row.evaluations if not each.overrides) for job in trained}
    assert len(asked) == 1
    patterns = {job.config.encoding for job in trained if "/" in job.config.encoding}
    assert len(patterns) == 4
    prior = [job.config.encoding_options for job in trained if job.config.encoding == "bam"]
    assert all(options == {"init": "uniform"} for options in prior), (
        "the pattern's prior has no trained location either"
    )
    for job in trained:
        assert job.name.isascii() and "/" not in job.name
        if job.config.seed in (0, 400):
            made = nnx.eval_shape(lambda job=job: transformer.build(job.config, vocab=64, rngs=nnx.Rngs(0)))
            assert sum(stack.attention.query.kernel.shape[0] for stack in made.stacks()) == job.config.model.layers == 4
