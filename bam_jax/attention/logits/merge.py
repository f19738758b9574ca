"""Attention over many keys, put together from attention over each of several parts of them."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.logits.scoring import HIDDEN
from bam_jax.attention.logits.skipping import Runs


def deal_blocks(run: Runs, count: int) -> Runs:
    """The run of key blocks that the only query block needs, dealt out to so many copies of it, an even share to each.

    Few queries and many keys have no other work to share out among the cores of a device. [H, 1] -> [H, P].
    """
    cuts = run.first + run.length * jnp.arange(count + 1, dtype=jnp.int32) // count
    return Runs(cuts[:, :-1], cuts[:, 1:] - cuts[:, :-1])


def merge(
    out: Float[Array, "... D"], lse: Float[Array, "..."], axis: int
) -> tuple[Float[Array, "... D"], Float[Array, "..."]]:
    """Attention over all keys from that over each of their parts, whose axis goes.

        out = sum_p exp(lse_p - lse) out_p,    lse = log sum_p exp(lse_p)

    Args:
        out: [..., P, ..., D].
        lse: [..., P, ...], logarithms of the normalisers, `HIDDEN` where a part has no visible key.

    >>> merge(jnp.array([[1.0], [3.0]]), jnp.zeros(2), axis=0)
    (Array([2.], dtype=float32), Array(0.6931472, dtype=float32))
    """
    top = lse.max(axis)  # relative to the largest, no exponential overflows
    # NaN compares as false and stays.
    weights = jnp.where(lse <= HIDDEN, 0.0, jnp.exp(lse - jnp.expand_dims(top, axis)))
    total = weights.sum(axis)
    none = total == 0
    whole = jnp.where(none, 1.0, total)
    merged = (weights[..., None] * out).sum(axis) / whole[..., None]
    return merged, jnp.where(none, HIDDEN, top + jnp.log(whole))
