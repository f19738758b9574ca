"""A mask's limits against the definition of who sees whom: pairs, tiles of kernels, blocks, and SSMax's count of keys."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax import biases
from bam_jax.attention import EMPTY, Mask, Scoring, Tokens, document_count
from bam_jax.attention.logits import tile
from bam_jax.attention.logits.extents import Extents, possibly_visible, wholly_visible
from bam_jax.attention.logits.mask import visible
from tests.attention.common import visible_by_definition

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
    limits = {
        "sees_from": queries.position // 4 * 4 - 1,
        "sees_to": jnp.where(rng.random((B, T)) < 0.3, np.iinfo(np.int32).max, queries.position + rng.integers(-6, 3)),
    }
    return dataclasses.replace(queries, **{name: x for name, x in limits.items() if rng.random() < 0.5}), side()


def extents(scoring):
    x = jnp.zeros((B, T, 1, 1))
    return Extents.of_queries(x, scoring, BLOCK), Extents.of_keys(x, x, scoring, BLOCK)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_pairs_tiles_and_blocks_see_what_the_definition_says(mask, packed, rng):
    for _ in range(4):
        queries, keys = sides(rng, packed)
        wanted = visible_by_definition(queries, keys, mask)
        np.testing.assert_array_equal(visible(queries, keys, mask), wanted)
        if mask.causal and mask.window:
            sinks = dataclasses.replace(mask, sink_tokens=2)
            np.testing.assert_array_equal(visible(queries, keys, sinks), visible_by_definition(queries, keys, sinks))
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
    blocks = visible_by_definition(tokens, tokens, mask).reshape(T // BLOCK, BLOCK, T // BLOCK, BLOCK)
    of = extents(Scoring(biases.Uniform(), tokens, tokens, mask=mask))
    np.testing.assert_array_equal(possibly_visible(*of), blocks.any((1, 3)))
    np.testing.assert_array_equal(wholly_visible(*of), blocks.all((1, 3)))


WINDOWS = st.integers(1, T + 2)
ANY = st.builds(Mask, st.booleans(), st.none() | WINDOWS) | st.builds(Mask, st.just(True), WINDOWS, st.integers(0, T))
CUTS = st.lists(st.integers(1, T), min_size=2, max_size=2)
LIMITS = st.lists(st.sampled_from(["sees_from", "sees_to"]), unique=True)


def counted(position, segment, mask, limits=()):
    """The counts of keys, and the numbers that the definition sees."""
    at = jnp.asarray(position, jnp.int32)
    seen = {"sees_from": at // 3 * 3 - 1, "sees_to": jnp.where(at % 5 == 4, EMPTY, at + at % 4 - 2)}
    segment = None if segment is None else jnp.asarray(segment)
    tokens = Tokens(at, segment, **{name: seen[name] for name in limits})
    filled = (position != EMPTY) & (True if segment is None else segment > 0)
    wanted = np.where(filled, np.maximum(visible_by_definition(tokens, tokens, mask).sum(2), 1), 1)
    return np.broadcast_to(document_count(tokens, mask), wanted.shape), wanted


@given(
    st.lists(st.tuples(CUTS, st.integers(0, 4)), min_size=2, max_size=2),
    ANY,
    st.sampled_from(("shared", "of each row", "restarting")),
    LIMITS,
)
def test_count_of_packed_rows(rows, mask, positions, limits):
    segment = np.array([1 + (np.arange(T)[:, None] >= cuts).sum(1) for cuts, _ in rows])
    for n, (_, pads) in enumerate(rows):
        segment[n, T - pads :] = 0
    position = np.arange(T)[None].repeat(1 if positions == "shared" else len(rows), 0)
    if positions == "restarting":  # as packing gives them: 0 at each document's first token
        starts = np.diff(segment, axis=1, prepend=-1) != 0
        position = position - np.maximum.accumulate(np.where(starts, position, 0), axis=1)
    np.testing.assert_array_equal(*counted(position, segment, mask, limits))


@given(st.lists(st.integers(0, T), min_size=2, max_size=2), ANY)
def test_count_of_rows_padded_on_the_left(pads, mask):
    position = np.array([np.arange(T) - n for n in pads])
    np.testing.assert_array_equal(*counted(np.where(position < 0, EMPTY, position), None, mask))


def test_a_token_that_continues_a_cache_has_seen_all_before():
    assert document_count(Tokens(jnp.array([[7, 8]])), Mask()).tolist() == [[8, 9]]
    assert document_count(Tokens(jnp.array([[7, 8]])), Mask(window=3)).tolist() == [[3, 3]]
