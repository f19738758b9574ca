"""What runs cost, against counting by hand."""

import re

import pytest

from bam_jax import config
from bam_jax.config import Config, ModelConfig
from bam_jax.evals.harness import Harness
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import costs, jobs
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.models import counts
from bam_jax.system.errors import UserError

SIZES = {"layers": 3, "width": 32, "heads": 4, "hidden": 48, "vocab": 50}
CONFIG = str(config.CONFIGS / "quickstart.py")


@pytest.mark.parametrize("encoding", ["nope", "bam", "learned"])
@pytest.mark.parametrize("causal", [True, False])
def test_training_is_counted_product_by_product(encoding, causal):
    model = ModelConfig(**SIZES, causal=causal)
    config = Config(encoding=encoding, model=model, context=16, batch=2, steps=5)
    products = 2 * (3 * (4 * 32 * 32 + 3 * 32 * 48) + 32 * 50) + 3 * 2 * 2 * 32 * (8 if causal else 16)
    forward_and_backward = 3 * products * 5 * 2 * 16
    assert 0.999 * forward_and_backward < counts.training_operations(config) < 1.15 * forward_and_backward


def test_evaluating_grows_with_prompts_and_lengths():
    cost = lambda *evaluations: costs.evaluating(Config(encoding="nope", model=ModelConfig(**SIZES)), evaluations)
    one = cost(Passkey((64,), depths=1))
    assert cost(Passkey((64,), depths=3, trials=2)) == 6 * one
    assert cost(Passkey((64, 128), depths=1)) > 3 * one
    assert cost(Perplexity((64,), tokens=640)) == 10 * one
    both_ways = Config(encoding="nope", model=ModelConfig(**SIZES, causal=False))
    assert costs.evaluating(both_ways, (Passkey((64,), depths=1),)) == one + 64 * 2 * 3 * 32 * 64
    questions = Harness((64,), tasks=("longbench2_code", "longbench2"), questions=2)
    assert cost(questions) == 4 * 2 * 20 * one, "four answers to two questions of each of twenty tasks"


def test_the_table_adds_up():
    rows = Row("a", CONFIG, {"model.vocab": 100}), Row("b", CONFIG, {"model.vocab": 100, "steps": 1000}, start="a")
    title, _, *lines = costs.table("Two runs", jobs.jobs(Experiment("t", rows)), "cpu").splitlines()
    assert "2 runs" in title and "one cpu at 40%" in title
    cells = [line.split() for line in lines]
    assert [line[:2] for line in cells] == [["a-seed0", "3.07e+06"], ["b-seed0", "1.02e+06"], ["all", "4.10e+06"]]
    hours = [float(line[-1]) for line in cells]
    assert hours[2] == pytest.approx(hours[0] + hours[1], abs=0.02)


def test_what_several_tables_ask_for_is_counted_once():
    near, both = (Row("r", CONFIG, evaluations=(Passkey(lengths),)) for lengths in ((64,), (64, 512)))
    alone, together = (jobs.jobs(*(Experiment("t", (row,), shared=True) for row in x)) for x in ((both,), (near, both)))
    assert costs.table("t", together, "cpu") == costs.table("t", alone, "cpu")
    assert [job.cost() for job in together] == [job.cost() for job in alone]


@pytest.mark.parametrize(("chip", "share", "says"), [("h10", 0.4, "did you mean 'h100'"), ("h100", 1.2, "=1.2 must")])
def test_unknown_chips_and_shares_are_named(chip, share, says):
    with pytest.raises(UserError, match=says):
        costs.hours(1e18, chip, share)


@pytest.mark.parametrize("name", ["lm_120m", "lm_432m", "lm_1b", "gpt2_tiny", "gpt2_small", "gpt2_medium"])
def test_the_configs_say_what_a_dry_run_says(name):
    path = config.CONFIGS / f"{name}.py"
    (said,) = re.findall(r"about (\S+) floating-point\s+operations", path.read_text())
    vocab = 32_768 if name.startswith("lm") else 50_304
    assert f"{counts.training_operations(config.load(path, {'model.vocab': vocab})):.1e}" == said
