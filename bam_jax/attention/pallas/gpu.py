"""The backend for Hopper GPUs: flash attention in Mosaic GPU, with the bias computed and differentiated tile by tile.

A thread block holds 128 queries (forward, and the gradients of the query side) or keys (the gradients of the key side), 64 in
each of its two compute warpgroups. A third warpgroup copies the blocks of the streamed side into shared memory. The stationary
side lies along the rows of a tile, so every sum over the streamed side runs along a row, within four threads. Operands keep
their layout [B, T, H, D]. Positions are inputs, so packed, cached and rotated tokens need no separate kernels.
Where position offsets equal slot offsets (see `strips`), a relative bias is read from strips, so tiles do not evaluate its
formula; see `gpu_strips`, and `gpu_profiles` for strips that queries mix.

The tests compile it for an H100 and interpret it on a CPU. On an H100 and an H200 it passed the parity tests for every bias and
mask, with the same bits in each run (docs/accelerator.md). These runs predate strips, results stored in the operands' dtype
through shared memory, the output in two halves, the replacement of non-finite values in shared memory, `gpu_diagonals` and
`gpu_profiles`. All of these have only been compiled, counted (`benchmarks.gpu_static`) and interpreted; the addresses of strips
and of mixed biases are emulated.
A formula with many parameters (FIRE, or T5 without strips) spills registers in the gradients of the query side, which is correct
but slow.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bam_jax.attention.logits import one_query, skipping, tile
from bam_jax.attention.logits.dropout import drop
from bam_jax.attention.logits.halves import Halves
from bam_jax.attention.logits.scoring import FLOOR, HIDDEN, Gradients, Residuals, Scoring, mask_nonfinite
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.pallas import gpu_diagonals, gpu_profiles, strips
from bam_jax.attention.pallas.gpu_arithmetic import add_product, constant_vector, product, row_sum, spread, zeros
from bam_jax.attention.pallas.gpu_formula import LOWERED, cotangents, lowered
from bam_jax.attention.pallas.gpu_pipeline import Kernel, LoadedTile, TilePipeline, pad
from bam_jax.attention.pallas.gpu_strips import StripBias
from bam_jax.biases import Mixture, Uniform

_DTYPES = (
    "bfloat16",
    "float16",
)  # Their matrix products are exact in the operands; float32 operands would be rounded to 19 bits.

_MISCOMPILING = range(12080, 12091)
"""The CUDA versions whose assembler miscompiles causal masks, according to the attention example in JAX's sources. 12.9.1 does
not, but reports 12090, like 12.9.0."""

# The streamed side's tokens in a tile: backward passes hold logits, weights and their gradients in registers at once.
_FORWARD_WIDTH, BACKWARD_WIDTH = 128, 64

_PROFILES = 32  # the most profiles that queries may mix

_BITS = 1 / math.log(2)  # bits per nat

FEW = 4
"""A head with more trained parameters has no strips of slopes; see `gpu_diagonals`."""


def refuses(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring
) -> str | None:
    """The reason why these kernels do not support the call, or None; see `Backend.refuses`."""
    if not q.dtype == k.dtype == v.dtype or q.dtype.name not in _DTYPES:
        return (
            f"q, k and v are all of one of {', '.join(_DTYPES)} in its matrix products, not "
            f"{q.dtype}, {k.dtype}, {v.dtype}; give all three as .astype(jnp.bfloat16), or backend='auto'"
        )
    if not isinstance(q.shape[0], int):
        return "a symbolic batch: its grid is of numbers"
    if max(q.shape[-1], v.shape[-1]) > 128:
        return f"a head width of {max(q.shape[-1], v.shape[-1])}, above 128"
    if jax.default_backend() == "gpu":
        if getattr(jax.devices()[0], "compute_capability", "") != "9.0":
            return f"it is made for Hopper (H100, H200), not for {jax.devices()[0].device_kind}"
        cuda = re.search(r"\bcuda (\d+)", _platform_version())
        if cuda is not None and int(cuda.group(1)) in _MISCOMPILING:
            version = int(cuda.group(1))
            return f"the assembler of CUDA {version // 1000}.{version % 1000 // 10} miscompiles masks; take CUDA 13"
    if isinstance(scoring.bias, Mixture) and (number := len(jax.tree.leaves(scoring.queries.coordinate))) > _PROFILES:
        return f"{number} profiles, above {_PROFILES}: they take a block's shared memory"
    return strips.refusal(scoring, LOWERED)


def fits(q: Float[Array, "B T H D"], scoring: Scoring) -> bool | Bool[Array, ""]:
    """Whether the kernels can compute a call that is not refused; see `strips.fits`."""
    return strips.fits(q, scoring, LOWERED)


def _platform_version() -> str:
    """The platform's version string, such as "cuda 12090" for CUDA 12.9."""
    return jax.extend.backend.get_backend().platform_version


