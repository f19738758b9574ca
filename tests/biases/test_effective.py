"""The effective number of keys against the plain sum of its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax import biases
from bam_jax.biases import log_effective_keys

COUNTS = jnp.array([[1, 2, 3, 17, 64, 65, 66, 100, 1000, 20_000]])


def by_definition(bias, counts):
    """exp(b) summed over the last n keys, over the greatest exp(b) of them; [H, T] in float64."""
    back = np.arange(int(counts.max()))
    prior = np.float64(biases.table(bias, jnp.zeros((1, 1, 1)), -np.float32(back)[None, None]))[0, :, 0]
    return np.stack([np.exp(prior[:, :n] - prior[:, :n].max(1, keepdims=True)).sum(1) for n in counts.tolist()], axis=1)


@given(shape=st.floats(-3, 3), log_scale=st.floats(-6, 3), loc=st.floats(-2, 2))
def test_a_generalised_gaussian_against_the_plain_sum(shape, log_scale, loc):
    bias = biases.GeneralisedGaussian(*(jnp.array([x], jnp.float32) for x in (shape, log_scale, loc)))
    found = np.exp(log_effective_keys(bias, COUNTS)[0])
    np.testing.assert_allclose(found, by_definition(bias, np.asarray(COUNTS)[0]), rtol=0.03)
    assert (found >= 1 - 1e-5).all() and (found <= np.asarray(COUNTS) * (1 + 1e-5)).all()


def test_heads_and_rows_each_have_their_own():
    counts = jnp.array([[1, 5], [9, 300]])
    for bias in (biases.KerpleLog(*jnp.array([[0.5, 2.0], [1.0, 0.1]])), biases.ALiBi(jnp.array([0.5, 0.02]))):
        found = log_effective_keys(bias, counts)
        assert found.shape == (2, 2, 2)
        for row in range(2):
            np.testing.assert_allclose(np.exp(found[row]), by_definition(bias, np.asarray(counts[row])), rtol=2e-3)


@pytest.mark.full
def test_the_prior_gets_no_gradient_of_it():
    slope = jnp.array([0.1])
    assert jax.grad(lambda slope: log_effective_keys(biases.ALiBi(slope), COUNTS).sum())(slope) == 0


def test_a_bias_of_more_than_the_distance_is_refused():
    with pytest.raises(TypeError, match="CABLE has no form by_offset"):
        log_effective_keys(biases.CABLE(), COUNTS)
