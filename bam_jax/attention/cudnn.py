"""The backend for GPUs without our own kernels: cuDNN's flash attention, which reads biases and most masks from a table.

Causal attention of a text to itself without a bias needs no table. Everything else does: biases and mask in one array of the
operands' dtype, [#B, H, T, S] or [#B, 1, T, S]. bfloat16 rounds a bias of b nats by up to 2^-8 |b|. Queries times their
temperature are also rounded, and so is the gradient of the table, which cuDNN computes and XLA sums for each parameter. cuDNN
sums gradients in no fixed order. It hides a pair by adding a large negative number to its logit, so a hidden key is seen if its
product with the query overflows.

Without a GPU, the two calls are computed from their definition, just as kernels are interpreted there. Tests therefore cover the
table, the masking and the gradients around the calls, but not cuDNN itself, which has not run with this package.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
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
from bam_jax.system.axes import varying
from bam_jax.system.platform import platform

# Largest table in bytes. If its bias is trained, its gradient and cuDNN's own copy of that take as much each.
_TABLE = 2**31

_OLDEST = 91100  # 9.11. Older versions miscompute or reject these calls.

# The parameters of JAX's rule for the backward call that this module expects.
_RULE = (
    *("scale", "seed", "dropout_rate", "variadic_args", "mask_type", "layout", "sliding_window_length", "score_mod"),
    *("cudnn_version", "return_residual", "res", "grad_output"),
)


def refuses(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring
) -> str | None:
    """The reason why cuDNN does not support the call, or None; see `Backend.refuses`."""
    if not isinstance(q.shape[0], int):
        return "a symbolic batch: its calls are of numbers"
    if scoring.soft_cap is not None:
        return "it has no soft cap"
    if scoring.dropout is not None and scoring.dropout.rate:
        return "its dropout is not the formula of indices that all others share"
    if q.shape[1] == 1:
        return "one query, for which XLA reads the cache once"
    if (size := _table_size(q, scoring)) > _TABLE and not _plain(scoring):
        return f"its table of biases and mask would take {size / 2**30:.1f} GiB, above {_TABLE / 2**30:.0f}"
    return _refusal_of_machine(q, k, v) if platform() == "gpu" else None


def _refusal_of_machine(q: Array, k: Array, v: Array) -> str | None:
    if not q.dtype == k.dtype == v.dtype or q.dtype.name not in ("bfloat16", "float16"):
        return f"q, k and v are all bfloat16 or all float16 there, not {q.dtype}, {k.dtype}, {v.dtype}"
    device = jax.devices()[0]
    capability = getattr(device, "compute_capability", "0") if "cuda" in device.client.platform_version else "0"
    if float(capability) < 8:
        return f"it is made for NVIDIA GPUs from Ampere on, not for {device.device_kind}"
    widest, width = (256 if capability == "9.0" else 128), max(q.shape[-1], v.shape[-1])
    if width > widest or width % 8:
        return f"heads are at most {widest} wide and a multiple of 8, not {width}"
    if q.shape[1] % 2 or k.shape[1] % 2:
        return f"its gradients are of even lengths, not {q.shape[1]} x {k.shape[1]}"
    if tuple(inspect.signature(_library()._dot_product_attention_bwd_rule).parameters) != _RULE:
        return f"jax {jax.__version__} calls it in another way"
    try:
        version = _library().check_cudnn_version()
    except RuntimeError as error:
        return str(error)
    return None if version >= _OLDEST else f"cuDNN 9.11 or later is needed, and {version} is installed"


def _library() -> Any:
    """JAX's cuDNN module; `jax.nn.dot_product_attention` rounds log-normalisers to two bytes and does not take them as input."""
    from jax._src.cudnn import fused_attention_stablehlo

    return fused_attention_stablehlo


def _table_size(q: Array, scoring: Scoring) -> int:
    """Bytes of the table, or of cuDNN's workspace for its gradient."""
    if isinstance(scoring.bias, Uniform):
        queries, keys = scoring.queries, scoring.keys
        of_mask = (queries.position, queries.segment, queries.sees_from, queries.sees_to, keys.position, keys.segment)
        batch, heads = max(len(x) for x in of_mask if x is not None), 1
    else:
        batch, heads = q.shape[0], q.shape[2]
    return batch * heads * q.shape[1] * scoring.keys.position.shape[1] * q.dtype.itemsize


