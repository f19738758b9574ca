"""The backend for Hopper GPUs: flash attention in Mosaic GPU, with the bias computed and differentiated tile by tile.

A block of threads holds 128 queries (forward, and the gradients of the query side) or keys (the gradients of the key side), 64
in each of its two computing warpgroups, and a third warpgroup brings the blocks of the other side through shared memory. What
is held lies along the rows of a tile, so that every sum over the other side runs along a row, inside four threads. Operands
keep their layout [B, T, H, D]. Positions are inputs, so that packed, cached and rotated tokens need no kernel of their own.

It is compiled for an H100 and interpreted on a CPU by its tests, and has not run on a chip yet. Biases of many parameters (T5,
FIRE) spill registers in the gradients of the query side: right, and slow; see `bench.gpu_static`.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.logits import skipping, tile
from bam_jax.attention.logits.merge import merge, parts
from bam_jax.attention.logits.residuals import Gradients, Residuals
from bam_jax.attention.logits.scoring import FLOOR, HIDDEN, Scoring
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.pallas.gpu_arithmetic import constant_vector, product, row_sum, spread, zeros
from bam_jax.attention.pallas.gpu_formula import LOWERED, cotangents
from bam_jax.attention.pallas.gpu_pipeline import Kernel, LoadedTile, TilePipeline, pad

_PROCESSORS = 132  # of an H100 and an H200; each holds a block of threads.

_DTYPES = ("bfloat16", "float16")  # Of matrix products as exact as their operands.


def refuses(q: Array, k: Array, v: Array, scoring: Scoring) -> str | None:
    """Why these kernels cannot do it, or None; see `Backend.refuses`."""
    if not q.dtype == k.dtype == v.dtype or q.dtype.name not in _DTYPES:
        return f"q, k and v are all of one of {', '.join(_DTYPES)} in its matrix products, not {q.dtype}, {k.dtype}, {v.dtype}"
    if q.shape[-1] > 128:
        return f"a head width of {q.shape[-1]}, above 128"
    if jax.default_backend() == "gpu" and getattr(jax.devices()[0], "compute_capability", "") != "9.0":
        return f"it is made for Hopper (H100, H200), not for {jax.devices()[0].device_kind}"
    return tile.unsupported(scoring, LOWERED)


def forward(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring, tiling: Tiling
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser by the running softmax; see `Backend.forward`. The output is float32."""
    plan = TilePipeline.of(q, k, v, scoring, tiling)
    kernel = Kernel("forward", _forward_start, _forward_step, _forward_finish, width=128)
    if q.shape[1] == 1:
        return _decode(plan, kernel, q)
    (out,), (lse,) = plan.over_keys(kernel, (plan.q,), plan.queries, matrices=1, vectors=1)
    return out[:, : q.shape[1], :, : q.shape[3]], lse[:, :, : q.shape[1]]


