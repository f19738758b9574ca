"""SSMax's n_i is the number of keys that the mask lets a query see."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.attention import EMPTY, Mask, Tokens, document_count

T = 12


def by_counting(position, segment, mask):
    table = np.ones(position.shape, int)
    for row, i in np.ndindex(position.shape):
        here, document = position[row, i], None if segment is None else segment[row, i]
        if here == EMPTY or document == 0:
            continue
        table[row, i] = sum(
            there != EMPTY
            and (document is None or segment[row, j] == document)
            and not (mask.causal and there > here)
            and not (
                mask.window is not None and abs(int(there) - int(here)) >= mask.window and there >= mask.sink_tokens
            )
            for j, there in enumerate(position[row])
        )
    return table


WINDOWS = st.integers(1, T + 2)
MASKS = st.builds(Mask, st.booleans(), st.none() | WINDOWS) | st.builds(Mask, st.just(True), WINDOWS, st.integers(0, T))
POSITIONS = ("shared", "of each row", "restarting")
CUTS = st.lists(st.integers(1, T), min_size=2, max_size=2)


@given(st.lists(st.tuples(CUTS, st.integers(0, 4)), min_size=2, max_size=2), MASKS, st.sampled_from(POSITIONS))
def test_packed_rows(rows, mask, positions):
    segment = np.array([1 + (np.arange(T)[:, None] >= cuts).sum(1) for cuts, _ in rows])
    for n, (_, pads) in enumerate(rows):
        segment[n, T - pads :] = 0
    position = np.arange(T)[None].repeat(1 if positions == "shared" else len(rows), 0)
    if positions == "restarting":  # as packing gives them: 0 at each document's first token
        starts = np.diff(segment, axis=1, prepend=-1) != 0
        position = position - np.maximum.accumulate(np.where(starts, position, 0), axis=1)
    made = document_count(Tokens(jnp.asarray(position), jnp.asarray(segment)), mask)
    wanted = by_counting(np.broadcast_to(position, segment.shape), segment, mask)
    np.testing.assert_array_equal(np.broadcast_to(made, segment.shape), wanted)


@given(st.lists(st.integers(0, T), min_size=2, max_size=2), MASKS)
def test_rows_padded_on_the_left(pads, mask):
    position = np.array([np.arange(T) - n for n in pads])
    position = np.where(position < 0, EMPTY, position)
    made = document_count(Tokens(jnp.asarray(position, jnp.int32)), mask)
    np.testing.assert_array_equal(made, by_counting(position, None, mask))


def test_a_token_that_continues_a_cache_has_seen_all_before():
    assert document_count(Tokens(jnp.array([[7, 8]])), Mask()).tolist() == [[8, 9]]
    assert document_count(Tokens(jnp.array([[7, 8]])), Mask(window=3)).tolist() == [[3, 3]]
