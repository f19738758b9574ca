"""Biases that decay with the distance: a sum of cosines, a mixture of simple decays, and two example priors."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bam_jax.biases.base import Monotone, Relative, bias, static


@bias
class Sandwich(Relative):
    """Sandwich: the inner product of two sinusoidal position vectors, which falls like a logarithm.

        b(i, j) = (p_i . p_j - d / 2) / c_h,   p_i . p_j = sum_n cos((i - j) / base ** (2 n / d)),   n = 0 ... d/2 - 1

    The d / 2 does not change the softmax; it makes the bias of the query's own position 0. Evaluating so many cosines for each
    pair of tokens would be too expensive, so kernels read the values of all offsets in strips.

    Args:
        compression: [H], c_h = 8 h / H for h = 1 ... H.
        width: d, the length of a position vector, even.
        base: of the wavelengths.

    Source: Chi et al. 2023 (arXiv 2212.10356), section 6, which drops the cross terms of words and positions.
    """

    compression: Float[Array, "*H"]
    width: int = static(128)
    base: float = static(10_000.0)

    def __call__(self, i: Array, j: Array) -> Array:
        rates = self.base ** (-2 * np.arange(self.width // 2) / self.width)
        angles = (i - j)[..., None] * rates.astype(jnp.result_type(i, j))
        return (jnp.cos(angles) - 1).sum(-1) / self.compression


@bias
class AdditiveDecay(Monotone):
    """A learned mixture of a linear, a logarithmic and a square-root decay: Laplace, power-law and stretched tails at once.

        b(i, j) = -(a d + b log(1 + d) + c sqrt(d)),   d = abs(i - j)

    Args:
        linear, logarithmic, root: [H], a, b and c, not negative.

    Source: Vetcha 2026 (arXiv 2601.06113), the additive part of Adaptive Positional Encoding. We read its logarithm as that of
    1 + d, so that the bias of the query's own position is 0, and omit the modulated frequencies.
    """

    linear: Float[Array, "*H"]
    logarithmic: Float[Array, "*H"]
    root: Float[Array, "*H"]

    def __call__(self, i: Array, j: Array) -> Array:
        distance = jnp.abs(i - j)
        apart = distance > 0  # the slope of the root at 0 must not reach the gradient
        root = jnp.where(apart, jnp.sqrt(jnp.where(apart, distance, 1.0)), 0.0)
        return -(self.linear * distance + self.logarithmic * jnp.log(1 + distance) + self.root * root)


@bias
class Gaussian(Monotone):
    """A Gaussian prior, an example of a bias of your own.

        b(i, j) = -((i - j) / width) ** 2 / 2,   width = exp(log_width) tokens

    Args:
        log_width: [H].

    Source: BAM section 2.3, shape 2 of its family.
    """

    log_width: Float[Array, "*H"]

    def __call__(self, i: Array, j: Array) -> Array:
        return -0.5 * ((i - j) * jnp.exp(-self.log_width)) ** 2


@bias
class StudentT(Monotone):
    """A prior like Student's t: a Gaussian within its width, a power law beyond.

        b(i, j) = -(nu + 1) / 2 * log(1 + ((i - j) / width) ** 2 / nu),   width = exp(log_width) tokens,   nu = exp(log_freedom)

    Args:
        log_width, log_freedom: [H].

    Source: Student 1908; the second example of a bias of your own.
    """

    log_width: Float[Array, "*H"]
    log_freedom: Float[Array, "*H"]

    def __call__(self, i: Array, j: Array) -> Array:
        freedom = jnp.exp(self.log_freedom)
        z = (i - j) * jnp.exp(-self.log_width)
        return -0.5 * (freedom + 1) * jnp.log(1 + z * z / freedom)


def sandwich_compression(heads: int) -> np.ndarray:
    """Divisors of Sandwich's heads, [H].

        c_h = 8 h / H,  h = 1 ... H

    Args:
        heads: number of heads.

    Source: Chi et al. 2023, section 6.

    >>> sandwich_compression(4)
    array([2., 4., 6., 8.])
    """
    return 8 * np.arange(1, heads + 1) / heads
