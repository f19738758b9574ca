"""Encodings whose bias is a mixture of profiles with weights that depend on the query: Inkling, and BAM with such a mixture."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bam_jax import biases
from bam_jax.biases.base import Coordinate
from bam_jax.encodings.base import ROWS, Dims, Encoding, linear, wide, within
from bam_jax.encodings.prior import BAM

_INIT = nnx.initializers.normal(0.02)
_MOST = 256  # profiles; the formula adds them up one by one


class _Mixed(Encoding):
    """The weights of C profiles, computed from the layer's input at each query."""

    def __init__(self, dims: Dims, profiles: int, *, use_bias: bool, rngs: nnx.Rngs):
        self.heads, number = dims.heads, dims.heads * within("profiles", profiles, 1, _MOST)
        self.weights = linear(dims.width, number, rngs, bias=0.0 if use_bias else None)

    def coordinate(
        self, x: Array, filled: Array, before: Coordinate, axis: str | None = None
    ) -> tuple[Coordinate, Coordinate]:
        return tuple(jnp.unstack(self.mix(x).swapaxes(1, 2), axis=3)), None

    def mix(self, x: Float[Array, "B T E"]) -> Float[Array, "B T H C"]:
        """The weights, from the layer's normalised input in float32."""
        weights = self.weights(wide(x))
        return weights.reshape(*x.shape[:2], self.heads, -1)


class Inkling(_Mixed):
    """Learned profiles of the distance, shared by the heads of a layer and mixed by each query for each head.

        b(i, j) = sum_c r_c(x_i) f_c(abs(i - j)), r(x) = x W
        f_c(d) = profiles[c, d] for d < extent and 0 beyond

    W [E, H C] and the profiles [C, extent] are initially normal with a standard deviation of 0.02 (ours), so at first the bias is
    a few hundredths of a nat.

    Options: profiles, C (16); extent in tokens (1024).

    Source: Inkling 2026 (an open model without RoPE), whose log-length temperature of global layers is
    `config.log_temperature` here, and whose normalised queries and keys are `config.model.qk_norm`. The absolute value is the
    form for encoders.
    """

    def __init__(self, dims: Dims, *, profiles: int = 16, extent: int = 1024, rngs: nnx.Rngs):
        super().__init__(dims, profiles, use_bias=False, rngs=rngs)
        self.profiles = nnx.Param(_INIT(rngs.params(), (profiles, within("extent", extent, 1, ROWS))))

    def bias(self) -> biases.Bias:
        return biases.Mixture(biases.Band(self.profiles[...]))


class BAMMixture(_Mixed):
    """BAM with several priors per layer, which each query mixes for each head, so the prior depends on the text.

        b(i, j) = sum_c r_c(x_i) f_c(j - i), r(x) = softmax(x W + w)
        f_c(d) = -exp(log_scale_c) * (abs(d - mu_c) + eps) ** shape_c

    Initially W is normal with a standard deviation of 0.02 and w is 0, so all r_c start near 1 / C and every head starts near the
    mean of the profiles. The profiles start as ALiBi's for C heads, from sharp to flat: shape 1, scale 2 ** (-8 c / C) nats per
    token and mu 0. All parameters are trained.

    Options: profiles, C (8); init of the profiles, as for the heads of `bam`.

    Source: ours, from BAM section 2.3 and the mixture of `inkling`.
    """

    def __init__(self, dims: Dims, *, profiles: int = 8, init: str = "alibi", rngs: nnx.Rngs):
        super().__init__(dims, profiles, use_bias=True, rngs=rngs)
        self.profiles = BAM(dataclasses.replace(dims, heads=profiles), init=init, train_loc=True, rngs=rngs)

    def mix(self, x: Float[Array, "B T E"]) -> Float[Array, "B T H C"]:
        return jax.nn.softmax(super().mix(x), axis=-1)

    def bias(self) -> biases.Bias:
        return biases.Mixture(self.profiles.bias())
