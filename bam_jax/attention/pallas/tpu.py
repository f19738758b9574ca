"""The backend for TPUs: flash attention in Pallas, with the bias computed and differentiated tile by tile.

A kernel holds one block of queries (forward, and the gradients of the query side) or of keys (the gradients of the key side)
in the lanes and walks over the blocks of the other side, which lie in the sublanes. Its running sums are then rows of lanes,
reductions run over sublanes, and everything in HBM has the sequence as its last axis: no head width is padded to 128 lanes.
Positions are inputs, so that packed, cached and rotated tokens need no kernel of their own. A relative bias that a kernel cannot
compute is given to it in strips, where offsets are those of slots, and `fits` says where they are not.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float

from bam_jax.attention.logits import skipping, tile
from bam_jax.attention.logits.merge import merge, parts
from bam_jax.attention.logits.residuals import Gradients, Residuals
from bam_jax.attention.logits.scoring import FLOOR, HIDDEN, Scoring
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.pallas import tpu_strips
from bam_jax.attention.pallas.tpu_grid import Step, TileGrid, inside
from bam_jax.biases import Bias, Relative, Uniform

# So many keys, or queries, of a tile are computed at once: of more the logits would not stay in registers.
_KEYS, _QUERIES = 128, 256

_CORES = 2  # Of the TPUs that have most: so many share the keys of one query.


def refuses(q: Array, k: Array, v: Array, scoring: Scoring) -> str | None:
    """Why these kernels cannot do it, or None; see `Backend.refuses`."""
    for x in (q, k, v):
        if x.dtype.name not in ("bfloat16", "float32"):
            return f"a TPU has no {x.dtype}"
    if q.shape[-1] > 256:
        return f"a head width of {q.shape[-1]}, above 256"
    reason = tile.unsupported(scoring)
    if reason is None or not isinstance(scoring.bias, Relative):
        return reason
    if scoring.queries.coordinate is not None or scoring.keys.coordinate is not None:
        return f"{reason}, and outside a kernel it is evaluated for offsets of positions, not of coordinates"
    return None


def fits(q: Float[Array, "B T H D"], scoring: Scoring) -> bool | Bool[Array, ""]:
    """Whether the kernels can do what is not refused; an array where only the positions say it.

    A bias that a kernel cannot compute comes in strips: for more than one query, where offsets are those of slots.
    """
    if tile.unsupported(scoring) is None:
        return True
    return tpu_strips.shift(scoring)[0] if q.shape[1] > 1 else False


def _shift(scoring: Scoring) -> Array | None:
    """How far apart the slots of both sides are, for a bias in strips; None: it is a formula."""
    return None if tile.unsupported(scoring) is None else tpu_strips.shift(scoring)[1]


def forward(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring, tiling: Tiling
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser by the running softmax; see `Backend.forward`."""
    if q.shape[1] == 1:
        return _decode(q, k, v, scoring, tiling)
    plan = TileGrid.of(q, k, v, scoring, tiling, _shift(scoring))
    column = lambda n: (n, plan.block_q)
    out, lse = plan.over_keys(
        _forward_kernel, plan.q, (_like(plan.q), plan.per_query(1)), [column(1), column(1), column(q.shape[-1])]
    )
    return _outside(out, q.shape[1]), lse[:, :, 0, : q.shape[1]]


