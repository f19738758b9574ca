"""The cache: slots are written from the front, and attention over them is attention over what was written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Cache, Mask, Scoring, Tokens, attention

B, T, H, K, D = 2, 7, 4, 2, 4


@pytest.fixture
def row(rng):
    """q, k, v, and key coordinates (high [B, H, T], low [1, 1, T])."""
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return draw(B, T, H, D), draw(B, T, K, D), draw(B, T, K, D), (draw(B, H, T), draw(1, 1, T))


def piece(row, at):
    _, k, v, own = row
    tokens = Tokens(jnp.arange(T, dtype=jnp.int32)[None, at], coordinate=jax.tree.map(lambda x: x[..., at], own))
    return k[:, at], v[:, at], tokens


def test_pieces_lie_one_behind_another(row):
    cache = Cache.empty(row[1], piece(row, slice(0, 1))[2], 9)
    assert jax.tree.map(lambda x: not x.any(), cache.last_coordinate()) == (True, True)
    for at in (slice(0, 3), slice(3, 6), slice(6, 7)):
        cache = Cache.append(cache, *piece(row, at))
        jax.tree.map(
            lambda last, x, at=at: np.testing.assert_array_equal(last[..., 0], x[..., at.stop - 1]),
            cache.last_coordinate(),
            row[3],
        )
    assert cache.length == T
    np.testing.assert_array_equal(cache.k[:, :T], row[1])
    np.testing.assert_array_equal(cache.v[:, :T], row[2])
    np.testing.assert_array_equal(cache.tokens.position[0], [*range(T), EMPTY, EMPTY])
    assert not cache.k[:, T:].any()


@pytest.mark.parametrize("mask", [Mask(), Mask(window=3)])
@pytest.mark.parametrize("backend", ["reference", "chunked", pytest.param("pallas_tpu", marks=pytest.mark.full)])
def test_decoding_is_the_full_pass(backend, mask, row):
    q, k, _, _ = row
    whole = piece(row, slice(0, T))[2]
    cache = Cache.empty(k, whole, 9)
    full = attention(q, k, row[2], Scoring(biases.Difference(), whole, whole, mask=mask), backend=backend)
    for t in range(T):
        cache = cache.append(*piece(row, slice(t, t + 1)))
        scoring = Scoring(biases.Difference(), piece(row, slice(t, t + 1))[2], cache.tokens, mask=mask)
        out = attention(q[:, t : t + 1], cache.k, cache.v, scoring, backend=backend)
        np.testing.assert_allclose(out, full[:, t : t + 1], atol=1e-6)


def test_rows_of_different_lengths_are_padded_on_the_left(row):
    q, k, v, _ = row
    prior = biases.GeneralisedGaussian(*jnp.linspace(-1, 1, 3 * H).reshape(3, H))
    tokens = Tokens(jnp.array([[*range(T)], [EMPTY, EMPTY, *range(T - 2)]], jnp.int32))
    both = attention(q, k, v, Scoring(prior, tokens, tokens))
    short = Tokens(jnp.arange(T - 2)[None])
    alone = attention(q[1:, 2:], k[1:, 2:], v[1:, 2:], Scoring(prior, short, short))
    np.testing.assert_allclose(both[1:, 2:], alone, atol=1e-6)
    assert not both[1, :2].any()


def test_a_rewound_cache_goes_on_as_one_that_never_held_more(row):
    fresh = Cache.empty(row[1], piece(row, slice(0, 1))[2], 9).append(*piece(row, slice(0, 3)))
    cache = fresh.append(*piece(row, slice(3, 7))).rewound(3)
    np.testing.assert_array_equal(cache.tokens.position, fresh.tokens.position)
    jax.tree.map(np.testing.assert_array_equal, cache.last_coordinate(), fresh.last_coordinate())
    again, expected = (each.append(*piece(row, slice(5, 7))) for each in (cache, fresh))
    assert again.length == expected.length == 5
    np.testing.assert_array_equal(again.k[:, :5], expected.k[:, :5])
    np.testing.assert_array_equal(again.tokens.position, expected.tokens.position)
