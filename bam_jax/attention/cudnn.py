"""The backend for GPUs without kernels of ours: cuDNN's flash attention, which reads biases and most masks from a table.

Without a bias, causal attention of a text to itself needs no table. All else does: biases and mask in one array of the operands'
type [#B, H, T, S], where a bias of b nats is rounded by up to 2^-8 |b| in bfloat16. The gradient of a bias is that of its table,
by cuDNN, and from there to the parameters by XLA, which sums it. cuDNN adds up gradients in no fixed order.

On other machines than GPUs the same calls are computed from their definition, as kernels are interpreted there: what its tests
test is the table, what is hidden, and the gradients around the call, not cuDNN, which has not run with this package.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bam_jax.attention import rows
from bam_jax.attention.logits.mask import visible
from bam_jax.attention.logits.scoring import HIDDEN, Differentiable, Gradients, Residuals, Scoring, bias_table
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.logits.tokens import EMPTY
from bam_jax.biases import Uniform
from bam_jax.system.platform import platform

_TABLE = 2**31  # bytes of a table, at most; its gradient takes as many


def refuses(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring
) -> str | None:
    """Give the reason why cuDNN cannot do it, or None; see `Backend.refuses`."""
    if scoring.soft_cap is not None:
        return "it has no soft cap"
    if scoring.dropout is not None and scoring.dropout.rate:
        return "its dropout is not the formula of indices that all others share"
    if q.shape[1] == 1:
        return "one query, for which XLA reads the cache once"
    size = _table_size(q, k, scoring)
    if size > _TABLE:
        return f"its table of biases and mask would take {size / 2**30:.1f} GiB, above {_TABLE / 2**30:.0f}"
    return _refusal_of_machine(q, k, v, scoring) if platform() == "gpu" else None


def _refusal_of_machine(q: Array, k: Array, v: Array, scoring: Scoring) -> str | None:
    if not q.dtype == k.dtype == v.dtype or q.dtype.name not in ("bfloat16", "float16"):
        return f"q, k and v are all bfloat16 or all float16 there, not {q.dtype}, {k.dtype}, {v.dtype}"
    device = jax.devices()[0]
    capability = float(getattr(device, "compute_capability", 0))
    if capability < 8:
        return f"its flash attention is made for Ampere and later GPUs, not for {device.device_kind}"
    widest, width = (256 if capability >= 9 else 128), max(q.shape[-1], v.shape[-1])
    if width > widest or width % 8:
        return f"heads are at most {widest} wide and a multiple of 8, not {width}"
    if not isinstance(scoring.bias, Uniform) and (q.shape[1] % 2 or k.shape[1] % 2):
        return f"the gradient of a table has even sides, not {q.shape[1]} x {k.shape[1]}"
    try:
        _library().check_cudnn_version()
    except RuntimeError as error:
        return str(error)
    return None


def _library() -> Any:
    """JAX's module of cuDNN; `jax.nn.dot_product_attention` rounds the log-normalisers to two bytes."""
    from jax._src.cudnn import fused_attention_stablehlo

    return fused_attention_stablehlo


def _table_size(q: Array, k: Array, scoring: Scoring) -> int:
    """Bytes of the table that a call may need."""
    if _tableless(scoring):  # where positions turn out otherwise, `fits` says so
        return 0
    shared = isinstance(scoring.bias, Uniform)
    sides = (scoring.queries, scoring.keys)
    batched = (*sides, None if shared else scoring.temperature)
    batch = max(x.shape[0] for x in jax.tree.leaves(batched))
    return batch * (1 if shared else q.shape[2]) * q.shape[1] * k.shape[1] * q.dtype.itemsize


def _tableless(scoring: Scoring) -> bool:
    """Tell whether this is causal attention of a text to itself without a bias, if both sides start together."""
    queries, keys, mask = scoring.queries, scoring.keys, scoring.mask
    own_sight = any(x is not None for x in (queries.segment, queries.sees_from, queries.sees_to))
    together = queries.consecutive and keys.consecutive and queries.position.shape[1] == keys.position.shape[1]
    return isinstance(scoring.bias, Uniform) and together and mask.causal and not (mask.sink_tokens or own_sight)


def fits(q: Float[Array, "B T H D"], scoring: Scoring) -> bool | Bool[Array, ""]:
    """Tell whether a call that is not refused can be made: an array where only the positions say it."""
    if not _tableless(scoring):
        return True
    i, j = scoring.queries.position, scoring.keys.position
    return (i == j).all() & (i < EMPTY).all()