def _decode(q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling) -> tuple[Array, Array]:
    """`forward` of one query: the query heads of a key head are the rows of one tile, and keys lie in the lanes.

    The parts of the keys are to the grid what heads are.
    """
    plan = TileGrid.of(q, k, v, scoring, dataclasses.replace(tiling, block_q=1))
    heads = k.shape[2]
    group = q.shape[2] // heads
    count = group if group > 1 else 8  # a single row is repeated: Mosaic does not multiply it in bfloat16

    def rows(x: Array) -> Array:
        """[#B, #H, n, 1] -> [#B, #K, n, rows]."""
        x = jnp.broadcast_to(x, (x.shape[0], max(x.shape[1], group), *x.shape[2:]))
        x = x.reshape(x.shape[0], -1, group, x.shape[2]).swapaxes(2, 3)
        return jnp.repeat(x, count // group, axis=3)

    needed = plan.needed.reshape(heads, group, 1, -1).any(1)
    number = min(_CORES, needed.shape[-1])
    together = dataclasses.replace(
        plan,
        q=rows(plan.q),
        queries=jax.tree.map(rows, plan.queries),
        keys=jax.tree.map(lambda x: x if x.shape[1] == 1 else x.reshape(x.shape[0], heads, group, -1), plan.keys),
        table=jnp.zeros((1, 1), jnp.float32),
        needed=parts(needed, number).reshape(heads * number, 1, -1),
        block_q=count,
    )
    made = lambda n: jax.ShapeDtypeStruct((q.shape[0], heads * number, n, count), jnp.float32)
    operands = (together.q, rows(plan.table[None, :, :, None]))
    scratch = [(count, 1), (count, 1), (q.shape[-1], count)]
    out, lse = together.over_keys(_decode_kernel, operands, (made(q.shape[-1]), made(1)), scratch)
    each = lambda x: x[..., :group].reshape(q.shape[0], heads, number, -1, group).swapaxes(3, 4)
    out, lse = merge(each(out), each(lse)[..., 0], axis=2)  # [B, K, group, D], [B, K, group]
    return out.astype(q.dtype).reshape(q.shape), lse.reshape(q.shape[0], q.shape[2], 1)


def backward(residuals: Residuals, d_out: Float[Array, "B T H D"], tiling: Tiling) -> Gradients:
    """Gradients from the output and its log-normaliser, tile by tile; see `Backend.backward`."""
    q, k, v, scoring, wanted = residuals.q, residuals.k, residuals.v, residuals.scoring, residuals.wanted
    plan = TileGrid.of(q, k, v, scoring, tiling, _shift(scoring))
    lse, delta = (skipping.pad(x[:, :, None], plan.block_q) for x in residuals.row_terms(d_out))
    rows = _Rows(plan.q, inside(d_out, plan.block_q), lse, delta)

    bias, of_bias = scoring.bias, False
    if plan.strips is not None:
        of_bias, wanted = any(wanted.bias), wanted._replace(bias=())
        scoring = dataclasses.replace(scoring, bias=Uniform())
    sums = tile.ScoringSums.of(scoring, plan.parameters, wanted)
    dq, d_rows, d_strips = plan.over_keys(
        functools.partial(_query_kernel, sums.of_queries),
        rows,
        (_like(plan.q), plan.rows(sum(sums.of_queries))),
        [(q.shape[-1], plan.block_q)],
        (plan.per_diagonal() if of_bias else None,),
    )
    dk, dv, d_columns = plan.over_queries(
        functools.partial(_key_kernel, sums.of_keys),
        rows,
        (_like(plan.k), _like(plan.v), plan.columns(sum(sums.of_keys))),
        [(q.shape[-1], plan.block_k)] * 2,
    )
    d_scoring = sums.cotangent(_each(d_rows), _each(d_columns), q.shape[2])
    if plan.strips is not None:
        d_bias = jax.tree.map(jnp.zeros_like, bias) if d_strips is None else plan.strips.cotangent(d_strips.sum(0))
        d_scoring = dataclasses.replace(d_scoring, bias=d_bias)
    return Gradients(_outside(dq, q.shape[1]), _outside(dk, k.shape[1]), _outside(dv, k.shape[1]), d_scoring)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Rows:
    """What the backward kernels need of queries: q (already divided by sqrt(D)) and d_out [B, H, D, T]; [B, H, 1, T]."""

    q: Array
    d_out: Array
    lse: Array
    delta: Array


def _forward_kernel(step: Step, q: Any, k: Any, v: Any, outputs: Any, top: Any, total: Any, sums: Any) -> None:
    out, lse = outputs

    @pl.when(step.first)
    def start() -> None:
        _start(top, total, sums)

    @pl.when(step.needed)
    def compute() -> None:
        queries, bias = _lanes(step.queries), step.bias()
        for piece in _pieces(k.shape[1], _KEYS):
            keys = _sublanes(_at(step.keys, piece))
            logits, _ = tile.logits(_dot(k[:, piece], q, 0, 0), _part(bias, piece), queries, keys)
            highest = jnp.maximum(top[...], logits.max(0, keepdims=True))
            weights = jnp.exp(logits - highest)
            shrink = jnp.exp(top[...] - highest)
            total[...] = total[...] * shrink + weights.sum(0, keepdims=True)
            sums[...] = sums[...] * shrink + _dot(v[:, piece], weights, 1, 0)
            top[...] = highest

    @pl.when(step.last)
    def finish() -> None:
        _finish(out, lse, top[...], total[...], sums[...])


def _pieces(length: int, size: int) -> list[slice]:
    """The parts of a block that are computed one after another."""
    return [slice(at, min(at + size, length)) for at in range(0, length, size)]


def _part(bias: Bias, piece: slice) -> Bias:
    """The bias of some rows of a tile; a formula is that of all."""
    return dataclasses.replace(bias, row=piece.start) if isinstance(bias, tpu_strips.Strip) else bias


def _decode_kernel(step: Step, rows: Any, k: Any, v: Any, outputs: Any, top: Any, total: Any, sums: Any) -> None:
    (q, table), (out, lse) = rows, outputs

    @pl.when(step.first)
    def start() -> None:
        _start(top, total, sums)

    @pl.when(step.needed)
    def compute() -> None:
        queries, keys = _sublanes(step.queries), _lanes(step.keys)
        bias = step.parameters.bias([table[n][:, None] for n in range(table.shape[0])])
        logits, _ = tile.logits(_dot(q, k, 0, 0), bias, queries, keys)
        highest = jnp.maximum(top[...], logits.max(1, keepdims=True))
        weights = jnp.exp(logits - highest)
        shrink = jnp.exp(top[...] - highest)
        total[...] = total[...] * shrink + weights.sum(1, keepdims=True)
        sums[...] = sums[...] * shrink[:, 0][None] + _dot(v, weights, 1, 1)
        top[...] = highest

    @pl.when(step.last)
    def finish() -> None:
        _finish(out, lse, top[:, 0][None], total[:, 0][None], sums[...])


def _start(top: Any, total: Any, sums: Any) -> None:
    """Before the first tile of a running softmax."""
    top[...] = jnp.full_like(top, FLOOR)
    total[...] = jnp.zeros_like(total)
    sums[...] = jnp.zeros_like(sums)


def _finish(out: Any, lse: Any, top: Array, total: Array, sums: Array) -> None:
    """After the last: top and total [1, n], sums [D, n]."""
    none = total == 0  # false for NaN, which stays
    whole = jnp.where(none, 1.0, total)
    out[...] = (sums * (1 / whole)).astype(out.dtype)
    lse[...] = jnp.where(none, HIDDEN, top + jnp.log(whole))


def _query_kernel(wanted: list[bool], step: Step, rows: _Rows, k: Any, v: Any, outputs: Any, sums: Any) -> None:
    dq, d_rows, d_strips = outputs

    @pl.when(step.first)
    def start() -> None:
        sums[...] = jnp.zeros_like(sums)
        if d_rows is not None:
            d_rows[...] = jnp.zeros_like(d_rows)

    if d_strips is not None:

        @pl.when(step.first & step.first_block)
        def start_strips() -> None:
            d_strips[...] = jnp.zeros_like(d_strips)

    @pl.when(step.needed)
    def compute() -> None:
        queries, bias, d_tile = _lanes(step.queries), step.bias(rows.q.shape[-1]), []
        for piece in _pieces(k.shape[1], _KEYS):
            keys = _sublanes(_at(step.keys, piece))
            logits, raw = tile.logits(_dot(k[:, piece], rows.q, 0, 0), _part(bias, piece), queries, keys)
            d_weights = _dot(v[:, piece], rows.d_out, 0, 0)
            d_logits = jnp.exp(logits - rows.lse[...]) * (d_weights - rows.delta[...])
            parts = []
            if queries.temperature is not None:
                parts = [(d_logits * raw).sum(0, keepdims=True)]
                d_logits = d_logits * queries.temperature
            sums[...] += _dot(k[:, piece], d_logits, 1, 0)
            if d_rows is not None:
                d_bias, d_i, _ = bias.cotangents(*tile.coordinates(queries, keys), d_logits)
                _accumulate(d_rows, [*jax.tree.leaves(d_bias), *parts, *jax.tree.leaves(d_i)], wanted)
            d_tile.append(d_logits)
        if d_strips is not None:
            d_strips[pl.ds(step.diagonal, 1)] += tpu_strips.sums(jnp.concatenate(d_tile), d_strips.shape[1])

    @pl.when(step.last)
    def finish() -> None:
        dq[...] = (sums[...] / math.sqrt(sums.shape[0])).astype(dq.dtype)


def _key_kernel(wanted: list[bool], step: Step, rows: _Rows, k: Any, v: Any, outputs: Any, d_k: Any, d_v: Any) -> None:
    dk, dv, d_columns = outputs

    @pl.when(step.first)
    def start() -> None:
        d_k[...] = jnp.zeros_like(d_k)
        d_v[...] = jnp.zeros_like(d_v)

    if d_columns is not None:

        @pl.when(step.first_of_head)
        def start_head() -> None:
            d_columns[...] = jnp.zeros_like(d_columns)

    @pl.when(step.needed)
    def compute() -> None:
        keys, bias = _lanes(step.keys), step.bias()
        for piece in _pieces(rows.q.shape[1], _QUERIES):
            some = _at(rows, piece)
            queries, lse, delta = _sublanes((_at(step.queries, piece), some.lse, some.delta))
            logits, _ = tile.logits(_dot(some.q, k, 0, 0), _part(bias, piece), queries, keys)
            weights = jnp.exp(logits - lse)
            d_v[...] += _dot(some.d_out, weights, 1, 0)
            d_logits = weights * (_dot(some.d_out, v, 0, 0) - delta)
            if queries.temperature is not None:
                d_logits = d_logits * queries.temperature
            d_k[...] += _dot(some.q, d_logits, 1, 0)
            if d_columns is not None:
                _, _, d_j = bias.cotangents(*tile.coordinates(queries, keys), d_logits)
                _accumulate(d_columns, jax.tree.leaves(d_j), wanted)

    @pl.when(step.last)
    def finish() -> None:
        dk[...] = d_k[...].astype(dk.dtype)
        dv[...] = d_v[...].astype(dv.dtype)


def _at(refs: Any, piece: slice) -> Any:
    """A piece of vectors or matrices [n, length]."""
    return jax.tree.map(lambda ref: ref.at[:, piece], refs)


def _lanes(refs: Any) -> Any:
    """Vectors [1, n] along the lanes."""
    return jax.tree.map(lambda ref: ref[...], refs)


def _sublanes(refs: Any) -> Any:
    """Vectors [n, 1] along the sublanes."""
    return jax.tree.map(lambda ref: ref[0][:, None], refs)


def _dot(a: Array, b: Array, axis_a: int, axis_b: int) -> Array:
    """The product over one axis of each, in the type of the first, summed in float32."""
    a, b = a[...], b[...]
    return jax.lax.dot_general(
        a, b.astype(a.dtype), (((axis_a,), (axis_b,)), ((), ())), preferred_element_type=jnp.float32
    )


def _accumulate(total: Any, parts: list[Array], wanted: list[bool]) -> None:
    """Add those parts that are wanted, [1, n] each, to the rows of `total`; behind them may be those of made coordinates."""
    for n, part in enumerate(part for part, flag in zip(parts, wanted, strict=False) if flag):
        total[n : n + 1] += part


def _like(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _outside(x: Array, length: int) -> Array:
    """[B, H, D, T] -> [B, length, H, D]."""
    return x[..., :length].transpose(0, 3, 1, 2)


def _each(parts: Array | None) -> list[Array]:
    """The rows [B, H, T] of [B, H, n, T]."""
    return [] if parts is None else [parts[:, :, n] for n in range(parts.shape[2])]
