import dataclasses
import itertools

import jax
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax.data import loader, tokenizers
from bam_jax.models import transformer
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, loop, metrics
from bam_jax.training.held_out import held_out_loss, jit_loss
from bam_jax.training.step import define_training, initial_state, make_gradient

SIZES = {"layers": 1, "width": 16, "heads": 2, "hidden": 16}


@pytest.fixture(scope="module")
def text(tmp_path_factory, write_tiny):
    return str(write_tiny(tmp_path_factory.mktemp("text")) / "text.txt")


def described(text, **changes):
    tree = {"encoding": "alibi", "context": 16, "batch": 4, "steps": 6, "eval_tokens": 100, "log_every": 4}
    return configs.override(
        configs.from_dict({**tree, "model": SIZES}), {"data.source": text, "optimizer.warmup": 1, **changes}
    )


def measured(config, tokenizer):
    """The loss of the first parameters, and these."""
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        graph, initialise, _ = define_training(config, tokenizer.size)
        state = initial_state(initialise)
        return held_out_loss(config, tokenizer, make_gradient(config, graph), mesh)(state), graph, state


def batches(config, tokenizer):
    """100 tokens of rows of 16 in batches of 4 are two batches."""
    return list(itertools.islice(loader.batches(config, tokenizer, "held_out"), 2))


@pytest.mark.full
@pytest.mark.parametrize("changes", [{}, {"data.task": "passkey", "data.answer_weight": 3.0, "context": 24}])
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
    for cut in ({"optimizer.accumulate": 2}, {"mesh.data": 2, "mesh.tensor": 2}):
        np.testing.assert_allclose(measured(configs.override(config, cut), tokenizer)[0], found, rtol=1e-5)


def test_queries_among_candidates_as_well(triplets):
    changes = {"data.tokenizer": "byte", "data.task": "triplets", "model.causal": False, "eval_tokens": 1}
    config = described(triplets, **changes)
    found, _, _ = measured(config, tokenizers.tokenizer("byte"))
    assert abs(found - np.log(8)) < 2.5  # untrained: about that of one candidate of eight


@pytest.mark.full
def test_it_changes_nothing_of_a_training_and_stands_in_its_lines(text, tmp_path):
    config = described(text, **{"data.holdout": 0.2})
    plain = loop.fit(config, tmp_path / "plain", progress=False)
    records = loop.fit(dataclasses.replace(config, eval_every=3), tmp_path / "measured", progress=False)
    assert [(line["step"], "held_out_loss" in line) for line in records] == [(3, True), (4, False), (6, True)]
    assert [line["step"] for line in plain] == [4, 6] and plain[-1]["loss"] == records[-1]["loss"]
    assert records[-1]["held_out_loss"] < records[0]["held_out_loss"] < np.log(73) + 0.5
    trees = [transformer.split(checkpoint.restore_model(tmp_path / name)[2])[1] for name in ("plain", "measured")]
    jax.tree.map(np.testing.assert_array_equal, *trees)
    assert metrics.read_metrics(tmp_path / "measured") == records


MASKED = {"data.task": "masked", "data.tokenizer": "byte", "data.mask_fraction": 1e-9, "model.causal": False}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data.holdout": 0.0}, "config.eval_every=2 measures on held-out text, and the text has 0 tokens"),
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
    config, tokenizer = described(text, **{"optimizer.accumulate": accumulate}), tokenizers.tokenizer("char")
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        graph, initialise, _ = define_training(config, tokenizer.size)
        model = jax.eval_shape(initialise)["model"]
        batch, gradient_of = sharding.shard_batch(batches(config, tokenizer)[0], mesh), make_gradient(config, graph)
        gradient = jax.jit(gradient_of).lower(model["params"], model["frozen"], batch)
        lowered = jit_loss(gradient_of).lower(model, batch), gradient
        operations = [each.compile().cost_analysis()["flops"] for each in lowered]
    assert 0 < operations[0] < 0.5 * operations[1]
