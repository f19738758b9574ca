"""Scalable Softmax: logits that sharpen with the number of visible keys."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


class SSMax(nnx.Module):
    """Scalable Softmax: the factor of a row's logits.

        factor[h, i] = s_h * log(n_i),   n_i = visible keys of query i, itself included;   s_h = 1 at first

    Source: Nakanishi 2025, equation 4; BAM section 2.5.
    """

    def __init__(self, heads: int, *, rngs: nnx.Rngs):
        self.scale = nnx.Param(jnp.ones(heads))

    def __call__(self, count: Int[Array, "#B T"]) -> Float[Array, "#B H T"]:
        """Factors of rows that see `count` keys."""
        return self.scale[...][:, None] * jnp.log(count.astype(jnp.float32))[:, None, :]
