"""Biases of learned coordinates: running sums along the text, computed by `encodings.context_aware`.

A running sum is passed as a pair (high, low) that adds up to its value. At 500k tokens the value is near 3e5, where float32
numbers are 0.03 apart and the difference between neighbours would be lost.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.biases.base import Bias, Range, bias, difference, static
from bam_jax.biases.prior import GeneralisedGaussian, capped_power, smooth_distance

type Sum = tuple[Array, Array]


def _difference_range(i: Range, j: Range) -> tuple[Array, Array]:
    """Smallest and largest difference of sums in two ranges."""
    return difference(i[0], j[1]), difference(i[1], j[0])


def _distance_range(low: Array, high: Array) -> tuple[Array, Array]:
    """Smallest and largest absolute value between two numbers."""
    return jnp.maximum(jnp.maximum(low, -high), 0), jnp.maximum(jnp.abs(low), jnp.abs(high))


def _weighted_range(i: Range, j: Range) -> tuple[Array, Array]:
    """Smallest and largest weight times distance, for query coordinates (weight, sum)."""
    (least, first), (most, last) = i
    near, far = _distance_range(*_difference_range((first, last), j))
    return jnp.minimum(least * near, least * far), jnp.maximum(most * near, most * far)


@bias
class Difference(Bias):
    """Difference of two running sums: the Forgetting Transformer, and CABLE without its weight.

        b(i, j) = c_i - c_j,   or -abs(c_i - c_j), the symmetric form for encoders

    Coordinates: (c, low), c in nats; c falls along the text, so keys before the query are penalised.

    Args:
        symmetric: whether keys after the query are penalised like those before it.

    Source: Lin et al. 2025 (FoX), section 3: c = cumsum(log sigmoid(x w + b)). CABLE equation 5 (CABLE_NW): c = -S.
    """

    symmetric: bool = static(False)

    def __call__(self, i: Sum, j: Sum) -> Array:
        apart = difference(i, j)
        return -jnp.abs(apart) if self.symmetric else apart

    def bounds(self, i: Range, j: Range) -> tuple[Array, Array]:
        """See `Bias.bounds`."""
        low, high = _difference_range(i, j)
        if not self.symmetric:
            return low, high
        near, far = _distance_range(low, high)
        return -far, -near


@bias
class CABLE(Bias):
    """CABLE: the distance between two tokens is the sum of learned steps between them, times the query's own weight.

        b(i, j) = -g_i * abs(S_i - S_j),   S = cumsum(relu(x w)),   g = softplus(x w')

    Coordinates: i = (g, (S, low)) and j = (S, low), where S + low is the sum; low may be zeros. For j <= i it is the
    paper's equation 7 with the sign its text describes (a penalty); the absolute value is the form for encoders.

    Source: CABLE section 3.
    """

    def __call__(self, i: tuple[Array, Sum], j: Sum) -> Array:
        weight, total = i
        return -weight * jnp.abs(difference(total, j))

    def bounds(self, i: Range, j: Range) -> tuple[Array, Array] | None:
        """See `Bias.bounds`."""
        low, high = _weighted_range(i, j)
        return -high, -low


@bias
class KCABLE(Bias):
    """K-CABLE: CABLE through Kerple's logarithm, for long tails.

        b(i, j) = -log(r ** 2 + 1),   r = g_i * (S_i - S_j)

    Coordinates as in `CABLE`.

    Source: CABLE section 5.6 (the reading of r is ours: the paper names the relative bias without its weight).
    """

    def __call__(self, i: tuple[Array, Sum], j: Sum) -> Array:
        weight, total = i
        relative = weight * difference(total, j)
        return -jnp.log(relative * relative + 1)

    def bounds(self, i: Range, j: Range) -> tuple[Array, Array] | None:
        """See `Bias.bounds`."""
        near, far = _distance_range(*_weighted_range(i, j))
        return -jnp.log(far * far + 1), -jnp.log(near * near + 1)


@bias
class GatedDistance(Bias):
    """GRAPE-A: a distance penalty whose slope is the sum of a query's gate and a key's.

        b(i, j) = -(g_i + g'_j) * abs(S_i - S_j)

    Coordinates: i = (g, (S, low)) and j = (g', (S, low)), gates in nats per unit of S. S + low is the number of tokens so far, or
    any other running sum.

    Source: Zhang et al. 2025 (arXiv 2512.07805), equation 4.6.
    """

    def __call__(self, i: tuple[Array, Sum], j: tuple[Array, Sum]) -> Array:
        return -(i[0] + j[0]) * jnp.abs(difference(i[1], j[1]))

    def bounds(self, i: Range, j: Range) -> tuple[Array, Array]:
        """See `Bias.bounds`."""
        ((i_least, i_first), (i_most, i_last)), ((j_least, j_first), (j_most, j_last)) = i, j
        near, far = _distance_range(*_difference_range((i_first, i_last), (j_first, j_last)))
        least, most = i_least + j_least, i_most + j_most
        return -jnp.maximum(most * near, most * far), -jnp.minimum(least * near, least * far)


@bias
class ContextualGaussian(Bias):
    """BAM's generalised Gaussian over the sum of learned steps between two tokens, in place of their distance in tokens.

        b(i, j) = -exp(log_scale) * (abs(S_i - S_j) + eps) ** shape,   S = cumsum(step),   eps = 1e-5

    It is capped at -exp(CAP), like `GeneralisedGaussian`. Coordinates: (S, low).

    Args:
        shape, log_scale: [H], as there.

    Source: ours, of BAM section 2.3 and CABLE section 3.
    """

    shape: Float[Array, "*H"]
    log_scale: Float[Array, "*H"]
    eps: float = static(1e-5)

    def __call__(self, i: Sum, j: Sum) -> Array:
        return self._at(smooth_distance(difference(i, j)))

    def _at(self, distance: Array) -> Array:
        return -capped_power(self.log_scale, self.shape, distance + self.eps)

    def bounds(self, i: Range, j: Range) -> tuple[Array, Array]:
        """See `Bias.bounds`."""
        near, far = map(self._at, _distance_range(*_difference_range(i, j)))
        return jnp.minimum(near, far), jnp.maximum(near, far)

    def by_offset(self) -> GeneralisedGaussian:
        """The prior of a text in which each token's step is 1, as before training."""
        return GeneralisedGaussian(self.shape, self.log_scale, jnp.zeros_like(self.shape))
