"""Tiles of a relative bias with one value on each diagonal: where they are right, and only there, they are taken."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax import biases
from bam_jax.attention import EMPTY, Scoring, Tiling, Tokens, attention
from bam_jax.attention.logits import skipping, toeplitz

H = 2
RELATIVE = {
    "alibi": biases.ALiBi(jnp.array([0.3, 2.0])),
    "ggd": biases.GeneralisedGaussian(jnp.array([1.5, -0.5]), jnp.array([0.1, 0.0]), jnp.array([-0.5, 0.3])),
    "kerple_log": biases.KerpleLog(jnp.array([1.0, 2.0]), jnp.array([0.5, 0.1])),
    "kerple_power": biases.KerplePower(jnp.array([1.0, 0.2]), jnp.array([0.5, 1.1])),
    "t5": biases.T5(jnp.arange(16.0).reshape(H, 8), starts=biases.t5_starts(4, 9), bidirectional=True),
    "t5_distance": biases.T5Distance(jnp.arange(12.0).reshape(H, 6)),
}


@functools.partial(jax.jit, static_argnums=0)
def both(table, bias, i, j):
    """A table, and the gradients of something made of it."""
    made, vjp = jax.vjp(lambda bias: table(bias, i, j), bias)
    return made, vjp(jnp.cos(jnp.arange(made.size, dtype=made.dtype)).reshape(made.shape))


@given(
    name=st.sampled_from(sorted(RELATIVE)),
    size=st.sampled_from([(4, 5), (3, 1)]),
    first=st.tuples(*[st.integers(0, 10**6)] * 2),
    offset=st.integers(-9, 9),
)
def test_the_table_and_its_gradient_are_those_of_all_pairs(name, size, first, offset):
    first = np.array(first)[:, None, None]
    i, j = (jnp.asarray(x, jnp.float32) for x in (first + np.arange(size[0]), first + offset + np.arange(size[1])))
    made, expected = (both(table, RELATIVE[name], i, j) for table in (toeplitz.table, biases.table))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), made, expected)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([[0, 1, 2, 3, 4, 5]], [True, True]),
        ([[7, 8, 9, 0, 1, 2]], [True, True]),
        ([[0, 1, 3, 4, 5, 6]], [False, True]),
        ([[0, 1, 2, 3, EMPTY, EMPTY]], [True, True]),
        ([[EMPTY, 0, 1, 2, 3, 4]], [False, True]),
        ([[EMPTY, EMPTY, EMPTY, 0, 1, 2]], [False, True]),
        ([[0, 1, 2, 3, 4, 5], [5, 6, 7, 9, 11, 13]], [True, False]),
        ([[0, 1, 2, 3, 4]], [True, True]),
    ],
)
def test_where_positions_follow_one_another(positions, expected):
    tokens = Tokens(jnp.asarray(positions))
    scoring = Scoring(RELATIVE["alibi"], tokens, tokens)
    for found in toeplitz.contiguous(scoring, skipping.padded(scoring, 3, 3), 3, 3):
        assert found.tolist() == expected


@pytest.mark.parametrize("bias", [biases.Uniform(), biases.Difference()])
def test_not_for_every_bias_or_coordinate(bias):
    tokens = Tokens(jnp.arange(4)[None])
    own = Tokens(jnp.arange(4)[None], coordinate=jnp.ones((1, 1, 4)))
    assert toeplitz.contiguous(Scoring(bias, tokens, tokens), Scoring(bias, tokens, tokens), 2, 2) is None
    scoring = Scoring(RELATIVE["alibi"], tokens, own)
    assert toeplitz.contiguous(scoring, scoring, 2, 2) is None


@biases.bias
class Lying(biases.Relative):
    """Says that it is relative, and looks at the query's position."""

    slope: jax.Array

    def __call__(self, i, j):
        return -self.slope * jnp.abs(i - j) - i * jnp.sin(j - i)


@pytest.mark.parametrize("follow", [True, False])
def test_it_is_taken_exactly_where_positions_follow(follow):
    position = jnp.arange(8)[None] * (1 if follow else 2)
    # One block of queries: positions count from the first of a block, in the reference from that of the row.
    scoring = Scoring(Lying(jnp.ones(H)), Tokens(position[:, 4:]), Tokens(position))
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 8, H, 4))
    run = lambda backend, scoring: attention(
        q[:, 4:], k, v, scoring, backend=backend, tiling=Tiling(block_q=4, block_k=4)
    )
    same = np.allclose(run("chunked", scoring), run("reference", scoring), atol=1e-3)
    assert same != follow
