"""The one public operation: argument checks, the choice of a backend, and the only custom gradient.

How the gradient of a prior is summed. A parameter of a prior affects the logit of every pair of tokens, so its gradient is one
sum over all pairs. The sum is computed in this order, each step in one place:

1. The pairs of a tile: `Bias.cotangents` (`biases/base.py`) in kernels, `Blocks.bias_cotangents` (`cpu/blocks.py`) on CPUs.
   Kernels leave one number per row of the tile or, for a bias in strips, one per diagonal (on TPUs `diagonal_sums`,
   `pallas/tpu_strips.py`; on GPUs, for more than a few parameters, XLA after `pallas/gpu_diagonals.py`).
2. The tiles of a row: in the backend's loop over tiles, in float32 (the carry of `cpu/chunked.py`, the scratch memory of the
   kernels in `pallas/`, the blocks of `rows.py`). The kernel that holds queries computes the queries' sums; the one that holds
   keys computes those of the keys' coordinates.
3. Rows and the batch: `ScoringSums.cotangent` (`logits/tile.py`) for kernels; on CPUs the batch is part of the tile
   (`sum_leading`, `cpu/blocks.py`).
4. Heads, for parameters that they share: `Parameters.cotangent` (`logits/tile.py`) for kernels, `cpu/one_head.py` where heads
   are computed one by one.
5. The parts of a sharded sequence: `ring.py` adds the result of each ring step, on the device that holds the queries.
6. Devices: `varying` (`system/axes.py`) casts parameters to vary over the mesh, and the transpose of this cast is the sum. If
   `jax.shard_map` does not check types, the transpose of `shard_map` itself is the sum.

Gradients of coordinates and of the temperature are summed in the same way, except over the axes that these arrays have.
"""

import dataclasses
import functools
import importlib
import logging
import math
from collections.abc import Callable
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from bam_jax.attention import composed, cudnn, reference, rows
from bam_jax.attention.checking import check
from bam_jax.attention.cpu import chunked
from bam_jax.attention.logits.halves import Halves
from bam_jax.attention.logits.scoring import HIDDEN, Differentiable, Gradients, Residuals, Scoring
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.second_order import differentiable
from bam_jax.system.axes import auto, varying
from bam_jax.system.platform import platform


class Unsupported(ValueError):
    """The named backend does not support the call."""


@dataclasses.dataclass(frozen=True)
class Backend:
    """One way to compute attention, as a pair of pure functions.

    Args:
        forward: (q, k, v, scoring, tiling) -> (out [B, T, H, D], lse [B, H, T]). out has q's dtype or, if `backward` needs the
            digits that rounding loses, the logits' dtype or `Halves`. lse is the log-normaliser of the row, `HIDDEN` if the row
            sees no key (its output is then 0). Both are NaN where `attention` requires it; see `scoring.mask_nonfinite`.
        backward: (residuals, d_out, tiling) -> `Gradients`, from `Residuals` and the cotangent of their `out`.
        refuses: (q, k, v, scoring) -> the reason why this backend does not support the call, or None.
        rowwise: whether it computes whole rows of logits, which `Scoring.rowwise` needs. Its masks then include sink tokens.
        own_width: whether values may be wider or narrower than keys; otherwise both are padded to the larger width.
        plain: whether JAX itself differentiates `forward`, in every mode and to any order.
        scales: whether scaling the logits costs nothing. Queries are then not scaled beforehand; see `_fold_scale`.
        alone: `forward` for calls without gradients, whose out has q's dtype only; None: `forward`.
    """

    forward: Callable
    backward: Callable
    refuses: Callable
    rowwise: bool = False
    own_width: bool = False
    plain: bool = False
    scales: bool = False
    alone: Callable | None = None

    def reason(self, q: Array, k: Array, v: Array, scoring: Scoring) -> str | None:
        """The reason why this backend does not support the call, or None."""
        if not self.plain and not all(isinstance(size, int) for size in (*q.shape[1:], *k.shape[1:])):
            return f"symbolic sizes, but for that of a batch, have no blocks; take 'reference': {q.shape}, {k.shape}"
        if scoring.rowwise is not None and not self.rowwise:
            whole = " or ".join(repr(name) for name, backend in BACKENDS.items() if backend.rowwise)
            return f"{type(scoring.rowwise).__name__} needs whole rows of logits; take {whole}"
        return self.refuses(q, k, v, scoring)


def _nothing_refused(q: Array, k: Array, v: Array, scoring: Scoring) -> None:
    return None