def _decode(plan: TilePipeline, kernel: Kernel, q: Array) -> tuple[Array, Array]:
    """`forward` of one query: a block of threads for each part of its keys, as many as the GPU can hold at once."""
    number = min(max(1, _PROCESSORS // (q.shape[0] * q.shape[2])), plan.needed.shape[-1])
    again = lambda x: jnp.tile(x, number)
    together = dataclasses.replace(plan, needed=parts(plan.needed, number), q=jnp.tile(plan.q, (1, number, 1, 1)))
    (out,), (lse,) = together.over_keys(kernel, (together.q,), jax.tree.map(again, plan.queries), matrices=1, vectors=1)
    first = slice(None, None, plan.block_q)
    out, lse = merge(out[:, first].swapaxes(1, 2), lse[:, :, first], axis=2)  # [B, H, D], [B, H]
    return out[:, None, :, : q.shape[3]], lse[..., None]


def backward(residuals: Residuals, d_out: Float[Array, "B T H D"], tiling: Tiling) -> Gradients:
    """Gradients from the output and its log-normaliser, tile by tile; see `Backend.backward`."""
    q, k, v, scoring = residuals.q, residuals.k, residuals.v, residuals.scoring
    plan = TilePipeline.of(q, k, v, scoring, tiling)
    matrices = (plan.q, pad(d_out.astype(q.dtype), plan.block_q))
    vectors = (plan.queries, *(skipping.pad(x[:, :, None], plan.block_q) for x in residuals.row_terms(d_out)))

    sums = tile.ScoringSums.of(scoring, plan.parameters, residuals.wanted)
    rows, columns = sum(sums.of_queries), sum(sums.of_keys)
    scale = 1 / math.sqrt(q.shape[-1])
    of_queries = Kernel(
        "query_gradients",
        functools.partial(_gradient_start, 1, rows),
        functools.partial(_query_step, sums.of_queries),
        functools.partial(_gradient_finish, (scale,)),
        width=64,
    )
    of_keys = Kernel(
        "key_gradients",
        functools.partial(_gradient_start, 2, columns),
        functools.partial(_key_step, sums.of_keys),
        functools.partial(_gradient_finish, (scale, 1.0)),
        width=64,
    )
    (dq,), d_rows = plan.over_keys(of_queries, matrices, vectors, matrices=1, vectors=rows)
    of_head, d_columns = plan.over_queries(of_keys, matrices, vectors, matrices=2, vectors=columns)
    dk, dv = (x.reshape(*x.shape[:2], k.shape[2], -1, x.shape[3]).sum(3) for x in of_head)

    d_scoring = sums.cotangent(d_rows, d_columns, q.shape[2])
    narrow = lambda x, like: x[:, : like.shape[1], :, : like.shape[3]].astype(like.dtype)
    return Gradients(narrow(dq, q), narrow(dk, k), narrow(dv, v), d_scoring)


def _forward_start(width: int) -> tuple:
    return constant_vector(FLOOR), constant_vector(0.0), zeros(width)


def _forward_step(at: LoadedTile, state: tuple) -> tuple:
    (q,), (k, v) = at.held, at.other
    top, total, sums = state
    logits, _ = tile.logits(product(q, k) * at.scale, at.bias, at.along_rows, at.along_columns)
    highest = jnp.maximum(top, logits.max(1))
    weights = jnp.exp(logits - spread(highest, logits.shape))
    shrink = jnp.exp(top - highest)
    sums = at.add_product(sums * spread(shrink, sums.shape), weights.astype(v.dtype), v)
    return highest, total * shrink + weights.sum(1), sums


def _forward_finish(state: tuple) -> tuple:
    top, total, sums = state
    none = total == 0  # false for NaN, which stays
    whole = jnp.where(none, 1.0, total)
    lse = jnp.where(none, HIDDEN, top + jnp.log(whole))
    return (sums * spread(1 / whole, sums.shape),), (lse,)


def _gradient_start(matrices: int, vectors: int, width: int) -> tuple:
    return tuple(zeros(width) for _ in range(matrices)), tuple(constant_vector(0.0) for _ in range(vectors))


def _gradient_finish(scales: tuple[float, ...], state: tuple) -> tuple:
    matrices, vectors = state
    return tuple(x * scale for x, scale in zip(matrices, scales, strict=True)), vectors


def _query_step(wanted: list[bool], at: LoadedTile, state: tuple) -> tuple:
    (q, d_out), (k, v) = at.held, at.other
    queries, lse, delta = at.along_rows
    (dq,), d_rows = state
    logits, raw = tile.logits(product(q, k) * at.scale, at.bias, queries, at.along_columns)
    d_logits = jnp.exp(logits - lse) * (product(d_out, v) - delta)
    parts = []
    if queries.temperature is not None:
        parts = [d_logits * raw]
        d_logits = d_logits * queries.temperature
    if d_rows:
        d_bias, d_i, _ = cotangents(at.bias, *tile.coordinates(queries, at.along_columns), d_logits)
        own = () if queries.coordinate is None else d_i
        d_rows = _accumulate(d_rows, [*jax.tree.leaves(d_bias), *parts, *jax.tree.leaves(own)], wanted)
    return (at.add_product(dq, d_logits.astype(k.dtype), k),), d_rows


def _key_step(wanted: list[bool], at: LoadedTile, state: tuple) -> tuple:
    (k, v), (q, d_out) = at.held, at.other
    queries, lse, delta = at.along_columns
    (dk, dv), d_columns = state
    logits, _ = tile.logits(product(k, q) * at.scale, at.bias, queries, at.along_rows)
    weights = jnp.exp(logits - lse)
    dv = at.add_product(dv, weights.astype(d_out.dtype), d_out)
    d_logits = weights * (product(v, d_out) - delta)
    if queries.temperature is not None:
        d_logits = d_logits * queries.temperature
    if d_columns:
        _, _, d_j = cotangents(at.bias, *tile.coordinates(queries, at.along_rows), d_logits)
        d_columns = _accumulate(d_columns, jax.tree.leaves(d_j), wanted)
    return (at.add_product(dk, d_logits.astype(q.dtype), q), dv), d_columns


def _accumulate(total: tuple, parts: list[Array], wanted: list[bool]) -> tuple:
    """Add the row sums of those parts that are wanted."""
    # A coordinate that stands for the position comes last, and nobody wants it.
    chosen = (part for part, flag in zip(parts, wanted, strict=False) if flag)
    return tuple(x + row_sum(part) for x, part in zip(total, chosen, strict=True))
