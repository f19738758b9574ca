"""Scalable Softmax: logits that sharpen with the number of visible keys."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bam_jax.biases import Bias, log_effective_keys


class SSMax(nnx.Module):
    """Scalable Softmax: the factor of a row's logits.

        factor[h, i] = s_h * log(n_i),   n_i = visible keys of query i, itself included;   s_h = 1 at first

    With a prior, n_i counts the keys that it leaves in play (`log_effective_keys`): a head that looks at its neighbours stays
    as sharp in a long text as in a short one, and a head that looks everywhere sharpens with all keys.

    Source: Nakanishi 2025, equation 4; BAM section 2.5; effective keys are ours (docs/prior_study.md).
    """

    def __init__(self, heads: int, *, rngs: nnx.Rngs):
        self.scale = nnx.Param(jnp.ones(heads))

    def __call__(self, count: Int[Array, "#B T"], prior: Bias | None = None) -> Float[Array, "#B H T"]:
        """Factors of rows that see `count` keys, of which a prior, if it is given, leaves fewer in play."""
        keys = jnp.log(count.astype(jnp.float32))[:, None] if prior is None else log_effective_keys(prior, count)
        return self.scale[...][:, None] * keys