def _imported(module: str, name: str) -> Callable:
    """A function of a module that is imported at first use, because the compiler of its kernels is slow to import."""
    return lambda *arguments, **options: getattr(importlib.import_module(module), name)(*arguments, **options)


def _kernels(module: str, twin: Callable = rows.forward, *, scales: bool = False) -> Backend:
    """The backend of a module of kernels. Its forward pass has the derivatives of `twin`."""
    forward = _imported(module, "forward")
    passes = differentiable(forward, _imported(module, "backward"), twin)
    alone = functools.partial(forward, alone=True)
    return Backend(*passes, _imported(module, "refuses"), scales=scales, alone=alone)


def _rows_in_halves(q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling) -> tuple[Halves, Array]:
    """The forward pass of `rows`, whose output is in `Halves`, like that of the GPU kernels."""
    out, lse = rows.forward(q, k, v, scoring, tiling)
    return Halves.of(out.astype(lse.dtype), q.dtype), lse


def _or_else(kernels: Backend, fits: Callable, other: Backend) -> Backend:
    """The kernels if `fits(q, scoring)`, otherwise the other backend.

    `fits` returns an array [] where the answer depends on the positions. Both backends return outputs of the same type.
    """

    def either(fit: bool | Array, first: Callable, second: Callable, *operands: Any) -> Any:
        if isinstance(fit, bool):
            return (first if fit else second)(*operands)
        return jax.lax.cond(fit, first, second, *operands)

    def forward(q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling) -> tuple[Array, Array]:
        first = lambda *operands: kernels.forward(*operands, tiling)
        second = lambda *operands: other.forward(*operands, tiling)
        return either(fits(q, scoring), first, second, q, k, v, scoring)

    def alone(q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling) -> tuple[Array, Array]:
        def narrow(run: Callable, *operands: Any) -> tuple[Array, Array]:
            out, lse = run(*operands, tiling)
            return out.astype(q.dtype), lse

        first, second = (functools.partial(narrow, x.alone or x.forward) for x in (kernels, other))
        return either(fits(q, scoring), first, second, q, k, v, scoring)

    def backward(residuals: Residuals, d_out: Array, tiling: Tiling) -> Gradients:
        first = lambda *operands: kernels.backward(*operands, tiling)
        second = lambda *operands: other.backward(*operands, tiling)
        return either(fits(residuals.q, residuals.scoring), first, second, residuals, d_out)

    return dataclasses.replace(kernels, forward=forward, backward=backward, alone=alone)


_TPU, _GPU = "bam_jax.attention.pallas.tpu", "bam_jax.attention.pallas.gpu"
_EVERYWHERE = Backend(*differentiable(chunked.forward, chunked.backward), _nothing_refused, own_width=True)
_ROWS = Backend(rows.forward, rows.backward, _nothing_refused, rowwise=True, own_width=True)

BACKENDS: dict[str, Backend] = {
    "reference": Backend(
        reference.forward, reference.backward, _nothing_refused, rowwise=True, own_width=True, plain=True
    ),
    "rows": _ROWS,
    "chunked": _EVERYWHERE,
    "pallas_tpu": _or_else(_kernels(_TPU), _imported(_TPU, "fits"), _EVERYWHERE),
    "pallas_gpu": _or_else(
        _kernels(_GPU, _rows_in_halves, scales=True),
        _imported(_GPU, "fits"),
        dataclasses.replace(_ROWS, forward=_rows_in_halves),
    ),
    "cudnn": _or_else(
        Backend(*differentiable(cudnn.forward, cudnn.backward), cudnn.refuses, scales=True),
        cudnn.fits,
        _ROWS,
    ),
}
"""The backends by the names that `attention(backend=...)` takes."""

DEFAULT = Tiling()

NATIVE = {"tpu": ("pallas_tpu",), "gpu": ("pallas_gpu", "cudnn")}
"""The backends made for each platform, the best first."""

EVERYWHERE = ("chunked", "rows", "reference")
"""The backends that run on every platform. "auto" is the first of these that supports the call if no native backend does.

GPUs skip the first one, because its small tiles would be launched one by one.
"""

COST = {
    "cudnn": "biases and masks in a table of the operands' type, unless it is plain causal attention without a bias",
    "chunked": "tile by tile, as suits a CPU",
    "rows": "all logits of many rows at a time in memory, the hidden ones too",
    "reference": "all logits in memory",
}
"""The cost of each of these backends, for the log."""


