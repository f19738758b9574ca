"""The slow obvious backend: the whole table of logits at once. Everything else is tested against it."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.scoring import HIDDEN, Scoring, bias_table, cotangent, split, visible
from bam_jax.attention.tiles import Tiling
from bam_jax.biases import Rows


def forward(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring, tiling: Tiling
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser by the definition, in O(T S) memory; see `attention`."""
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    groups = q.shape[2] // k.shape[2]
    keys, values = (jnp.repeat(x, groups, axis=2) for x in (k, v))
    scores = jnp.einsum("bthd,bshd->bhts", q, keys, preferred_element_type=dtype) / math.sqrt(q.shape[-1])
    bias = bias_table(scoring, dtype)
    seen = visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
    if scoring.rowwise is None:
        logits = scores + bias
    else:
        i, j = scoring.queries.position[:, None, :, None], scoring.keys.position[:, None, None, :]
        logits = scoring.rowwise(Rows(q, scores, bias, seen, i, j))
    if scoring.temperature is not None:
        logits = logits * scoring.temperature[..., None]
    logits = jnp.where(seen, logits, HIDDEN)
    lse = jax.nn.logsumexp(logits, axis=-1)
    weights = jnp.where(seen, jnp.exp(logits - lse[..., None]), 0)
    # Weights of bfloat16 would have cotangents of bfloat16, which lose what a steep prior's gradient is made of.
    out = jnp.einsum("bhts,bshd->bthd", weights, values.astype(dtype))
    return out.astype(q.dtype), jnp.where(seen.any(-1), lse, HIDDEN)


def backward(
    q: Array,
    k: Array,
    v: Array,
    scoring: Scoring,
    tiling: Tiling,
    wanted: tuple[bool, ...],
    out: Array,
    lse: Array,
    d_out: Array,
) -> tuple[Array, Array, Array, Scoring]:
    """Gradients by differentiating `forward`; see `Backend.backward`."""
    parts, join = split(scoring)
    _, vjp = jax.vjp(lambda q, k, v, parts: forward(q, k, v, join(parts), tiling)[0], q, k, v, parts)
    dq, dk, dv, d_parts = vjp(d_out)
    return dq, dk, dv, cotangent(scoring, d_parts)
