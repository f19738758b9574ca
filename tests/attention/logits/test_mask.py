"""A mask's limits against the definition of who sees whom, for pairs, for tiles of kernels, and for blocks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Mask, Scoring, Tokens
from bam_jax.attention.logits import tile
from bam_jax.attention.logits.extents import Extents, possibly_visible, wholly_visible
from bam_jax.attention.logits.mask import visible

B, T, BLOCK = 2, 12, 3
MASKS = [Mask(causal, window) for causal in (True, False) for window in (None, 1, 3, 2**40)]


def sides(rng, packed):
    """Queries and keys at places of their own, with empty slots, pads in packed rows, and some queries without a highest key."""

    def side():
        place = np.sort(rng.choice(2 * T, (B, T)))
        position = np.where(rng.random((B, T)) < 0.15, EMPTY, place).astype(np.int32)
        position[:, :BLOCK] = EMPTY if rng.random() < 0.3 else position[:, :BLOCK]
        segment = np.sort(rng.integers(-1, 3, (B, T))).astype(np.int32) if packed else None
        return Tokens(jnp.asarray(position), None if segment is None else jnp.asarray(segment))

    queries = side()
    sees_to = jnp.where(rng.random((B, T)) < 0.3, np.iinfo(np.int32).max, queries.position + rng.integers(0, 3))
    return dataclasses.replace(queries, sees_to=sees_to if rng.random() < 0.5 else None), side()


def extents(scoring):
    x = jnp.zeros((B, T, 1, 1))
    return Extents.of_queries(x, scoring, BLOCK), Extents.of_keys(x, x, scoring, BLOCK)


def by_definition(queries, keys, mask):
    i, j = (np.asarray(x.position, np.int64) for x in (queries, keys))
    i, j = i[:, :, None], j[:, None]
    seen = (i != EMPTY) & (j != EMPTY)
    if queries.sees_to is not None:
        seen &= j <= np.asarray(queries.sees_to)[:, :, None]
    elif mask.causal:
        seen &= j <= i
    if mask.window is not None:
        seen &= (i - j if mask.causal else abs(i - j)) < mask.window
    if queries.segment is not None:
        own, other = np.asarray(queries.segment)[:, :, None], np.asarray(keys.segment)[:, None]
        seen &= (own == other) & (own > 0)
    return seen


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_pairs_tiles_and_blocks_see_what_the_definition_says(mask, packed, rng):
    for _ in range(4):
        queries, keys = sides(rng, packed)
        wanted = by_definition(queries, keys, mask)
        np.testing.assert_array_equal(visible(queries, keys, mask), wanted)
        scoring = Scoring(biases.Uniform(), queries, keys, mask=mask)
        of_tile, across = tile.sides(scoring)
        down = jax.tree.map(lambda x: x[:, 0, 0, :, None], of_tile)
        across = jax.tree.map(lambda x: x[:, 0, 0, None, :], across)
        np.testing.assert_array_equal(tile.visible(down, across), wanted)

        blocks = wanted.reshape(B, T // BLOCK, BLOCK, T // BLOCK, BLOCK)
        assert (possibly_visible(*extents(scoring)) >= blocks.any((0, 2, 4))).all()
        filled = [np.asarray(x.position) != EMPTY for x in (queries, keys)]
        hidden = (filled[0][:, :, None] & filled[1][:, None] & ~wanted).reshape(blocks.shape)
        assert not (wholly_visible(*extents(scoring)) & hidden.any((0, 2, 4))).any()


@pytest.mark.parametrize("mask", MASKS)
def test_blocks_of_one_row_are_told_exactly(mask):
    """Positions that follow one another leave no doubt, so that no tile is computed in vain."""
    tokens = Tokens(jnp.arange(T)[None])
    scoring = Scoring(biases.Uniform(), tokens, tokens, mask=mask)
    blocks = by_definition(tokens, tokens, mask).reshape(T // BLOCK, BLOCK, T // BLOCK, BLOCK)
    np.testing.assert_array_equal(possibly_visible(*extents(scoring)), blocks.any((1, 3)))
    np.testing.assert_array_equal(wholly_visible(*extents(scoring)), blocks.all((1, 3)))
