"""The effective number of keys under a prior, which Scalable Softmax can count in place of all visible keys."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bam_jax.biases.base import Bias, table

EXACT = 64
"""Distances that are summed one by one. Larger ones are summed in groups, each a sixteenth as long as its distance."""


def _groups() -> np.ndarray:
    """Numbers of keys for which the sum is computed, up to the largest int32."""
    farther = EXACT * (1 + 1 / 16) ** np.arange(1, 286)
    return np.concatenate([np.arange(1, EXACT + 1), np.round(farther)])


COUNTS = _groups()


def log_effective_keys(bias: Bias, count: Int[Array, "#B T"]) -> Float[Array, "#B #H T"]:
    """The logarithm of the effective number of keys of queries that see `count` keys, themselves included.

        N_h(n) = sum_d exp(b_h(d)) / max_d exp(b_h(d)),   d = 0 ... n - 1 tokens back

    N is n for the uniform prior, and stays near 1 / (1 - exp(-slope)) for ALiBi, however long the text. It depends on the
    prior only, not on the scores: 1 <= N <= n. No gradient flows through it.

    Args:
        bias: a function of the offset, or a bias that has such a form (`Bias.by_offset`), with parameters [H] or [H, n].
        count: number of visible keys, the last ones.

    Raises:
        TypeError: the bias has no such form.

    >>> from bam_jax.biases import Uniform
    >>> float(log_effective_keys(Uniform(), jnp.array([[8]]))[0, 0, 0]) == float(np.log(np.float32(8)))
    True
    """
    relative = bias.by_offset()
    if relative is None:
        raise TypeError(f"{type(bias).__name__} has no form by_offset: its prior is no function of the distance")
    size = np.diff(COUNTS, prepend=0)
    distance = np.sqrt(np.maximum(COUNTS - size, 0) * (COUNTS - 1))  # 0, 1, 2 ..., then the middle of each group
    prior = table(relative, jnp.zeros((1, 1, 1)), -jnp.asarray(distance, jnp.float32)[None, None])[:, :, 0]
    prior = jax.lax.stop_gradient(prior)  # before the sums, whose derivatives would be compiled too
    total = jax.lax.cumlogsumexp(prior + jnp.log(jnp.asarray(size, jnp.float32)), axis=2)
    known = (total - jax.lax.cummax(prior, axis=2))[0]
    at = jnp.log(count.astype(jnp.float32))
    return jax.vmap(lambda keys: jnp.interp(at, np.log(COUNTS).astype(np.float32), keys), out_axes=1)(known)
