"""The number of keys that a prior leaves in play, which Scalable Softmax may count in place of all that are visible."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bam_jax.biases.base import Bias, table

EXACT = 64
"""Distances that are summed one by one; farther ones stand in groups, each a sixteenth as long as it is far."""


def _groups() -> np.ndarray:
    """Counts of keys at which the sum is known, up to the largest that an int32 holds."""
    farther = EXACT * (1 + 1 / 16) ** np.arange(1, 286)
    return np.concatenate([np.arange(1, EXACT + 1), np.round(farther)])


COUNTS = _groups()


def log_effective_keys(bias: Bias, count: Int[Array, "#B T"]) -> Float[Array, "#B #H T"]:
    """The logarithm of the effective number of keys of queries that see `count` keys, themselves included.

        N_h(n) = sum_d exp(b_h(d)) / max_d exp(b_h(d)),   d = 0 ... n - 1 tokens back

    N is n for the uniform prior and stays near 1 / (1 - exp(-slope)) for ALiBi's, however long the text. It is a count of
    the prior, not of the scores: 1 <= N <= n. No gradient flows through it.

    Args:
        bias: with parameters [H] or [H, n], a function of the offset or one that has such a form (`Bias.by_offset`).
        count: of the last visible keys.

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
