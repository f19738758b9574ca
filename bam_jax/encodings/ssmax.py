"""Scalable Softmax and a log-length temperature: logits that sharpen with the number of visible keys."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bam_jax.biases import AdaptiveTemperature, Bias, Entmax, Rowwise, log_effective_keys
from bam_jax.encodings.base import linear, wide


class SSMax(nnx.Module):
    """Scalable Softmax: the factor of a row's logits.

        factor[h, i] = s_h * log(n_i),   n_i = visible keys of query i, itself included;   s_h = 1 at first

    Source: Nakanishi 2025, equation 4; BAM section 2.5.
    """

    def __init__(self, heads: int, *, rngs: nnx.Rngs):
        self.scale = nnx.Param(jnp.ones(heads))

    def __call__(
        self, count: Int[Array, "#B T"], prior: Bias, x: Float[Array, "B T E"] | None = None
    ) -> Float[Array, "#B H T"]:
        """The factors of rows that see `count` keys under a prior; x, the layer's input, is not used."""
        return self.scale[...][:, None] * self.growth(count, prior)

    def growth(self, count: Int[Array, "#B T"], prior: Bias) -> Float[Array, "#B #H T"]:
        """The factors without their scale."""
        return jnp.log(count.astype(jnp.float32))[:, None]


class EffectiveSSMax(SSMax):
    """Scalable Softmax over the effective keys of a head's prior, and nearly plain softmax within the training context.

        factor[h, i] = s_h * log(N_h(n_i) + C) / log(C),   N_h(n) = effective keys of head h among n;   s_h = 1 at first

    With s = 1 the factor starts just above 1. Within the training context it is at most log(2 C) / log(C), 1.17 for 64 tokens.

    A short-range head stays as sharp in a long text as in a short one. A head that attends everywhere sharpens with the logarithm
    of the number of keys, like the gap in scores that one key needs to outweigh all others. No row of a short text is flattened,
    whereas log(n) flattens the first rows.

    Args:
        context: C, tokens of a training sequence.

    Source: ours.
    """

    def __init__(self, heads: int, context: int, *, rngs: nnx.Rngs):
        super().__init__(heads, rngs=rngs)
        self.log_context = math.log(max(context, 2))

    def growth(self, count: Int[Array, "#B T"], prior: Bias) -> Float[Array, "#B #H T"]:
        return jnp.logaddexp(log_effective_keys(prior, count), self.log_context) / self.log_context


class AdaptiveScale(nnx.Module):
    """The factor of ASEntmax: it grows with a power of log n. Slope and power are learned functions of the token.

        factor[h, i] = 1 + softplus(x_i w_h + b_h) * log(n_i + 1) ** (2 tanh(x_i u_h + c_h))

    n_i are the visible keys of query i, itself included. Initially, weights are normal with a standard deviation of 0.02, and b
    and c are 0.

    Source: Vasylenko et al. 2026 (arXiv 2506.16640), section 3, and the authors' code for n + 1, the factor 2 and the initial
    values. The authors use it only in heads without positions; here every head has it.
    """

    def __init__(self, heads: int, width: int, *, rngs: nnx.Rngs):
        self.slope, self.power = (linear(width, heads, rngs, bias=0.0) for _ in range(2))

    def __call__(self, count: Int[Array, "#B T"], prior: Bias, x: Float[Array, "B T E"]) -> Float[Array, "B H T"]:
        """The factors of rows that see `count` keys, from the layer's input."""
        x = wide(x)
        log = jnp.log(count.astype(jnp.float32) + 1)[..., None]
        factor = 1 + jax.nn.softplus(self.slope(x)) * log ** (2 * jnp.tanh(self.power(x)))
        return factor.swapaxes(1, 2)


def sharpened(rowwise: Rowwise | None, ssmax: str | None) -> Rowwise | None:
    """Wrap a row-wise method in the softmax variant that `ssmax` selects."""
    wrap = {"entmax": Entmax, "asentmax": Entmax, "adaptive": AdaptiveTemperature}.get(ssmax or "")
    return rowwise if wrap is None else wrap(rowwise)


class LogTemperature(nnx.Module):
    """A log-length temperature: a factor of a row's scores without parameters, which is 1 in short texts.

        factor[i] = 1 + alpha * ln(max(n_i / n0, 1)),   n_i = visible keys of query i, itself included

    Args:
        alpha: 0.1 in Llama 4.
        start: n0, keys; 8,192 in Llama 4.

    Source: Llama 4 (Meta 2025), which has it in layers without positions, after Nakanishi 2025. Its code has
    1 + alpha ln(floor(n / n0) + 1), a step function that first rises by alpha ln 2 at n0; ours is continuous.
    """

    def __init__(self, alpha: float | Array, start: float | Array):
        self.alpha, self.start = alpha, start

    def __call__(self, count: Int[Array, "#B T"]) -> Float[Array, "#B T"]:
        """The factors of rows that see `count` keys."""
        return 1 + self.alpha * jnp.log(jnp.maximum(count.astype(jnp.float32) / self.start, 1))