@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    scoring: Scoring,
    *,
    backend: str | Backend = ...,
    tiling: Tiling = ...,
    return_lse: Literal[False] = ...,
) -> Array: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    scoring: Scoring,
    *,
    backend: str | Backend = ...,
    tiling: Tiling = ...,
    return_lse: Literal[True],
) -> tuple[Array, Array]: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    scoring: Scoring,
    *,
    backend: str | Backend = ...,
    tiling: Tiling = ...,
    return_lse: bool,
) -> Any: ...
def attention(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    scoring: Scoring,
    *,
    backend: str | Backend = "auto",
    tiling: Tiling = DEFAULT,
    return_lse: bool = False,
) -> Any:
    """Softmax attention with a positional bias.

        out_i = sum_j softmax_j(temperature_i * (scale * q_i . k_j + bias(u_i, u_j))) v_j,   j visible from i

    The output of a row that sees no key is 0. Gradients flow to q, k, v, the bias's parameters, the temperature, the
    coordinates and the sink logits. Logits and softmax are float32 (float64 for float64 inputs); the output has q's dtype.

    Every backend supports second-order gradients and directional derivatives of gradients; kernel backends compute them with
    "rows". Only the backend "reference" supports forward mode on its own (`jax.jvp` of attention itself).

    A row is NaN if anything that it sees is NaN: its query or temperature, or a key, a value or the bias between them. What it
    does not see never makes it NaN. A value that contains an infinity counts as NaN. Gradients guarantee less: NaN inputs give
    NaN gradients, which may spread to everything in the same row of the batch, and to parameters.

    Args:
        q: queries of H heads, bfloat16, float16, float32 or float64.
        k, v: keys and values of K heads; K divides H, and head h reads key head h // (H // K). Values may be wider or narrower
            than keys; kernels compute with the larger width.
        scoring: bias, temperature, tokens, mask, soft cap, sinks and dropout.
        backend: a name in `BACKENDS`, or another `Backend`, such as `ring` makes. "auto": the platform's native backend if it
            supports the call, otherwise the first of `EVERYWHERE` that does.
        tiling: which tiles are skipped, and the tile size; the backend "reference" skips nothing.
        return_lse: whether to return the log-normaliser of each row as well. It has gradients. Use it to merge attention to
            parts of a sequence, to add an attention sink, or in a loss that keeps logits small.

    Returns:
        The output, [B, T, H, E] in q's dtype; with `return_lse` (output, lse), lse [B, H, T] in the logits' dtype, -1e30 if
        a row sees no key.

    Raises:
        ValueError: shapes or dtypes do not match; the message contains them.
        TypeError: an argument is not an array, a `Tiling` or an instance of a class decorated with `biases.bias`.
        Unsupported: the named backend does not support the call, or no backend has that name.

    Source: BAM definition 1 and theorem 1.
    """
    check(q, k, v, scoring)
    if not isinstance(tiling, Tiling):
        raise TypeError(f"tiling is a Tiling(skip, block_q, block_k), got {tiling!r:.100}")
    if backend == "auto":
        backend = choose(q, k, v, scoring)
    if not isinstance(backend, Backend) and backend not in BACKENDS:
        raise Unsupported(f"no attention backend {backend!r}: there are auto, {', '.join(BACKENDS)}")
    chosen = backend if isinstance(backend, Backend) else BACKENDS[backend]
    reason = chosen.reason(q, k, v, scoring)
    if reason is not None:
        name = "given" if isinstance(backend, Backend) else repr(backend)
        raise Unsupported(f"the attention backend {name} cannot do this: {reason}")
    if scoring.dropout is not None:
        drops = scoring.dropout.per_head(q.shape[0], q.shape[2]) if scoring.dropout.rate else None
        scoring = dataclasses.replace(scoring, dropout=drops)
    scoring = _narrowed(scoring, jnp.promote_types(q.dtype, jnp.float32))
    if chosen.scales:  # set here, because q may be widened later
        scoring = dataclasses.replace(scoring, scale=scoring.content(q.shape[-1]).scale)
    else:
        q, scoring = _fold_scale(q, scoring)
    nothing = not (q.size and k.size)  # no rows, or rows that see nothing
    compute = _blind if nothing else functools.partial(_plain if chosen.plain else _compiled, chosen, tiling)
    whole = functools.partial(
        composed.attend, compute, whole_rows=chosen.rowwise or nothing, own_width=chosen.own_width or nothing
    )
    out, lse = auto(whole, q, (0, 1, 2, 3), (0, 2, 1))(*varying((q, k, v, scoring)))
    return (out, lse) if return_lse else out


