"""Attention over parts of the keys, merged, is attention over all of them."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bam_jax import biases
from bam_jax.attention import EMPTY, Mask, Scoring, Tokens, reference
from bam_jax.attention.merge import merge, parts
from bam_jax.attention.scoring import HIDDEN
from bam_jax.attention.tiles import Tiling


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 12))
def test_parts_merge_to_the_whole(seed, lengths, window):
    """Parts of any lengths, some of which a row does not see at all, and rows that see nothing."""
    draw = np.random.default_rng(seed)
    slots, rows = sum(lengths), 5
    q, k, v = (jnp.asarray(draw.normal(size=(2, n, 3, 4)), jnp.float32) for n in (rows, slots, slots))
    at = jnp.where(draw.random((2, slots)) < 0.2, EMPTY, jnp.arange(slots))
    queries = Tokens(jnp.asarray(np.sort(draw.integers(0, slots, (2, rows)))))
    bias = biases.ALiBi(jnp.array([0.1, 1.0, 10.0]))

    def over(keys):
        scoring = Scoring(bias, queries, Tokens(at[:, keys]), None, Mask(window=window))
        return reference.forward(q, k[:, keys], v[:, keys], scoring, Tiling())

    ends = np.cumsum(lengths)
    outs, lses = zip(*(over(slice(end - n, end)) for n, end in zip(lengths, ends, strict=True)), strict=True)
    out, lse = merge(jnp.stack(outs, 2).transpose(0, 3, 2, 1, 4), jnp.stack(lses, 2), axis=2)
    expected_out, expected_lse = over(slice(None))
    np.testing.assert_allclose(out.swapaxes(1, 2), expected_out, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-5, rtol=1e-6)
    assert ((lse == HIDDEN) == (expected_lse <= HIDDEN)).all()


@pytest.mark.parametrize(("blocks", "count"), [(1, 1), (7, 1), (7, 2), (7, 3), (7, 7), (64, 5)])
def test_every_block_is_in_one_part_and_parts_are_even(blocks, count):
    needed = jnp.asarray(np.random.default_rng(0).random((2, 1, blocks)) < 0.7)
    dealt = np.asarray(parts(needed, count))
    assert dealt.shape == (2, count, blocks)
    np.testing.assert_array_equal(dealt.sum(1), np.asarray(needed[:, 0], int))
    sizes = np.asarray(parts(jnp.ones((1, 1, blocks), bool), count))[0].sum(1)
    assert sizes.max() - sizes.min() <= 1