def forward(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K D"],
    scoring: Scoring,
    tiling: Tiling,
    *,
    alone: bool = False,
) -> tuple[Any, Float[Array, "B H T"]]:
    """Attention and its log-normaliser, with a running softmax; see `Backend.forward` and `Backend.alone`."""
    if q.shape[1] == 1:
        out, lse = _one_query(q, k, v, scoring)
        return out.astype(q.dtype) if alone else Halves.of(out, q.dtype), lse
    run = functools.partial(tiled_forward, q, k, v, scoring, tiling, alone=alone)
    return strips.by_slots(scoring, LOWERED, (Uniform,), run)


def tiled_forward(
    q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling, shift: Array | None, *, alone: bool = False
) -> tuple[Any, Array]:
    """`forward` by the kernel, with the bias in strips or, if `shift` is None, as a formula."""
    pipeline = TilePipeline.of(q, k, v, scoring, tiling, shift)
    halves = [q.dtype] if alone else [q.dtype] * 2
    finish = functools.partial(_forward_finish, halves)
    width = forward_width(pipeline.q.shape[3], mixed=bool(pipeline.weights))
    kernel = Kernel("forward", _forward_start, _forward_step, finish, width)
    matrices = [jax.ShapeDtypeStruct(pipeline.q.shape[3:], half) for half in halves]
    made, (lse,) = pipeline.over_keys(kernel, (pipeline.q,), pipeline.queries, matrices=matrices, vectors=1)
    out = [x[:, : q.shape[1], :, : q.shape[3]] for x in made]
    return out[0] if alone else Halves(*out), lse[:, :, : q.shape[1]]


def forward_width(width: int, *, mixed: bool) -> int:
    """Keys per tile in the forward pass. Mixed biases need shared memory, of which wide heads leave less."""
    return BACKWARD_WIDTH if mixed and width > 64 else _FORWARD_WIDTH


