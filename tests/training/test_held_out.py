"""The held-out loss against a sum over tokens, and a training that measures it against one that does not."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax.data import loader, tokenizers
from bam_jax.models import transformer
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, loop
from bam_jax.training.held_out import HeldOutLoss
from bam_jax.training.step import define_training, initial_state, make_gradient

SIZES = {"layers": 1, "width": 16, "heads": 2, "hidden": 16}


@pytest.fixture(scope="module")
def text(tmp_path_factory, write_tiny):
    return str(write_tiny(tmp_path_factory.mktemp("text")) / "text.txt")


def described(text, **changes):
    tree = {"encoding": "alibi", "context": 16, "batch": 4, "steps": 6, "eval_tokens": 100, "log_every": 4}
    data = {"source": text, **changes.pop("data", {})}
    return configs.from_dict({**tree, "model": SIZES, "data": data, "optimizer": {"warmup": 1}, **changes})


def measured(config, tokenizer):
    """The loss of the first parameters, and these."""
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        graph, initialise, _ = define_training(config, tokenizer.size)
        state = initial_state(initialise)
        return HeldOutLoss(config, tokenizer, graph, mesh, 0, 1)(state), graph, state


def batches(config, tokenizer):
    """100 tokens of rows of 16 in batches of 4 are two batches."""
    return list(itertools.islice(loader.batches(config, tokenizer, "held_out"), 2))


@pytest.mark.full
@pytest.mark.parametrize("changes", [{}, {"data": {"task": "passkey", "answer_weight": 3.0}, "context": 24}])
def test_it_is_the_weighted_mean_over_tokens(text, changes):
    config, tokenizer = described(text, **changes), tokenizers.tokenizer("char")
    found, graph, state = measured(config, tokenizer)
    model = jax.tree.map(lambda x: x, transformer.nnx.merge(graph, state["model"]["params"], state["model"]["frozen"]))
    total = weight = 0.0
    for batch in batches(config, tokenizer):
        logits = jax.nn.log_softmax(model(batch["tokens"])[0])
        nll = -np.take_along_axis(np.asarray(logits), batch["targets"][..., None], -1)[..., 0]
        total, weight = total + (nll * batch["weights"]).sum(), weight + batch["weights"].sum()
    np.testing.assert_allclose(found, total / weight, rtol=1e-5)
    cut = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, accumulate=2))
    np.testing.assert_allclose(measured(cut, tokenizer)[0], found, rtol=1e-5)
    shared = dataclasses.replace(config, mesh=configs.MeshConfig(data=2, tensor=2))
    np.testing.assert_allclose(measured(shared, tokenizer)[0], found, rtol=1e-5)


def test_queries_among_candidates_as_well(triplets):
    data = {"tokenizer": "byte", "task": "triplets"}
    config = described(triplets, data=data, model=SIZES | {"causal": False}, eval_tokens=1)
    found, _, _ = measured(config, tokenizers.tokenizer("byte"))
    assert abs(found - np.log(8)) < 2.5  # untrained: about that of one candidate of eight


@pytest.mark.full
def test_it_changes_nothing_of_a_training_and_stands_in_its_lines(text, tmp_path):
    config = described(text, data={"holdout": 0.2})
    plain = loop.fit(config, tmp_path / "plain", progress=False)
    records = loop.fit(dataclasses.replace(config, eval_every=3), tmp_path / "measured", progress=False)
    assert [(line["step"], "held_out_loss" in line) for line in records] == [(3, True), (4, False), (6, True)]
    assert [line["step"] for line in plain] == [4, 6] and plain[-1]["loss"] == records[-1]["loss"]
    assert records[-1]["held_out_loss"] < records[0]["held_out_loss"] < np.log(73) + 0.5
    trees = [transformer.split(checkpoint.restore_model(tmp_path / name)[2])[1] for name in ("plain", "measured")]
    jax.tree.map(np.testing.assert_array_equal, *trees)
    last = json.loads((tmp_path / "measured" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["held_out_loss"] == records[-1]["held_out_loss"]


MASKED = {"data": {"task": "masked", "tokenizer": "byte", "mask_fraction": 1e-9}, "model": SIZES | {"causal": False}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": {"holdout": 0.0}}, "config.eval_every=2 measures on held-out text, and the text has 0 tokens"),
        (MASKED, "the first config.eval_tokens=100 of it have nothing to predict; measure on more"),
    ],
)
def test_nothing_to_measure_is_said_before_a_folder_is_made(text, tmp_path, changes, says):
    with pytest.raises(UserError, match=says):
        loop.fit(described(text, eval_every=2, **changes), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_compiler_leaves_the_gradient_out(text, accumulate):
    """A forward pass is about a third of the operations, in each micro-batch as well."""
    config, tokenizer = described(text, optimizer={"warmup": 1, "accumulate": accumulate}), tokenizers.tokenizer("char")
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        graph, initialise, _ = define_training(config, tokenizer.size)
        model = jax.eval_shape(initialise)["model"]
        loss = HeldOutLoss(config, tokenizer, graph, mesh, 0, 1)._loss
        batch = sharding.shard_batch(batches(config, tokenizer)[0], mesh)
        gradient = jax.jit(make_gradient(config, graph)).lower(model["params"], model["frozen"], batch)
        operations = [lowered.compile().cost_analysis()["flops"] for lowered in (loss.lower(model, batch), gradient)]
    assert 0 < operations[0] < 0.5 * operations[1]