def _plain(scoring: Scoring) -> bool:
    """Whether this is causal attention of a text to itself without a bias, provided both sides have the same positions."""
    queries, keys, mask = scoring.queries, scoring.keys, scoring.mask
    own_sight = any(x is not None for x in (queries.segment, queries.sees_from, queries.sees_to))
    together = queries.consecutive and keys.consecutive and queries.position.shape[1] == keys.position.shape[1]
    return isinstance(scoring.bias, Uniform) and together and mask.causal and not (mask.sink_tokens or own_sight)


def _same_positions(scoring: Scoring) -> Bool[Array, ""]:
    i, j = scoring.queries.position, scoring.keys.position
    return (i == j).all() & (i < EMPTY).all()


def fits(q: Float[Array, "B T H D"], scoring: Scoring) -> bool | Bool[Array, ""]:
    """Whether cuDNN can compute a call that is not refused; an array where this depends on the positions."""
    return True if _table_size(q, scoring) <= _TABLE else _same_positions(scoring)


def forward(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring, tiling: Tiling
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser by cuDNN; see `Backend.forward`."""
    flawed, (k, v) = _mended(k, v)
    flawed = flawed.swapaxes(1, 2)
    hot, bias = _hot(q, scoring), _table(scoring, q)
    columns = lambda x: x.swapaxes(1, 2)[..., None]

    def run(call: _Call, mask: Array | None) -> tuple[Array, Array]:
        out, lse = call.forward(hot, k, v, bias, mask)
        if call.causal:
            spoilt, some = _among_last(flawed, call.window), jnp.ones((1, 1, 1), bool)
        else:
            seen = visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
            spoilt, some = _sees(seen, flawed), seen.any(-1)
        # A row that sees a key or a value that is not finite is NaN.
        factor = jnp.where(jnp.repeat(spoilt, q.shape[2] // k.shape[2], axis=1), jnp.nan, 1).astype(lse.dtype)
        out = jnp.where(columns(some), out * columns(factor).astype(out.dtype), 0)
        return out, jnp.where(some, lse * factor, HIDDEN)

    return _by_positions(scoring, q, run)


def _among_last(flags: Bool[Array, "B K T"], window: int | None) -> Bool[Array, "B K T"]:
    """For each flag, whether it or any flag before it is set; with a window, any of the last `window` flags up to it."""
    count = jnp.cumsum(flags, -1)
    before = 0 if window is None else jnp.pad(count, ((0, 0), (0, 0), (window, 0)))[..., : count.shape[-1]]
    return count > before


def _sees(seen: Bool[Array, "#B 1 T S"], flawed: Bool[Array, "B K S"]) -> Bool[Array, "B K T"]:
    """Whether each query sees any flawed key. Usually there is none, and nothing is computed."""
    none = jnp.zeros((*flawed.shape[:2], seen.shape[2]), bool)
    return jax.lax.cond(
        flawed.any(), lambda: varying((seen & flawed[:, :, None]).any(-1), flawed), lambda: varying(none, flawed)
    )


def backward(residuals: Residuals, d_out: Float[Array, "B T H D"], tiling: Tiling) -> Gradients:
    """Gradients by cuDNN from its output and log-normaliser; by `rows` if log-normalisers have cotangents, which cuDNN lacks."""
    if residuals.d_lse is not None:
        return rows.backward(residuals, d_out, tiling)
    q, scoring, wanted = residuals.q, residuals.scoring, residuals.wanted
    (_, (k, v)), (lse, _) = _mended(residuals.k, residuals.v), residuals.row_terms(d_out)
    parts = Differentiable.of(scoring)
    hot, of_hot = jax.vjp(lambda q, parts: _hot(q, parts.within(scoring)), q, parts)
    of_table = (wanted.bias, wanted.temperature, wanted.query_coordinate, wanted.key_coordinate)
    trained = not isinstance(scoring.bias, Uniform) and any(map(any, of_table))
    # Recomputed for its gradient: the residuals of a formula would be several tables of this size in float32.
    table = jax.checkpoint(lambda parts: _table(parts.within(scoring), q))
    bias, of_bias = jax.vjp(table, parts) if trained else (table(parts), None)
    given = hot, k, v, lse, residuals.out.astype(q.dtype), d_out.astype(q.dtype), bias
    d_hot, dk, dv, d_bias = _by_positions(scoring, q, lambda call, mask: call.backward(*given, mask, trained))
    dq, d_parts = of_hot(d_hot)
    if of_bias is not None:
        d_parts = jax.tree.map(jnp.add, d_parts, of_bias(d_bias)[0])
    return Gradients(dq, dk, dv, d_parts.cotangent(scoring))


def _mended(k: Array, v: Array) -> tuple[Bool[Array, "B S K"], tuple[Array, Array]]:
    """Which keys or values are not finite, and both with these set to 0, because the mask in a table would not hide NaN."""
    flawed = ~(jnp.isfinite(k).all(-1) & jnp.isfinite(v).all(-1))
    return flawed, (jnp.where(flawed[..., None], 0, k), jnp.where(flawed[..., None], 0, v))


def _hot(q: Array, scoring: Scoring) -> Array:
    """The queries times their temperature."""
    if scoring.temperature is None:
        return q
    return (q * scoring.temperature.swapaxes(1, 2)[..., None]).astype(q.dtype)


def _table(scoring: Scoring, q: Array) -> Float[Array, "#B H T S"] | None:
    """The biases times the temperature, with hidden pairs far below them; None without a bias."""
    if isinstance(scoring.bias, Uniform):
        return None
    wide = bias_table(scoring, jnp.promote_types(q.dtype, jnp.float32))
    wide = wide if scoring.temperature is None else wide * scoring.temperature[..., None]
    seen = visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
    least = _least(q.dtype)
    table = jnp.where(seen, jnp.maximum(wide, least / 2).astype(q.dtype), jnp.asarray(least, q.dtype))
    return jnp.broadcast_to(table, (len(table), q.shape[2], *table.shape[2:]))


def _by_positions(scoring: Scoring, q: Array, run: Callable) -> Any:
    """Apply `run` to a cuDNN call and a mask [#B, 1, T, S], or None where the table or the call includes the mask."""
    scale = scoring.content(q.shape[-1]).scale
    window = scoring.mask.window
    window = None if window is None or window >= q.shape[1] else window
    whole, causal = _Call(scale, False, None), _Call(scale, True, window)
    if not isinstance(scoring.bias, Uniform):  # whose table includes the mask
        return run(whole, None)
    masked = lambda: run(whole, visible(scoring.queries, scoring.keys, scoring.mask)[:, None])
    if not _plain(scoring):
        return masked()
    if _table_size(q, scoring) > _TABLE:  # then `fits` has checked the positions
        return run(causal, None)
    return jax.lax.cond(_same_positions(scoring), lambda: varying(run(causal, None)), lambda: varying(masked()))


def _least(dtype: jnp.dtype) -> float:
    """The table entry of a hidden pair, as in JAX's own masks for cuDNN. It is finite, so the difference of two is not NaN."""
    return -(2.0**15) if dtype == jnp.float16 else -(2.0**41)


@dataclasses.dataclass(frozen=True)
class _Call:
    """The forward and backward call of cuDNN or, without a GPU, their definitions."""

    scale: float
    causal: bool
    window: int | None  # of a causal call

    def forward(self, q: Array, k: Array, v: Array, bias: Array | None, mask: Array | None) -> tuple[Array, Array]:
        """The output [B, T, H, D] and log-normalisers [B, H, T] in float32."""
        run = self._fused_forward if platform() == "gpu" else self._forward
        return _mapped(run)(q, k, v, bias, mask)

    def backward(
        self,
        q: Array,
        k: Array,
        v: Array,
        lse: Array,
        out: Array,
        d_out: Array,
        bias: Array | None,
        mask: Array | None,
        trained: bool,
    ) -> tuple[Array, Array, Array, Array | None]:
        """The gradients of q, k and v, and of the bias if it is trained, else None."""
        run = functools.partial(self._fused_backward if platform() == "gpu" else self._backward, trained)
        return _mapped(run)(q, k, v, lse, out, d_out, bias, mask)

    @property
    def _options(self) -> dict[str, Any]:
        kinds = _library().MaskType
        return {"mask_type": kinds.CAUSAL if self.causal else kinds.NO_MASK, "sliding_window_length": self.window}

    def _fused_forward(self, q: Array, k: Array, v: Array, bias: Array | None, mask: Array | None) -> tuple:
        attend = _library().dot_product_attention
        return tuple(attend(q, k, v, bias, mask, scale=self.scale, return_residual=True, **self._options))

    def _fused_backward(self, trained: bool, *operands: Any) -> tuple:
        q, k, v, lse, out, d_out, bias, mask = operands
        library, none = _library(), jnp.zeros(0, q.dtype)
        table = library.combine_bias_and_mask(bias, mask, q.dtype)
        rule = library._dot_product_attention_bwd_rule
        made = rule(
            scale=self.scale,
            seed=42,
            dropout_rate=0.0,
            variadic_args=(table is not None, trained),
            layout=library.AttentionLayout.BTNH.value,
            score_mod=None,
            cudnn_version=library.check_cudnn_version(),
            return_residual=False,
            res=(q, k, v, none if table is None else table, *[none] * 6, (), lse, out),
            grad_output=d_out,
            **self._options,
        )
        return (*made[:3], made[3] if trained else None)

    def _logits(self, q: Array, k: Array, bias: Array | None, mask: Array | None) -> tuple[Array, Array]:
        """The logits by definition, and the keys repeated for each query head."""
        k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.promote_types(q.dtype, jnp.float32))
        logits = product("bthd,bshd->bhts", q, k) * self.scale
        ahead = jnp.arange(q.shape[1])[:, None] - jnp.arange(k.shape[1])
        if self.causal:
            mask = (ahead >= 0) & (ahead < (self.window or q.shape[1]))
        for added in (bias, None if mask is None else jnp.where(mask, 0, _least(q.dtype))):
            logits = logits if added is None else logits + added.astype(logits.dtype)
        return logits, k

    def _forward(self, q: Array, k: Array, v: Array, bias: Array | None, mask: Array | None) -> tuple:
        logits, _ = self._logits(q, k, bias, mask)
        lse, v = jax.nn.logsumexp(logits, -1), jnp.repeat(v, q.shape[2] // v.shape[2], axis=2)
        return jnp.einsum("bhts,bshd->bthd", jnp.exp(logits - lse[..., None]), v).astype(q.dtype), lse

    def _backward(self, trained: bool, *operands: Any) -> tuple:
        q, k, v, lse, out, d_out, bias, mask = operands
        logits, keys = self._logits(q, k, bias, mask)
        weights, values = jnp.exp(logits - lse[..., None]), jnp.repeat(v, q.shape[2] // v.shape[2], axis=2)
        delta = jnp.einsum("bthd,bthd->bht", out, d_out, preferred_element_type=logits.dtype)
        d_logits = weights * (jnp.einsum("bthd,bshd->bhts", d_out, values) - delta[..., None])
        dq = jnp.einsum("bhts,bshd->bthd", d_logits, keys) * self.scale
        of_heads = [jnp.einsum("bhts,bthd->bshd", *pair) for pair in ((d_logits, q), (weights, d_out))]
        dk, dv = (x.reshape(*k.shape[:3], -1, k.shape[3]).sum(3) for x in of_heads)
        made = zip((dq, dk * self.scale, dv), (q, k, v), strict=True)
        narrow = [x.astype(like.dtype) for x, like in made]
        if not trained:
            return (*narrow, None)
        d_bias = d_logits if len(bias) == len(q) else d_logits.sum(0, keepdims=True)
        return (*narrow, d_bias.astype(bias.dtype))


def _mapped(run: Callable) -> Callable:
    """A call that `jax.vmap` turns into one call with a larger batch; JAX's own rule supports this only for some tables."""
    call = jax.custom_batching.custom_vmap(run)

    @call.def_vmap
    def many(size: int, mapped: Any, *operands: Any) -> tuple[Any, Any]:
        batch = operands[0].shape[mapped[0]]

        def fold(x: Array, own: bool) -> Array:
            x = x if own else x[None]
            return jnp.broadcast_to(x, (size, batch, *x.shape[2:])).reshape(size * batch, *x.shape[2:])

        def unfold(x: Array) -> Array:
            return x.reshape(size, batch, *x.shape[1:])

        made = jax.tree.map(unfold, run(*jax.tree.map(fold, operands, tuple(mapped))))
        table = operands[-2]  # its gradient is the last result
        if table is not None and len(made) == 4 and table.shape[mapped[-2]] < batch:
            made = (*made[:3], None if made[3] is None else made[3].sum(1, keepdims=True))
        return made, jax.tree.map(lambda _: True, made)

    return call