def _blind(q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    """Attention without any key."""
    lse = jnp.full((q.shape[0], q.shape[2], q.shape[1]), HIDDEN, jnp.promote_types(q.dtype, jnp.float32))
    return jnp.zeros((*q.shape[:3], v.shape[-1]), q.dtype), lse


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _plain(backend: Backend, tiling: Tiling, q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    out, lse = _named(*varying(backend.forward(q, k, v, scoring, tiling), q))
    return out.astype(q.dtype), lse


def _named[Output: (Array, Halves)](out: Output, lse: Array) -> tuple[Output, Array]:
    """Name both results: a `jax.checkpoint` policy that saves them recomputes nothing of the forward pass."""
    return jax.tree.map(lambda x: checkpoint_name(x, "attention_out"), out), checkpoint_name(lse, "attention_lse")


def _narrowed(scoring: Scoring, dtype: jnp.dtype) -> Scoring:
    """The scoring with no array wider than the logits. In 64-bit mode, parameters are wider by default."""

    def narrowed(x: Any) -> Any:
        own = jnp.result_type(x)
        wider = jnp.issubdtype(own, jnp.floating) and jnp.promote_types(own, dtype) != dtype
        return jnp.asarray(x, dtype) if wider else x

    return jax.tree.map(narrowed, scoring)


def _fold_scale(q: Array, scoring: Scoring) -> tuple[Array, Scoring]:
    """Multiply the queries by the scale's power of two, and leave the remaining factor, from 1 to 2, in the scoring.

    Multiplying by a power of two does not round, and happens once per query. The remaining factor multiplies each logit, in
    float32; it is 1 for heads that are 16, 64 or 256 wide. Float16 lacks the range: small queries would lose digits, and the
    gradient of the scaled queries, which is larger than that of q, would overflow. There the whole scale stays in the scoring.
    """
    if scoring.rowwise is not None:  # it may read the queries
        return q, scoring
    scale = scoring.content(q.shape[-1]).scale
    power = 1.0 if q.dtype == jnp.float16 else 2.0 ** (math.frexp(scale)[1] - 1)
    return q * power, dataclasses.replace(scoring, scale=scale / power)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(backend: Backend, tiling: Tiling, q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    out, lse = varying((backend.alone or backend.forward)(q, k, v, scoring, tiling), q)
    return out.astype(q.dtype), lse


def _forward(backend: Backend, tiling: Tiling, *arguments: Any) -> tuple[tuple[Array, Array], Residuals]:
    q, k, v, scoring = jax.tree.map(lambda x: x.value, arguments)
    wanted = Differentiable.of(arguments[3]).flags(lambda x: x.perturbed)
    out, lse = varying(backend.forward(q, k, v, scoring, tiling), q)
    out, lse = _named(out, lse)
    return (out.astype(q.dtype), lse), Residuals(q, k, v, scoring, out, lse, wanted)


def _backward(backend: Backend, tiling: Tiling, residuals: Residuals, cotangents: Any) -> tuple:
    d_out, d_lse = (None if isinstance(x, jax.custom_derivatives.SymbolicZero) else x for x in cotangents)
    if isinstance(residuals.out, Halves):
        residuals = dataclasses.replace(residuals, out=residuals.out.astype(residuals.lse.dtype))
    d_out = jnp.zeros_like(residuals.out, residuals.q.dtype) if d_out is None else d_out
    residuals = dataclasses.replace(residuals, d_lse=d_lse)
    return tuple(varying(backend.backward(residuals, d_out, tiling), residuals.q))


_attention.defvjp(_forward, _backward, symbolic_zeros=True)

# Outside of jit, this compiles a call once; its loops would otherwise be compiled at every call. Inside jit, it changes nothing.
# Inside a shard_map that is not jitted, JAX differentiates `_attention` only if `_attention` itself is jitted.
_compiled = jax.jit(_attention, static_argnums=(0, 1), inline=True)


def choose(q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring) -> str:
    """The backend "auto": the best native backend that supports the call, otherwise one that runs everywhere."""
    machine, reasons = platform(), []
    others = EVERYWHERE[1:] if machine == "gpu" else EVERYWHERE
    for name in (*NATIVE.get(machine, ()), *others):
        reason = BACKENDS[name].reason(q, k, v, scoring)
        if reason is None:
            break
        reasons += [f"{name} cannot do this: {reason}"] if name not in others else []
    _announce(name, machine, "; ".join(reasons) or None)
    return name


@functools.cache
def _announce(backend: str, platform: str, why: str | None) -> None:
    reason = "" if why is None else f" ({COST[backend]}), since {why}"
    logging.getLogger(__name__).info("attention: auto chose the backend %r on %s%s", backend, platform, reason)
