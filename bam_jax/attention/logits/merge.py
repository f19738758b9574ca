"""Attention over many keys, merged from attention over parts of them."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.logits.scoring import HIDDEN
from bam_jax.attention.logits.skipping import Runs


def deal_blocks(run: Runs, count: int) -> Runs:
    """Split the run of key blocks that the only query block needs into `count` equal runs, [H, 1] -> [H, P].

    With few queries and many keys, there is no other work to distribute over the cores of a device.
    """
    cuts = run.first + run.length * jnp.arange(count + 1, dtype=jnp.int32) // count
    return Runs(cuts[:, :-1], cuts[:, 1:] - cuts[:, :-1])


def merge(
    out: Float[Array, "... D"], lse: Float[Array, "..."], axis: int
) -> tuple[Float[Array, "... D"], Float[Array, "..."]]:
    """Attention over all keys from attention over each of their parts; the axis of parts is removed.

        out = sum_p exp(lse_p - lse) out_p,    lse = log sum_p exp(lse_p)

    Args:
        out: [..., P, ..., D].
        lse: [..., P, ...], the log-normalisers, `HIDDEN` where a part has no visible key.

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
