"""Attention of one query with all its logits in memory; they take less than the keys."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.logits.dropout import drop
from bam_jax.attention.logits.scoring import FLOOR, HIDDEN, Scoring, logits_table


def attend(
    q: Float[Array, "B 1 H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    scoring: Scoring,
    times_k: Callable,
    times_v: Callable,
) -> tuple[Float[Array, "B 1 H E"], Float[Array, "B H 1"]]:
    """Attention and its log-normaliser, with two products that suit the device.

    Args:
        times_k: (q [B, K, G, D], k) -> the products of queries and keys [B, K, G, S], in the logits' dtype.
        times_v: (weights [B, K, G, S], v) -> the sums of values [B, K, G, E].
    """
    product = times_k(q.reshape(q.shape[0], k.shape[2], -1, q.shape[3]), k)
    logits, _ = logits_table(q, k, product.reshape(q.shape[0], q.shape[2], 1, -1), scoring)
    lse = jax.nn.logsumexp(logits, -1)
    weights = jnp.exp(logits - jnp.maximum(lse, FLOOR)[..., None])  # 0 for hidden keys
    if scoring.dropout is not None:
        weights = drop(weights, scoring.dropout.factor(scoring.queries, scoring.keys, weights.dtype))
    out = times_v(weights.reshape(product.shape), v)
    return out.reshape(*q.shape[:3], -1), jnp.where(lse < FLOOR, HIDDEN, lse)
