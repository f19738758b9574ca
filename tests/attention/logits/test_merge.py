"""Attention over parts of the keys, merged, is attention over all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax import biases
from bam_jax.attention import EMPTY, Mask, Scoring, Tokens, reference
from bam_jax.attention.logits.merge import deal_blocks, merge
from bam_jax.attention.logits.scoring import HIDDEN
from bam_jax.attention.logits.skipping import Runs, Tiling

SLOTS, ROWS = 9, 5
BIAS = biases.ALiBi(jnp.array([0.1, 1.0, 10.0]))
forward = jax.jit(reference.forward, static_argnums=4)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, SLOTS), min_size=4, max_size=4), st.sampled_from([1, 5, 12]))
def test_parts_merge_to_the_whole(seed, lengths, window):
    """Parts of any lengths, some of which a row does not see at all, and rows that see nothing."""
    draw = np.random.default_rng(seed)
    slots = SLOTS * len(lengths)
    q, k, v = (jnp.asarray(draw.normal(size=(2, n, 3, 4)), jnp.float32) for n in (ROWS, slots, slots))
    filled = (np.arange(SLOTS) < np.array(lengths)[:, None]).ravel() & (draw.random((2, slots)) < 0.8)
    at = jnp.asarray(np.where(filled, np.arange(slots), EMPTY), jnp.int32)
    queries = Tokens(jnp.asarray(np.sort(draw.integers(0, slots, (2, ROWS))), jnp.int32))

    def over(keys):
        scoring = Scoring(BIAS, queries, Tokens(at[:, keys]), None, Mask(window=window))
        return forward(q, k[:, keys], v[:, keys], scoring, Tiling())

    outs, lses = zip(*(over(slice(n, n + SLOTS)) for n in range(0, slots, SLOTS)), strict=True)
    out, lse = merge(jnp.stack(outs, 2).transpose(0, 3, 2, 1, 4), jnp.stack(lses, 2), axis=2)
    expected_out, expected_lse = over(slice(None))
    np.testing.assert_allclose(out.swapaxes(1, 2), expected_out, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-5, rtol=1e-6)
    assert ((lse == HIDDEN) == (expected_lse <= HIDDEN)).all()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_block_of_a_run_is_in_one_part_and_parts_are_even(count):
    draw = np.random.default_rng(0)
    first, length = draw.integers(0, 50, (20, 1)), draw.integers(0, 30, (20, 1))
    dealt = deal_blocks(Runs(jnp.asarray(first), jnp.asarray(length)), count)
    assert dealt.first.shape == dealt.length.shape == (20, count)
    np.testing.assert_array_equal(dealt.first[:, :1], first)
    np.testing.assert_array_equal(dealt.first[:, 1:], (dealt.first + dealt.length)[:, :-1])
    np.testing.assert_array_equal(dealt.length.sum(1, keepdims=True), length)
    assert (dealt.length.max(1) - dealt.length.min(1) <= 1).all()
