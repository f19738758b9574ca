"""The simple, slow backend: all logits at once. All other backends are tested against it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.logits.dropout import drop
from bam_jax.attention.logits.scoring import (
    HIDDEN,
    Differentiable,
    Gradients,
    Residuals,
    Scoring,
    logits_table,
    mask_nonfinite,
)
from bam_jax.attention.logits.skipping import Tiling


def forward(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring, tiling: Tiling
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser by definition, in O(T S) memory; see `attention`."""
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    groups = q.shape[2] // k.shape[2]
    k, v = mask_nonfinite(k, v)
    keys, values = (jnp.repeat(x, groups, axis=2) for x in (k, v))
    product = jnp.einsum("bthd,bshd->bhts", q, keys, preferred_element_type=dtype)
    logits, seen = logits_table(q, k, product, scoring)
    lse = jax.nn.logsumexp(logits, axis=-1)
    weights = jnp.where(seen, jnp.exp(logits - lse[..., None]), 0)
    if scoring.dropout is not None:
        weights = drop(weights, scoring.dropout.factor(scoring.queries, scoring.keys, dtype))
    # bfloat16 weights would have bfloat16 cotangents, which lose the digits that a steep prior's gradient consists of.
    out = jnp.einsum("bhts,bshd->bthd", weights, values.astype(dtype))
    return out.astype(q.dtype), jnp.where(seen.any(-1), lse, HIDDEN)


def backward(residuals: Residuals, d_out: Float[Array, "B T H D"], tiling: Tiling) -> Gradients:
    """Gradients by differentiating `forward`; see `Backend.backward`."""
    scoring = residuals.scoring
    again = lambda q, k, v, parts: forward(q, k, v, parts.within(scoring), tiling)
    results, vjp = jax.vjp(again, residuals.q, residuals.k, residuals.v, Differentiable.of(scoring))
    dq, dk, dv, d_parts = vjp(cotangents(*results, residuals.out, residuals.lse, d_out, residuals.d_lse))
    return Gradients(dq, dk, dv, d_parts.cotangent(scoring))


def cotangents(
    part: Float[Array, "B T H D"],
    part_lse: Float[Array, "B H T"],
    out: Float[Array, "B T H D"],
    lse: Float[Array, "B H T"],
    d_out: Float[Array, "B T H D"],
    d_lse: Float[Array, "B H T"] | None,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Cotangents of attention over a part of the keys and of its log-normaliser, from those of attention over all keys.

        out = sum_p s_p out_p,   s_p = exp(lse_p - lse);   d out_p = s_p d_out,   d lse_p = s_p (d_out . (out_p - out) + d_lse)

    If the part is all keys, s_p is 1 and d lse_p is d_lse (None: 0). In a ring, each device has one part.
    """
    share = jnp.exp(part_lse - lse)
    change = ((part - out).astype(lse.dtype) * d_out.astype(lse.dtype)).sum(-1).swapaxes(1, 2)
    change = change if d_lse is None else change + d_lse
    return (share.swapaxes(1, 2)[..., None] * d_out).astype(part.dtype), share * change
