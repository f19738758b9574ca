"""Keys that repeat are counted by kind where the bias is level, and the result is that of all keys one by one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Mask, Scoring, Tiling, Tokens, UniqueKeys, attention
from bam_jax.attention.cpu import repeated
from bam_jax.attention.logits import skipping
from tests.attention.common import close, normals, slopes

B, T, S, H, K, D, C = 2, 128, 256, 4, 2, 8, 7
BLOCK = 16
BIASES = {
    "level far away": (
        biases.GeneralisedGaussian(jnp.array([-4.0, -9.0, -4.0, -9.0]), jnp.zeros(4), jnp.zeros(4)),
        1e-5,
    ),
    "some heads local": (
        biases.GeneralisedGaussian(jnp.array([-4.0, 2.0, 1.0, -9.0]), jnp.ones(4), jnp.zeros(4)),
        1e-5,
    ),
    "uniform": (biases.Uniform(), "exact"),
    "sloping": (biases.ALiBi(jnp.array([0.1, 1e-9, 1e-9, 1e-9])), "exact"),
    "bounds not known": (biases.T5(jnp.ones((4, 8)), biases.t5_starts(8, 16)), "exact"),
}


@pytest.fixture
def case(rng):
    """q, k, v and the kinds of the keys; the keys of one kind are alike."""
    of = jnp.asarray(rng.integers(0, C, (B, S)), jnp.int32)
    q, *kinds = normals(rng, (B, T, H, D), (C, K, D), (C, K, D))
    return q, *(x[of] for x in kinds), UniqueKeys(of, C)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def results(gradients, backend, skip, q, k, v, scoring):
    run = lambda q, k, v: attention(q, k, v, scoring, backend=backend, tiling=Tiling(skip, BLOCK, BLOCK))
    return slopes(run, q, k, v) if gradients else run(q, k, v)


def compare(q, k, v, scoring, skip, gradients=False):
    made, expected = (results(gradients, backend, skip, q, k, v, scoring) for backend in ("chunked", "reference"))
    close(made, expected, 3e-4 if gradients else 3e-5)


def scoring_of(bias, of, position, *, segment=None, mask=None, temperature=None):
    last = lambda x: None if x is None else x[:, -T:]
    queries = Tokens(last(position), last(segment))
    return Scoring(bias, queries, Tokens(position, segment, kinds=of), temperature, mask or Mask())


LAYOUTS = ("common", "padded on the left", "packed", "window", "bidirectional")
CASES = [("some heads local", layout) for layout in LAYOUTS] + [
    (name, "padded on the left") for name in BIASES if name != "some heads local"
]


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_counting_changes_nothing(name, layout, case, rng):
    q, k, v, of = case
    bias, skip = BIASES[name]
    position, segment = jnp.arange(S)[None], None
    if layout == "padded on the left":
        position = position - jnp.array([[37], [0]])
        position = jnp.where(position < 0, EMPTY, position)
    if layout == "packed":
        segment = jnp.asarray(np.repeat([[1, 2]], S // 2, axis=1))
    mask = {"window": Mask(window=90), "bidirectional": Mask(causal=False)}.get(layout, Mask())
    temperature = jnp.asarray(rng.uniform(0, 2, (1, H, T)), jnp.float32)
    compare(q, k, v, scoring_of(bias, of, position, segment=segment, mask=mask, temperature=temperature), skip)


def test_slots_not_yet_written_are_of_no_kind(case):
    q, k, v, of = case
    filled = jnp.arange(S)[None] < 200
    k, v = (jnp.where(filled[:, :, None, None], x, 100.0) for x in (k, v))
    of = UniqueKeys(jnp.where(filled, of.of, 0), C)
    keys = Tokens(jnp.where(filled, jnp.arange(S), EMPTY), kinds=of)
    queries = Tokens(jnp.arange(200 - T, 200)[None])
    compare(q, k, v, Scoring(biases.Uniform(), queries, keys), "exact")


@pytest.mark.full
def test_far_tiles_are_counted_where_the_bias_is_level(case):
    q, k, v, of = case

    def walked(name, skip):
        scoring = scoring_of(BIASES[name][0], of, jnp.arange(S)[None])
        needed = skipping.needed(q, k, scoring, skip, BLOCK, BLOCK)
        _, near = repeated.counted(q, k, v, scoring, needed, skip, BLOCK, BLOCK)
        return near.any(0).sum(-1).tolist()

    blocks = list(range(9, 17))  # that each block of the queries, the last 128 of 256 tokens, sees of 16
    assert walked("uniform", "exact") == [1] * 8
    assert walked("sloping", "exact") == blocks == walked("bounds not known", "exact")
    far = walked("level far away", 1e-5)  # distance ** -4 changes by less than 1e-5 beyond 17 tokens
    assert far == [3] * 8


def test_few_queries_and_skipping_off_do_without(case):
    of = case[3]
    scoring = scoring_of(biases.Uniform(), of, jnp.arange(S)[None])
    assert repeated.worthwhile(scoring, "exact", T, D, BLOCK)
    assert not repeated.worthwhile(scoring, "off", T, D, BLOCK)
    assert not repeated.worthwhile(scoring, "exact", 5, D, BLOCK)
    many = dataclasses.replace(scoring, keys=dataclasses.replace(scoring.keys, kinds=UniqueKeys(of.of, S)))
    assert not repeated.worthwhile(many, "exact", T, D, BLOCK)


def test_gradients_are_those_of_all_keys(case):
    q, k, v, of = case
    bias, skip = BIASES["level far away"]
    compare(q, k, v, scoring_of(bias, of, jnp.arange(S)[None]), skip, gradients=True)
