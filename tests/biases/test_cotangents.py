"""A bias's own cotangents are those of its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases

PRIORS = {
    "plain": (0.7, -0.3, 0.4),
    "centred": (1.3, 0.2, 0.0),
    "retrieval": (-0.5, 0.1, -0.2),
    "capped near": (-7.9, 0.0, 0.0),
    "capped far": (2.5, 3.0, 0.1),
}


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("width", [1, 5])
def test_closed_form_of_the_generalised_gaussian(prior, width, rng, x64):
    numbers = [jnp.full((1, width), x) for x in PRIORS[prior]]
    bias = biases.GeneralisedGaussian(*numbers)
    i, j = jnp.asarray(rng.integers(0, 40, (1, 5)), float), jnp.asarray(rng.integers(0, 40, (7, 1)) + 0.25)
    j = j.at[0].set(i[0, 0])  # the mode of a centred prior
    d_bias = jnp.asarray(rng.normal(size=(7, 5)))
    own, general = bias.cotangents(i, j, d_bias), biases.Bias.cotangents(bias, i, j, d_bias)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), own, general)
