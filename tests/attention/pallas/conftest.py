"""Biases of a user's own that the tests of both kernels share."""

import jax
import jax.numpy as jnp
import pytest

from bam_jax import biases


@pytest.fixture
def cauchy():
    """A formula that kernels can compute."""

    @biases.bias
    class Cauchy(biases.Bias):
        scale: jax.Array

        def __call__(self, i, j):
            distance = (i - j) / self.scale
            return -jnp.log(1 + distance * distance)

    return Cauchy


@pytest.fixture
def odd():
    """A formula that the kernels' compilers do not know."""

    @biases.bias
    class Odd(biases.Bias):
        scale: jax.Array

        def __call__(self, i, j):
            return -self.scale * jnp.sinh(i - j)

    return Odd
