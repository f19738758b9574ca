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
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, contrastive, loop, run_folder
from bam_jax.training.step import define_training, make_step

ranking_loss, known_positives = jax.jit(contrastive.ranking_loss), jax.jit(contrastive.known_positives)
VOCAB = 13


def tiny(*overrides):
    model = ModelConfig(layers=1, width=16, heads=4, hidden=32, causal=False, dtype="float32")
    base = Config(encoding="cable", context=8, batch=8, model=model)
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


def slow_loss(embeddings, excluded, scale):
    x = np.float64(embeddings)
    x /= np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    losses, right = [], []
    for i, query in enumerate(x[:, 0]):
        wrong = [c for c in range(2 * len(x)) if c != i and not excluded[i, c]]
        own, *others = (scale * query @ np.concatenate([x[:, 1], x[:, 2]])[[i, *wrong]].T).tolist()
        losses.append(math.log(sum(map(math.exp, (own, *others)))) - own)
        right.append(all(own > score for score in others))
    return np.mean(losses), np.mean(right)


@pytest.mark.parametrize("seed", range(3))
def test_equal_texts_are_no_negatives(seed):
    """Two tokens and at most two of them a text: many are equal, and some differ from others in their pads alone."""
    batch = drawn(tiny("--config.batch=12", "--config.context=2"), seed=seed, alphabet=2, shortest=0)
    found = np.asarray(known_positives(batch))
    query, positive, negative = (
        [tuple(row[:length]) for row, length in zip(batch[name], batch[f"{name}_length"], strict=True)]
        for name in TRIPLET
    )
    right = lambda i: {text for other, text in zip(query, positive, strict=True) if other == query[i]}
    expected = [[text in right(i) for text in positive + negative] for i in range(12)]
    np.testing.assert_array_equal(found, expected)
    assert found[:, :12].diagonal().all() and found.sum() > 12 and not found.all()


def test_comparing_texts_takes_the_memory_of_pairs_and_not_of_their_tokens():
    config = tiny("--config.batch=128", "--config.context=64")
    pairs = 128 * 256
    assert known_positives.lower(drawn(config)).compile().memory_analysis().temp_size_in_bytes < 24 * pairs


def test_the_loss_is_that_of_plain_sums(rng):
    embeddings = rng.normal(size=(6, 3, 5)).astype(np.float32)
    embeddings[0, 1] += 5 * embeddings[0, 0]
    embeddings[1] *= 9  # lengths do not matter
    excluded = rng.random((6, 12)) < 0.3
    for scale, left_out in itertools.product((1.0, 20.0), (excluded, np.zeros_like(excluded))):
        found = ranking_loss(jnp.asarray(embeddings), jnp.asarray(left_out), scale)
        np.testing.assert_allclose(found, slow_loss(embeddings, left_out, scale), rtol=1e-5)
    loss, accuracy = ranking_loss(jnp.ones((1, 3, 2)), jnp.ones((1, 2), bool), 20.0)  # none but the positive
    assert loss == 0 and accuracy == 1
    loss, accuracy = ranking_loss(jnp.zeros((4, 3, 2)), jnp.zeros((4, 8), bool), 20.0)  # texts without tokens
    assert loss == pytest.approx(math.log(8)) and accuracy == 0  # none is nearer than another


@pytest.fixture(scope="module")
def stepped(take_steps):
    """Takes a step on a batch with a query twice and an empty one: its metrics, the gradient, and the state before."""

    def step(config, first=None):
        batch = drawn(config)
        batch["query"][5], batch["query_length"][5] = batch["query"][2], batch["query_length"][2]
        batch["query"][7], batch["query_length"][7] = 0, 0
        (metrics,), (before, after) = take_steps(config, batch, vocab=VOCAB, first=first)
        return metrics, jax.tree.map(lambda x: x / (1 - config.optimizer.b1), after["optimizer"][1].mu), before

    return step


@pytest.fixture(scope="module")
def whole(stepped):
    """A step of the whole batch on one device."""
    return stepped(tiny())


LONG = [(mesh, count) for mesh in ("data=4", "data=2 tensor=2 fsdp=2", "data=2 context=4") for count in (2, 1)]


@pytest.mark.parametrize(("mesh", "count"), [("", 4), *(pytest.param(*each, marks=pytest.mark.full) for each in LONG)])
def test_gradients_are_those_of_the_whole_batch(stepped, whole, mesh, count):
    """From cached embeddings (count > 1), and among the candidates of all devices."""
    cut = [f"--config.mesh.{axis}" for axis in mesh.split()]
    metrics, gradient, _ = stepped(tiny(*cut, f"--config.optimizer.accumulate={count}"), whole[2])
    np.testing.assert_allclose(metrics, whole[0], rtol=1e-5)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * metrics[1])
    jax.tree.map(close, gradient, whole[1])
    norms = [np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)]
    assert metrics[1] > 0.1 and np.isfinite(norms).all() and np.count_nonzero(norms) > len(norms) - 2  # not the head


@pytest.mark.full
def test_cached_gradients_take_the_memory_of_a_micro_batch():
    def temporary(count):
        config = tiny("--config.batch=64", "--config.context=32", f"--config.optimizer.accumulate={count}")
        graph, init, tx = define_training(config, VOCAB)
        step = make_step(config, graph, tx).lower(jax.eval_shape(init), drawn(config)).compile()
        return step.memory_analysis().temp_size_in_bytes

    assert temporary(16) < temporary(1) / 4


def run(triplets, *overrides):
    given = f"data.source={triplets} data.tokenizer=byte context=12 steps=6 log_every=1 checkpoint_every=2".split()
    return tiny(*(f"--config.{each}" for each in given), *overrides)


@pytest.mark.full
def test_it_starts_from_masked_language_modelling(triplets, tmp_path, capsys):
    alibi = "--config.encoding=alibi"
    masked = configs.override(run(triplets, alibi), {"data.task": "masked", "data.source": "stdlib", "seed": 5})
    tokenizer = tokenizers.tokenizer(masked.data.tokenizer)
    _, init, _ = define_training(masked, run_folder.vocabulary_size(masked, tokenizer))
    first = init()["model"]
    checkpoint.write_model(tmp_path / "masked", masked, tokenizer, first)
    # At rate almost 0 the first step leaves the parameters almost where they were.
    start = alibi, f"--config.start={tmp_path / 'masked'}", "--config.steps=1", "--config.optimizer.rate=1e-12"
    config = run(triplets, *start)
    (record,) = loop.fit(config, tmp_path / "run", progress=False)
    assert 0 <= record["accuracy"] <= 1 and record["tokens"] == 3 * 8 * 12
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
        (
            ["--config.data.source=memory://bucket/text"],
            "needs a folder prepared with .*memory://bucket/text is not one",
        ),
        (["--config.optimizer.accumulate=2", "--config.batch=9"], "batch=9 must be a multiple of .*accumulate=2"),
        (["--config.data.similarity_scale=0"], "similarity_scale=0.0 must be positive"),
    ],
)
def test_what_cannot_be_trained_is_said_in_a_line(triplets, tmp_path, overrides, says):
    with pytest.raises(UserError, match=says):
        loop.fit(run(triplets, *overrides), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
