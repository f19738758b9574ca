"""A training that starts from another run: the sizes that it takes, and its parameters under another encoding."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax import train
from bam_jax.config import Config
from bam_jax.data import tokenizers
from bam_jax.models import transformer
from bam_jax.training import checkpoint, run_folder, start, weights
from bam_jax.training.step import define_training, initial_state

SIZES = {"layers": 1, "width": 24, "heads": 2, "hidden": 20, "tied": True, "norm_epsilon": 1e-3}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run and exported weights of the same model, which has RoPE and the tokenizer byte."""
    folder = tmp_path_factory.mktemp("start")
    tree = {
        "encoding": "rope",
        "encoding_options": {"base": 500.0},
        "model": SIZES,
        "data": {"tokenizer": "byte"},
        "steps": 1,
    }
    config, tokenizer = configs.from_dict(tree), tokenizers.tokenizer("byte")
    arrays = model_of(dataclasses.replace(config, seed=9))
    checkpoint.write_model(folder / "run", config, tokenizer, arrays)
    weights.write(folder / "weights", config, tokenizer, arrays, 1)
    return folder


def model_of(config):
    return define_training(config, 257)[1]()["model"]


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("kind", ["run", "weights"])
def test_sizes_and_the_tokenizer_are_those_of_the_start(made, tmp_path, write_tiny, command, kind):
    write_tiny(tmp_path, context=16, batch=2, steps=1)
    ask = f"--config={tmp_path / 'tiny.py'}", f"--workdir={tmp_path / 'run'}", f"--config.start={made / kind}"
    change = (
        "--config.encoding=nope",
        "--config.optimizer.rate=1e-12",
        "--config.model.kv_heads=2",
    )  # heads, in other words
    code, _, said = command(train.main, *ask, *change)
    assert not code, said
    assert "has encoding=rope (base=500.0); it goes on with nope" in said
    config = run_folder.read_config(tmp_path / "run")
    assert (
        dataclasses.replace(config.model, kv_heads=0) == Config(model=configs.from_dict({"model": SIZES}).model).model
    )
    assert (config.data.tokenizer, config.encoding, config.context) == ("byte", "nope", 16)
    before, after = (transformer.split(checkpoint.restore_model(run)[2])[1] for run in (made / kind, tmp_path / "run"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), before, after)


def test_a_resumed_training_needs_its_start_no_more(made, tmp_path):
    config = run_folder.read_config(made / "run")
    changes = {"start": str(made / "run"), "steps": 5}
    found = start.sizes(changes, tmp_path / "run")
    own = configs.override(
        dataclasses.replace(config, encoding="nope", encoding_options={}), {**found, "start": "gone/run"}
    )
    checkpoint.write_model(tmp_path / "run", own, tokenizers.tokenizer("byte"), model_of(own))
    assert start.sizes({"start": "gone/run"}, tmp_path / "run") == found
    assert start.sizes({}, tmp_path / "run") == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("layers=2", "config.model.layers=2 contradicts config.start=.*, where it is 1; leave it out"),
        ("width=32", "config.model.width=32 contradicts .*, where it is 24"),
        ("kv_heads=1", "config.model.kv_heads=1 contradicts .*, where it is 2"),
        ("tied=False", "config.model.tied=False contradicts .*, where it is True"),
        ("family=gpt2", "config.model.family=gpt2 contradicts .*, where it is llama"),
    ],
)
def test_a_size_that_contradicts_the_start_is_refused(made, tmp_path, write_tiny, refused, change, says):
    write_tiny(tmp_path)
    ask = f"--config={tmp_path / 'tiny.py'}", f"--workdir={tmp_path / 'run'}", f"--config.start={made / 'run'}"
    assert re.search(says, refused(train.main, *ask, f"--config.model.{change}"))
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_is_named(tmp_path, write_tiny, refused):
    write_tiny(tmp_path)
    ask = f"--config={tmp_path / 'tiny.py'}", f"--workdir={tmp_path / 'run'}"
    assert "nowhere is not a run" in refused(train.main, *ask, f"--config.start={tmp_path / 'nowhere'}")


@pytest.mark.parametrize("kind", ["run", "weights"])
def test_another_encodings_parameters_begin_anew_and_come_and_go(made, tmp_path, kind):
    config = run_folder.read_config(made / kind)
    prior = configs.override(config, {"encoding": "bam", "encoding_options": {"init": "spread"}, "ssmax": "on"})
    first = initial_state(define_training(prior, 257)[1], str(made / kind))["model"]
    fresh, rope = model_of(prior), model_of(dataclasses.replace(config, seed=9))
    attention, theirs = (dict(tree["params"]["layers"]["attention"]) for tree in (first, rope))
    for part in ("encoding", "ssmax"):
        same(attention.pop(part), fresh["params"]["layers"]["attention"][part])
    same(attention, {name: part for name, part in theirs.items() if name in attention})
    same(first["frozen"], fresh["frozen"])
    same(first["params"]["embed"], rope["params"]["embed"])
    # and back: what the prior had is left out
    checkpoint.write_model(tmp_path / "bam", prior, tokenizers.tokenizer("byte"), first)
    same(initial_state(define_training(config, 257)[1], str(tmp_path / "bam"))["model"], rope)
