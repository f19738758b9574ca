"""Contrastive training against plain sums over pairs, and cached gradients against the gradient of the whole batch."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax.config import Config, ModelConfig
from bam_jax.config.sections import TRIPLET
from bam_jax.data import tokenizers
from bam_jax.models import transformer
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, contrastive, loop, run_folder
from bam_jax.training.step import define_training, initial_state, make_step, state_shardings

ranking_loss, known_positives = jax.jit(contrastive.ranking_loss), jax.jit(contrastive.known_positives)
VOCAB = 13
LARGER = ("--config.encoding=cable", "--config.model.layers=2", "--config.model.family=gpt2")


def tiny(*overrides):
    model = ModelConfig(layers=1, width=16, heads=4, hidden=32, causal=False, dtype="float32")
    base = Config(encoding="alibi", context=8, batch=8, model=model)
    given = configs.from_arguments(overrides)
    return configs.override(base, {"data.task": "triplets", "optimizer.warmup": 0, "optimizer.clip": 1e9, **given})


def drawn(config, *, seed=0, alphabet=VOCAB, shortest=1):
    """A batch as the loader gives it."""
    rng = np.random.default_rng(seed)
    batch = {}
    for name in TRIPLET:
        length = rng.integers(shortest, config.context + 1, config.batch).astype(np.int32)
        tokens = rng.integers(0, alphabet, (config.batch, config.context)).astype(np.int32)
        batch[name] = np.where(np.arange(config.context) < length[:, None], tokens, 0).astype(np.int32)
        batch[f"{name}_length"] = length
    return batch


def texts(batch, name):
    return [tuple(row[:length].tolist()) for row, length in zip(batch[name], batch[f"{name}_length"], strict=True)]


def slow_known_positives(batch):
    query, positive, negative = (texts(batch, name) for name in TRIPLET)
    right = lambda i: {text for other, text in zip(query, positive, strict=True) if other == query[i]}
    return np.array([[text in right(i) for text in positive + negative] for i in range(len(query))])


def slow_loss(embeddings, excluded, scale):
    embeddings = np.asarray(embeddings, np.float64)
    candidates = np.concatenate([embeddings[:, 1], embeddings[:, 2]])
    losses, right = [], []
    for i, query in enumerate(embeddings[:, 0]):
        scores = {
            c: scale * query @ other / max(np.linalg.norm(query) * np.linalg.norm(other), 1e-12)
            for c, other in enumerate(candidates)
            if c == i or not excluded[i, c]
        }
        losses.append(math.log(sum(map(math.exp, scores.values()))) - scores[i])
        right.append(all(scores[i] > score for c, score in scores.items() if c != i))
    return np.mean(losses), np.mean(right)


@pytest.mark.parametrize("seed", range(3))
def test_equal_texts_are_no_negatives(seed):
    """Two tokens and at most two of them a text: many are equal, and some differ from others in their pads alone."""
    batch = drawn(tiny("--config.batch=12", "--config.context=2"), seed=seed, alphabet=2, shortest=0)
    found = np.asarray(known_positives(batch))
    np.testing.assert_array_equal(found, slow_known_positives(batch))
    assert found[:, :12].diagonal().all() and found.sum() > 12 and not found.all()


def test_comparing_texts_takes_the_memory_of_pairs_and_not_of_their_tokens():
    config = tiny("--config.batch=128", "--config.context=64")
    pairs = 128 * 256
    assert known_positives.lower(drawn(config)).compile().memory_analysis().temp_size_in_bytes < 24 * pairs


def test_the_loss_is_that_of_plain_sums(rng):
    embeddings = rng.normal(size=(6, 3, 5)).astype(np.float32)
    embeddings[0, 1] += 5 * embeddings[0, 0]
    excluded = rng.random((6, 12)) < 0.3
    for scale, left_out in itertools.product((1.0, 20.0), (excluded, np.zeros_like(excluded))):
        found = ranking_loss(jnp.asarray(embeddings), jnp.asarray(left_out), scale)
        np.testing.assert_allclose(found, slow_loss(embeddings, left_out, scale), rtol=1e-5)
    longer = ranking_loss(jnp.asarray(embeddings * rng.uniform(0.1, 9, (6, 3, 1))), jnp.asarray(excluded), 20.0)
    np.testing.assert_allclose(longer, slow_loss(embeddings, excluded, 20.0), rtol=1e-5)


def test_the_least_batches_have_a_loss():
    nothing = jnp.zeros((1, 2), bool)
    one = jnp.asarray([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    loss, accuracy = ranking_loss(one, nothing, 20.0)  # a hard negative is the only one
    assert loss == pytest.approx(math.log1p(math.exp(-20)), abs=1e-6) and accuracy == 1
    loss, accuracy = ranking_loss(one, jnp.ones((1, 2), bool), 20.0)  # and that one equals the positive
    assert loss == 0 and accuracy == 1
    loss, accuracy = ranking_loss(jnp.zeros((4, 3, 2)), jnp.zeros((4, 8), bool), 20.0)  # texts without tokens
    assert loss == pytest.approx(math.log(8)) and accuracy == 0  # none is nearer than another


def stepped(config, batch, first=None):
    """The metrics of a step, the state before it, and the gradient, from what Adam keeps of it."""
    mesh = sharding.make_mesh(config.mesh)
    sharding.check(config, mesh)
    with jax.set_mesh(mesh):
        graph, init, tx = define_training(config, VOCAB)
        cut = state_shardings(jax.eval_shape(init), tx, mesh)
        state = initial_state(init, shardings=cut) if first is None else jax.device_put(first, cut)
        before = jax.tree.map(np.array, state)
        state, metrics = make_step(config, graph, tx, cut)(state, sharding.shard_batch(batch, mesh))
    gradient = jax.tree.map(lambda x: np.asarray(x) / (1 - config.optimizer.b1), state["optimizer"][1].mu)
    return np.asarray(metrics), before, gradient


def see_the_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert expected[0][1] > 0.1
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * expected[0][1])
    jax.tree.map(close, found[2], expected[2])


def repeated(config):
    """A batch with a query twice and an empty one."""
    batch = drawn(config)
    batch["query"][5], batch["query_length"][5] = batch["query"][2], batch["query_length"][2]
    batch["query"][7], batch["query_length"][7] = 0, 0
    return batch


@pytest.fixture(scope="module", params=[[], pytest.param(LARGER, marks=pytest.mark.full)], ids=["alibi", "cable"])
def whole(request):
    """The changes of a configuration, and a step of the whole batch on one device."""
    config = tiny(*request.param)
    return request.param, stepped(config, repeated(config))


def test_a_step_minimises_the_loss_of_the_whole_batch(whole):
    metrics, _, gradient = whole[1]
    assert metrics.shape == (3,) and 0 < metrics[0] < 20 and 0 <= metrics[2] <= 1
    norms = [float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)]
    assert all(map(math.isfinite, norms)) and sum(norm > 0 for norm in norms) > len(norms) - 2  # not the head


def test_cached_gradients_are_those_of_the_whole_batch(whole):
    overrides, expected = whole
    config = tiny(*overrides, "--config.optimizer.accumulate=4")
    see_the_same(stepped(config, repeated(config), expected[1]), expected)


@pytest.mark.full
def test_cached_gradients_take_the_memory_of_a_micro_batch():
    def temporary(count):
        config = tiny("--config.batch=64", "--config.context=32", f"--config.optimizer.accumulate={count}")
        graph, init, tx = define_training(config, VOCAB)
        step = make_step(config, graph, tx).lower(jax.eval_shape(init), drawn(config)).compile()
        return step.memory_analysis().temp_size_in_bytes

    assert temporary(16) < temporary(1) / 4


MESHES = {"data": (4, 1, 1, 1), "data and tensor": (2, 2, 2, 1), "a ring": (2, 1, 1, 4)}


@pytest.mark.full
@pytest.mark.parametrize(("mesh", "count"), [*itertools.product(MESHES, (2,)), ("data and tensor", 1)])
def test_candidates_are_those_of_all_devices(whole, mesh, count):
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")
    overrides, expected = whole
    sizes = zip(sharding.AXES, MESHES[mesh], strict=True)
    cut = [f"--config.mesh.{name}={n}" for name, n in sizes]
    config = tiny(*overrides, *cut, f"--config.optimizer.accumulate={count}")
    see_the_same(stepped(config, repeated(config), expected[1]), expected)


def test_rows_are_dealt_to_micro_batches_and_back(rng):
    x = rng.normal(size=(12, 3))
    parts = sharding.micro_batches(x, 4)
    assert parts.shape == (4, 3, 3)
    np.testing.assert_array_equal(sharding.join_micro_batches(parts), x)


def run(triplets, *overrides):
    given = f"data.source={triplets} data.tokenizer=byte context=12 steps=6 log_every=1 checkpoint_every=2".split()
    return tiny(*(f"--config.{each}" for each in given), *overrides)


@pytest.mark.full
def test_an_encoder_learns_from_triplets(triplets, tmp_path):
    config = run(triplets, "--config.optimizer.accumulate=2", "--config.steps=30", "--config.checkpoint_every=30")
    records = loop.fit(config, tmp_path / "run", progress=False)
    assert records[-1]["loss"] < records[0]["loss"] - 0.3 and records[-1]["tokens"] == 30 * 3 * 8 * 12
    assert all(0 <= record["accuracy"] <= 1 for record in records) and records[-1]["accuracy"] > records[0]["accuracy"]


@pytest.mark.full
def test_it_starts_from_masked_language_modelling(triplets, tmp_path, capsys):
    masked = configs.override(run(triplets), {"data.task": "masked", "data.source": "stdlib", "seed": 5})
    tokenizer = tokenizers.tokenizer(masked.data.tokenizer)
    _, init, _ = define_training(masked, run_folder.vocabulary_size(masked, tokenizer))
    first = init()["model"]
    checkpoint.write_model(tmp_path / "masked", masked, tokenizer, first)
    # At rate almost 0 the first step leaves the parameters almost where they were.
    config = run(triplets, f"--config.start={tmp_path / 'masked'}", "--config.steps=1", "--config.optimizer.rate=1e-12")
    loop.fit(config, tmp_path / "run", progress=False)
    trained = transformer.split(checkpoint.restore_model(tmp_path / "run")[2])[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), trained, first)
    # An encoding without parameters takes those of any other.
    loop.fit(configs.override(config, {"encoding": "nope"}), tmp_path / "other")
    assert f"config.start={tmp_path / 'masked'} has encoding=alibi; it goes on with nope" in capsys.readouterr().err


def test_a_start_with_another_tokenizer_is_refused(triplets, tmp_path):
    start = Config()
    with run_folder.claim(tmp_path / "start", start, tokenizers.tokenizer(start.data.tokenizer)):
        pass
    with pytest.raises(UserError, match="config.start=.*start was made with a tokenizer of hash .* tokenizer 'byte'"):
        loop.fit(run(triplets, f"--config.start={tmp_path / 'start'}"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["--config.data.source=stdlib"], "needs a folder prepared with the fields query, positive, negative"),
        (["--config.data.source=gs://bucket/text"], "needs a folder prepared with .*gs://bucket/text is not one"),
        (["--config.optimizer.accumulate=2", "--config.batch=9"], "batch=9 must be a multiple of .*accumulate=2"),
        (["--config.data.similarity_scale=0"], "similarity_scale=0.0 must be positive"),
    ],
)
def test_what_cannot_be_trained_is_said_in_a_line(triplets, tmp_path, overrides, says):
    with pytest.raises(UserError, match=says):
        loop.fit(run(triplets, *overrides), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