def forward(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring, tiling: Tiling
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser by cuDNN; see `Backend.forward`."""
    flawed = ~(jnp.isfinite(k).all(-1) & jnp.isfinite(v).all(-1))
    k, v = (jnp.where(flawed[..., None], 0, x) for x in (k, v))
    bias = mask = None
    seen = visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
    tableless = _tableless(scoring)
    if not isinstance(scoring.bias, Uniform):
        wide = bias_table(scoring, jnp.promote_types(q.dtype, jnp.float32))
        wide = wide if scoring.temperature is None else wide * scoring.temperature[..., None]
        bias = jnp.where(seen, jnp.maximum(wide.astype(q.dtype), _least(q.dtype)), _least(q.dtype))
        bias = jnp.broadcast_to(bias, (bias.shape[0], q.shape[2], *bias.shape[2:]))
    elif not tableless:
        mask = seen
    if scoring.temperature is not None:
        q = (q * scoring.temperature.swapaxes(1, 2)[..., None]).astype(q.dtype)
    attend = _fused if platform() == "gpu" else _by_definition
    window = scoring.mask.window if tableless else None
    out, lse = attend(q, k, v, bias, mask, scale=scoring.content(q.shape[-1]).scale, causal=tableless, window=window)
    # A row that sees a key or a value that is not finite is NaN: times NaN, so that its gradients are, too.
    flawed = flawed.swapaxes(1, 2)
    spoilt = _among_last(flawed, window) if tableless else (seen & flawed[:, :, None]).any(-1)
    factor = jnp.where(jnp.repeat(spoilt, q.shape[2] // k.shape[2], axis=1), jnp.nan, 1).astype(lse.dtype)
    of_out = factor.swapaxes(1, 2)[..., None].astype(out.dtype)
    if tableless:
        return out * of_out, lse * factor
    some = seen.any(-1)
    return jnp.where(some.swapaxes(1, 2)[..., None], out * of_out, 0), jnp.where(some, lse * factor, HIDDEN)


def _among_last(flags: Bool[Array, "B K T"], window: int | None) -> Bool[Array, "B K T"]:
    """Tell whether any of the last flags is set, up to each: of all, or of as many as a window has."""
    count = jnp.cumsum(flags, -1)
    before = 0 if window is None else jnp.pad(count, ((0, 0), (0, 0), (window, 0)))[..., : count.shape[-1]]
    return count > before


def backward(residuals: Residuals, d_out: Float[Array, "B T H D"], tiling: Tiling) -> Gradients:
    """Gradients by cuDNN, which computes the output again; those of log-normalisers, which it lacks, by `rows`."""
    if residuals.d_lse is not None:
        return rows.backward(residuals, d_out, tiling)
    scoring = residuals.scoring
    again = lambda q, k, v, parts: forward(q, k, v, parts.within(scoring), tiling)[0]
    _, vjp = jax.vjp(again, residuals.q, residuals.k, residuals.v, Differentiable.of(scoring))
    dq, dk, dv, d_parts = vjp(d_out.astype(residuals.q.dtype))
    return Gradients(dq, dk, dv, d_parts.cotangent(scoring))


def _least(dtype: jnp.dtype) -> Array:
    """The entry of a hidden pair in a table, which JAX gives cuDNN for a mask: the difference of two is a number."""
    return jnp.asarray(-(2.0**15) if dtype == jnp.float16 else -(2.0**41), dtype)


def _fused(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    mask: Array | None,
    *,
    scale: float,
    causal: bool,
    window: int | None,
) -> tuple[Array, Array]:
    """The call of cuDNN: output [B, T, H, D] and log-normalisers [B, H, T] in float32."""
    library = _library()
    kind = library.MaskType.CAUSAL if causal else library.MaskType.NO_MASK
    return library.dot_product_attention(
        q, k, v, bias, mask, scale=scale, mask_type=kind, sliding_window_length=window, return_residual=True
    )


def _by_definition(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    mask: Array | None,
    *,
    scale: float,
    causal: bool,
    window: int | None,
) -> tuple[Array, Array]:
    """What `_fused` computes, by XLA."""
    dtype, groups = jnp.promote_types(q.dtype, jnp.float32), q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
    logits = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=dtype) * scale
    logits = logits if bias is None else logits + bias
    ahead = jnp.arange(q.shape[1])[:, None] - jnp.arange(k.shape[1])
    seen = ~jnp.asarray(causal) | (ahead >= 0) & (ahead < (math.inf if window is None else window))
    seen = seen if mask is None else seen & mask
    logits = jnp.where(seen, logits, _least(q.dtype))
    lse = jax.nn.logsumexp(logits, -1)
    out = jnp.einsum("bhts,bshd->bthd", jnp.exp(logits - lse[..., None]).astype(v.dtype), v)
    return out.astype(q.dtype), jax.lax.stop_gradient(lse)