def _one_query(q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    """`forward` of one query by XLA. It is memory-bound, and choosing blocks for a kernel takes longer than reading them all."""
    k, v = mask_nonfinite(k, v)

    # One query head of each key head at a time. For products with vectors, XLA reads keys and values in place, for several
    # products at once. For a product with a matrix it would copy them.
    def times_k(q: Array, k: Array) -> Array:
        of_one = functools.partial(jnp.einsum, "bkd,bskd->bks", preferred_element_type=jnp.float32)
        return jnp.stack([of_one(q[:, :, g], k) for g in range(q.shape[2])], 2)

    def times_v(weights: Array, v: Array) -> Array:
        of_one = functools.partial(jnp.einsum, "bks,bskd->bkd")
        return jnp.stack([of_one(weights[:, :, g], v.astype(jnp.float32)) for g in range(weights.shape[2])], 2)

    return one_query.attend(q, k, v, scoring, times_k, times_v)


def backward(residuals: Residuals, d_out: Float[Array, "B T H D"], tiling: Tiling) -> Gradients:
    """Gradients from the output and its log-normaliser, tile by tile; see `Backend.backward`."""
    run = functools.partial(tiled_backward, residuals, d_out, tiling)
    return strips.by_slots(residuals.scoring, LOWERED, (Uniform,), run)


def _wanted_columns(residuals: Residuals) -> list[int]:
    """The columns of the bias's parameter table whose gradients are wanted."""
    parameters = tile.Parameters.of(residuals.scoring.bias)
    flags = tile.ScoringSums.of(residuals.scoring, parameters, residuals.wanted).of_queries
    return [n for n in range(sum(parameters.sizes)) if flags[n]]


def tiled_backward(residuals: Residuals, d_out: Array, tiling: Tiling, shift: Array | None) -> Gradients:
    """`backward` by the kernels, with the bias in strips or, if `shift` is None, as a formula."""
    q, k, v, scoring = residuals.q, residuals.k, residuals.v, residuals.scoring
    pipeline = TilePipeline.of(q, k, v, scoring, tiling, shift)
    matrices = (pipeline.q, pad(d_out.astype(q.dtype), pipeline.block_q))
    lse, delta = residuals.row_terms(d_out)
    vectors = (pipeline.queries, *(skipping.pad(x[:, :, None], pipeline.block_q) for x in (lse, delta)))

    bias, mixed, wanted = scoring.bias, scoring.queries.coordinate, residuals.wanted
    of_weights = [
        jax.ShapeDtypeStruct(x.shape[3:], jnp.float32) for x in pipeline.weights if any(wanted.query_coordinate)
    ]
    columns: list[int] = []
    if pipeline.weights:
        third_kernel = any(wanted.bias)
        scoring, wanted = strips.without_coordinates(scoring), wanted._replace(bias=(), query_coordinate=())
    else:
        # Each parameter needs another strip for its derivatives. If there are many, a kernel sums the gradient at every offset.
        columns = _wanted_columns(residuals)
        third_kernel = shift is not None and len(columns) > FEW
        if third_kernel:
            columns, wanted = [], wanted._replace(bias=(False,) * len(wanted.bias))
    parameters = tile.Parameters.of(scoring.bias)
    sums = tile.ScoringSums.of(scoring, parameters, wanted)
    query_sums, key_sums = sum(sums.of_queries), sum(sums.of_keys)
    of_queries = sums.of_queries
    if shift is not None:
        of_queries = [True] * len(columns) + of_queries[sum(parameters.sizes) :]
    # Two kernels, each of which holds its own sums: no two thread blocks add to the same numbers, so the order of every sum is
    # the same in each run.
    query_kernel = Kernel(
        "query_gradients",
        functools.partial(_gradient_start, [None, *(x.shape[0] for x in of_weights)], query_sums),
        functools.partial(_query_step, of_queries),
        functools.partial(_gradient_finish, (pipeline.content.scaled, *[_as_it_is] * len(of_weights))),
        BACKWARD_WIDTH,
        tuple(columns) if shift is not None else (),
    )
    key_kernel = Kernel(
        "key_gradients",
        functools.partial(_gradient_start, [None] * 2, key_sums),
        functools.partial(_key_step, sums.of_keys),
        functools.partial(_gradient_finish, (pipeline.content.scaled, _as_it_is)),
        BACKWARD_WIDTH,
    )
    row = lambda dtype: jax.ShapeDtypeStruct(pipeline.q.shape[3:], dtype)
    (dq, *d_weights), d_query = pipeline.over_keys(
        query_kernel, matrices, vectors, matrices=[row(q.dtype), *of_weights], vectors=query_sums
    )
    # With grouped queries, gradients are summed over the query heads before they are rounded.
    kind = q.dtype if q.shape[2] == k.shape[2] else jnp.float32
    of_query_heads, d_key = pipeline.over_queries(
        key_kernel, matrices, vectors, matrices=[row(kind)] * 2, vectors=key_sums
    )
    dk, dv = (x.reshape(*x.shape[:2], k.shape[2], -1, x.shape[3]).sum(3) for x in of_query_heads)

    d_scoring = sums.cotangent(d_query, d_key, q.shape[2])
    if pipeline.weights:
        number = len(jax.tree.leaves(mixed))
        d_mixed = gpu_profiles.weights_cotangent(number, *d_weights) if d_weights else [None] * number
        d_queries = dataclasses.replace(d_scoring.queries, coordinate=tile.refolded(mixed, d_mixed))
        d_scoring = dataclasses.replace(d_scoring, bias=jax.tree.map(jnp.zeros_like, bias), queries=d_queries)
    if third_kernel:
        d_bias = gpu_diagonals.bias_gradient(pipeline, _bias_cotangent, matrices, vectors)
        d_scoring = dataclasses.replace(d_scoring, bias=d_bias)
    unpadded = lambda x, like: x[:, : like.shape[1], :, : like.shape[3]].astype(like.dtype)
    return Gradients(unpadded(dq, q), unpadded(dk, k), unpadded(dv, v), d_scoring)


def _logits(loaded: LoadedTile, product: Array, sides: Callable) -> tuple[Array, float, Array, Array]:
    """A tile's logits and their unit in bits, the logits before temperature and mask, and the content scores.

    `sides(columns)` returns the queries and the keys. Exponentials have base 2, as in hardware: one fused operation multiplies
    a logit by its unit and subtracts the row's maximum.
    """
    queries, keys = sides(loaded.along_columns)
    content, scores, unit = loaded.content, product, _BITS
    bare = isinstance(loaded.bias, Uniform) and queries.temperature is None and content.soft_cap is None
    # A positive scale keeps the order of logits. If it is not tiny, it keeps hidden logits below the first maximum.
    if bare and content.scale * HIDDEN < 2 * FLOOR:
        unit *= content.scale
    else:
        scores = content.scores(product)
    shown, raw = lowered(tile.unmasked_logits, scores, loaded.bias, queries, keys)

    def hide() -> Array:
        loaded.mend()
        queries, keys = sides(loaded.columns_again())
        return jnp.where(tile.visible(queries, keys), shown + keys.flaw, HIDDEN)

    return jax.lax.cond(loaded.whole, lambda: shown, hide), unit, raw, scores


def _forward_start(width: int) -> tuple:
    # The maximum starts above `HIDDEN`, so if all keys of a tile are hidden, their exponentials are 0 instead of 1.
    return constant_vector(FLOOR), constant_vector(0.0), zeros(width)


def _forward_step(loaded: LoadedTile, state: tuple) -> tuple:
    (q,), (k, v) = loaded.stationary, loaded.streamed
    top, total, sums = state
    sides = lambda columns: (loaded.along_rows, columns)
    logits, unit, *_ = _logits(loaded, product(q, k), sides)
    highest = jnp.maximum(top, logits.max(1) * (unit / _BITS))  # in nats, where it is exact
    weights = jnp.exp2(logits * unit - spread(highest * _BITS, logits.shape))
    # The sums so far are relative to the old maximum. They are rescaled first, because the tensor cores accumulate onto them.
    shrink = jnp.exp2((top - highest) * _BITS)
    kept = drop(weights, lowered(tile.dropout_factor, loaded.along_rows, loaded.along_columns))
    sums = add_product(sums * spread(shrink, sums.shape), kept.astype(v.dtype), v)
    return highest, total * shrink + weights.sum(1), sums


def _forward_finish(halves: list[jnp.dtype], state: tuple) -> tuple:
    top, total, sums = state
    none = total == 0  # false for NaN, which stays
    whole = jnp.where(none, 1.0, total)
    lse = jnp.where(none, HIDDEN, top + jnp.log(whole))
    out = sums * spread(1 / whole, sums.shape)
    result = out.astype(halves[0])
    if len(halves) == 1:
        return (result,), (lse,)
    rest = out - result.astype(out.dtype)
    return (result, jnp.where(jnp.abs(rest) < -HIDDEN, rest, 0.0)), (lse,)  # 0 if the result is not finite


def _as_it_is(x: Array) -> Array:
    return x


def _gradient_start(widths: list[int | None], vectors: int, width: int) -> tuple:
    """Start all sums at zero; a width of None is the head width."""
    return tuple(zeros(n or width) for n in widths), tuple(constant_vector(0.0) for _ in range(vectors))


def _gradient_finish(last: tuple[Callable, ...], state: tuple) -> tuple:
    """The sums, after the last operation on each matrix."""
    matrices, vectors = state
    return tuple(finish(x) for x, finish in zip(matrices, last, strict=True)), vectors


def _query_step(wanted: list[bool], loaded: LoadedTile, state: tuple) -> tuple:
    """Add a tile to dq and the sums over keys: d_logit = weight * (d_out . v - delta)."""
    (k, _), (queries, *_), ((dq, *d_weights), d_query) = loaded.streamed, loaded.along_rows, state
    if d_query and jax.tree.leaves(loaded.bias) and not isinstance(loaded.bias, StripBias):
        # The values that a formula and its gradient share would stay in registers across both branches of the mask, and across
        # the mending of values. There are not enough registers for that.
        loaded.mend()
        loaded = dataclasses.replace(loaded, whole=False, mend=lambda: None)
    d_logits, raw, scores = _d_logits(loaded)
    d_temperature = []
    if queries.temperature is not None:
        d_temperature = [d_logits * raw]
        d_logits = d_logits * queries.temperature
    if d_query:
        d_bias, d_i, _ = cotangents(loaded.bias, *tile.coordinates(queries, loaded.along_columns), d_logits)
        summands = [*jax.tree.leaves(d_bias), *d_temperature, *jax.tree.leaves(d_i)]
        d_query = _accumulate(d_query, summands, wanted)
    if d_weights:
        assert loaded.mixed is not None
        d_weights = [loaded.mixed.add_to_weights(d_weights[0], d_logits)]
    d_scaled = loaded.content.d_scaled(d_logits, scores)
    return (add_product(dq, d_scaled.astype(k.dtype), k), *d_weights), d_query


def _d_logits(loaded: LoadedTile) -> tuple[Array, Array, Array]:
    """A tile's d_logit, its logits before temperature and mask, and the content scores."""
    (q, d_out), (k, v) = loaded.stationary, loaded.streamed
    queries, lse, delta = loaded.along_rows
    logits, unit, raw, scores = _logits(loaded, product(q, k), lambda columns: (queries, columns))
    # Weights are recomputed from the log-normaliser: the full weights are never in memory.
    factor = lowered(tile.dropout_factor, queries, loaded.along_columns)
    # Subtract first: with a bias of thousands of nats, the product would be rounded.
    weights = jnp.exp2((logits - lse * (_BITS / unit)) * unit)
    return weights * (drop(product(d_out, v), factor) - delta), raw, scores


def _bias_cotangent(loaded: LoadedTile) -> Array:
    """The cotangent of a tile's biases."""
    temperature, (d_logits, *_) = loaded.along_rows[0].temperature, _d_logits(loaded)
    return d_logits if temperature is None else d_logits * temperature


def _key_step(wanted: list[bool], loaded: LoadedTile, state: tuple) -> tuple:
    """Add a tile to dk, dv and the sums over queries; the tile is the transpose of the one in `_query_step`."""
    (k, v), (q, d_out) = loaded.stationary, loaded.streamed
    queries, lse, delta = loaded.along_columns
    (dk, dv), d_key = state
    logits, unit, _, scores = _logits(loaded, product(k, q), lambda columns: (columns[0], loaded.along_rows))
    weights = jnp.exp2((logits - lse * (_BITS / unit)) * unit)
    factor = lowered(tile.dropout_factor, queries, loaded.along_rows)
    dv = add_product(dv, drop(weights, factor).astype(d_out.dtype), d_out)
    d_logits = weights * (drop(product(v, d_out), factor) - delta)
    if queries.temperature is not None:
        d_logits = d_logits * queries.temperature
    if d_key:
        _, _, d_j = cotangents(loaded.bias, *tile.coordinates(queries, loaded.along_rows), d_logits)
        d_key = _accumulate(d_key, jax.tree.leaves(d_j), wanted)
    d_scaled = loaded.content.d_scaled(d_logits, scores)
    return (add_product(dk, d_scaled.astype(q.dtype), q), dv), d_key


def _accumulate(total: tuple, summands: list[Array], wanted: list[bool]) -> tuple:
    """Add the row sums of those summands [64, n] that are wanted.

    There may be more summands than flags: those of coordinates that are positions, which are not wanted.
    """
    chosen = [summand for summand, flag in zip(summands, wanted, strict=False) if flag]
    return tuple(x + row_sum(summand) for x, summand in zip(total, chosen, strict=True))
