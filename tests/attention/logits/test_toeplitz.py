"""Tiles of a relative bias with one value on each diagonal: where they are right, and only there, they are taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Scoring, Tiling, Tokens, attention
from bam_jax.attention.logits import skipping, toeplitz
from tests.attention.common import H, Lying, drawn


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
    scoring = Scoring(drawn("alibi"), tokens, tokens)
    for found in toeplitz.contiguous(scoring, skipping.padded(scoring, 3, 3), 3, 3):
        assert found.tolist() == expected


@pytest.mark.parametrize("bias", [biases.Uniform(), biases.Difference()])
def test_not_for_every_bias_or_coordinate(bias):
    tokens = Tokens(jnp.arange(4)[None])
    own = Tokens(jnp.arange(4)[None], coordinate=jnp.ones((1, 1, 4)))
    assert toeplitz.contiguous(Scoring(bias, tokens, tokens), Scoring(bias, tokens, tokens), 2, 2) is None
    scoring = Scoring(drawn("alibi"), tokens, own)
    assert toeplitz.contiguous(scoring, scoring, 2, 2) is None


@pytest.mark.parametrize("follow", [True, False])
def test_it_is_taken_exactly_where_positions_follow(follow):
    position = jnp.arange(8)[None] * (1 if follow else 2)
    # One block of queries: positions count from the first of a block, in the reference from that of the row.
    scoring = Scoring(Lying(jnp.ones((H, 16))), Tokens(position[:, 4:]), Tokens(position))
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 8, H, 4))
    run = lambda backend, scoring: attention(
        q[:, 4:], k, v, scoring, backend=backend, tiling=Tiling(block_q=4, block_k=4)
    )
    same = np.allclose(run("chunked", scoring), run("reference", scoring), atol=1e-3)
    assert same != follow
