"""The backend for every machine: tile by tile in O(T + S) memory, computing only the tiles that a query block needs.

Rows are cut into query blocks. Each query block walks over the key blocks from the first to the last one that it needs. So the
cost of causal, windowed, packed and cached rows is proportional to the visible keys, and that of local heads to the keys with
non-negligible weight. The output is saved for the backward pass before it is rounded: if one key has nearly all the weight,
gradients of the prior are smaller than the error of rounding to bfloat16.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.cpu import one_head
from bam_jax.attention.cpu.blocks import Blocks, add_to_block, block_of, pad_rows, sum_leading
from bam_jax.attention.logits import one_query, skipping
from bam_jax.attention.logits.dropout import drop
from bam_jax.attention.logits.scoring import FLOOR, HIDDEN, Differentiable, Gradients, Residuals, Scoring
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.system.axes import varying

_TABLE = 2**22  # With more logits per head, key heads are computed one by one.


def forward(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    scoring: Scoring,
    tiling: Tiling,
) -> tuple[Float[Array, "B T H E"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser, with a running softmax; see `Backend.forward`."""
    if q.shape[1] == 1:
        return _decode(q, k, v, scoring, tiling)
    run = lambda q, k, v, scoring: _walk(Blocks.of(q, k, v, scoring, tiling, count=True))
    return one_head.forward(run, q, k, v, scoring) if _many_tiles(q, k) else run(q, k, v, scoring)


def _decode(q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling) -> tuple[Array, Array]:
    """`forward` of one query: head by head, each over the keys that it needs, or all heads at once if that is most keys."""
    blocks = Blocks.of(q, k, v, scoring, tiling, decode=True)
    head_by_head = lambda: one_head.decode(_walk, blocks)
    if not q.dtype == k.dtype == v.dtype == blocks.dtype:  # products of two-byte operands would copy them
        return head_by_head()
    shape = (q.shape[0], q.shape[2], 1)
    nothing = varying((jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype), jnp.zeros(shape, q.dtype)), q)
    most = 2 * blocks.of_heads.length.sum() > blocks.of_heads.length.size * blocks.key_blocks
    at_once = jax.lax.cond(most, lambda: varying(_all_heads(q, k, v, scoring), q), lambda: nothing)
    # The zeros of other heads, times non-finite numbers, give NaN.
    right = most & jnp.isfinite(at_once[0]).all() & jnp.isfinite(at_once[1]).all()
    return jax.lax.cond(right, lambda: at_once, head_by_head)


def one_token(q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling) -> tuple[Array, Array]:
    """`forward` of one query that needs most keys, all of which are finite."""
    return _all_heads(q, k, v, scoring)


def _all_heads(q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    """Attention of one query with products of all heads together, which read keys and values once, in place, on all cores.

    The queries form a matrix [K D, H], with zeros for the other key heads. This takes K times the necessary operations, but
    the products are memory-bound.
    """
    heads = jnp.eye(k.shape[2], dtype=k.dtype)
    flat = lambda x: x.reshape(*x.shape[:2], -1)

    def times_k(q: Array, k: Array) -> Array:
        batch, kv_heads, groups, width = q.shape
        matrix = jnp.einsum("bkgd,kl->bldkg", q, heads).reshape(batch, kv_heads * width, -1)
        return jnp.einsum("bsx,bxh->bsh", flat(k), matrix).swapaxes(1, 2).reshape(batch, kv_heads, groups, -1)

    def times_v(weights: Array, v: Array) -> Array:
        batch, kv_heads, groups, slots = weights.shape
        sums = jnp.einsum("bhs,bsx->bhx", weights.reshape(batch, -1, slots), flat(v))
        return jnp.einsum("bkgld,kl->bkgd", sums.reshape(batch, kv_heads, groups, kv_heads, -1), heads)

    return one_query.attend(q, k, v, scoring, times_k, times_v)


def backward(residuals: Residuals, d_out: Float[Array, "B T H E"], tiling: Tiling) -> Gradients:
    """Gradients from the output and its log-normaliser, tile by tile; see `Backend.backward`."""
    run = functools.partial(_backward, tiling)
    many = _many_tiles(residuals.q, residuals.k)
    return one_head.backward(run, residuals, d_out) if many else run(residuals, d_out)


def _many_tiles(q: Array, k: Array) -> bool:
    return k.shape[2] > 1 and q.shape[1] * k.shape[1] > _TABLE


def _walk(blocks: Blocks) -> tuple[Array, Array]:
    """Attention and its log-normaliser, each block of queries over the key blocks that it needs."""
    rows = (blocks.q.shape[0], blocks.kv_heads, blocks.groups, blocks.block_q)
    block_at = blocks.cached_block
    if blocks.head is None:
        block_at = functools.partial(blocks.key_block, k=blocks.by_columns(blocks.k), v=blocks.by_rows(blocks.v))

    def add(carry: tuple, logits: Array, v: Array, factor: Array | None = None) -> tuple:
        """One step of the running softmax; all sums are relative to the largest logit so far."""
        out, top, total = carry
        higher = jnp.maximum(top, logits.max(-1))
        weights = jnp.exp(logits - higher[..., None])
        shrink = jnp.exp(top - higher)
        out = out * shrink[..., None] + blocks.weighted(drop(weights, factor), v)
        return out, higher, total * shrink + weights.sum(-1)

    def query_block(_: None, n: Array) -> tuple[None, tuple[Array, Array]]:
        queries = blocks.query_block(n)

        def key_block(m: Array, carry: tuple) -> tuple:
            keys = block_at(m)
            logits, _, _ = blocks.logits(queries, keys, (n, m))
            return add(carry, logits, keys.v, blocks.dropout_factor(queries, keys))

        # Starting at FLOOR, far above HIDDEN, a tile without visible keys adds weights of exactly 0.
        zero = jnp.zeros((*rows, blocks.v.shape[-1]), blocks.dtype)
        start = (zero, jnp.full(rows, FLOOR, blocks.dtype), jnp.zeros(rows, blocks.dtype))
        if blocks.counted is not None:
            start = add(start, blocks.counted_logits(queries, n), blocks.counted.v.swapaxes(1, 2))
        out, top, total = blocks.over_keys(n, key_block, varying(start, blocks.q))
        none = total == 0  # false for NaN, which stays
        whole = jnp.where(none, 1, total)
        return None, (out / whole[..., None], jnp.where(none, HIDDEN, top + jnp.log(whole)))

    _, (out, lse) = _scan(query_block, None, blocks.query_blocks)
    return blocks.join_rows(out), blocks.join_scalars(lse)


def _backward(tiling: Tiling, residuals: Residuals, d_out: Array) -> Gradients:
    q, k, v, scoring = residuals.q, residuals.k, residuals.v, residuals.scoring
    blocks = Blocks.of(q, k, v, scoring, tiling)
    lse, delta = (skipping.pad(x, blocks.block_q) for x in residuals.row_terms(d_out))
    d_out = pad_rows(d_out, blocks.block_q)
    zeros = functools.partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)))
    k_columns, v_columns, k_rows = blocks.by_columns(blocks.k), blocks.by_columns(blocks.v), blocks.by_rows(blocks.k)

    def query_block(carry: tuple, n: Array) -> tuple[tuple, tuple]:
        queries = blocks.query_block(n)
        d_rows = blocks.split_heads(block_of(d_out, 1, n, blocks.block_q))
        row_lse, row_delta = (blocks.split_scalars(block_of(x, -1, n, blocks.block_q)) for x in (lse, delta))
        # Once for all key blocks: without the barrier, XLA would transpose them for each.
        columns = jax.lax.optimization_barrier(tuple(x.transpose(0, 1, 4, 2, 3) for x in (queries.q, d_rows)))

        def key_block(m: Array, carry: tuple) -> tuple:
            (dk, dv, d_bias, d_j), (dq, d_temperature, d_i) = carry
            keys = blocks.key_block(m, k_columns, v_columns)
            logits, raw, scores = blocks.logits(queries, keys, (n, m))
            weights, factor = jnp.exp(logits - row_lse[..., None]), blocks.dropout_factor(queries, keys)
            d_weights = drop(blocks.dot("bkgqd,bkds->bkgqs", d_rows, keys.v), factor)
            d_logits = weights * (d_weights - row_delta[..., None])
            if queries.temperature is not None:
                d_temperature = d_temperature + (d_logits * raw).sum(-1)
                d_logits = d_logits * queries.temperature[..., None]
            d_scaled = blocks.content.d_scaled(d_logits, scores)
            dq = dq + blocks.dot("bkgqs,bksd->bkgqd", d_scaled, k_rows[m])
            dk, dv = (
                add_to_block(total, blocks.dot("bkdgq,bkgqs->bkds", rows, of_tile)[None], 0, m)
                for total, rows, of_tile in zip((dk, dv), columns, (d_scaled, drop(weights, factor)), strict=True)
            )
            of_bias, of_i, of_j = blocks.bias_cotangents(queries, keys, (n, m), d_logits)
            d_bias, d_i = jax.tree.map(jnp.add, (d_bias, d_i), (of_bias, of_i))
            d_j = jax.tree.map(lambda total, part: add_to_block(total, part, -1, m), d_j, of_j)
            return (dk, dv, d_bias, d_j), (dq, d_temperature, d_i)

        start = (zeros(queries.q), zeros(row_lse), zeros(queries.tokens.coordinate))
        carry, (dq, d_temperature, d_i) = blocks.over_keys(n, key_block, varying((carry, start), blocks.q))
        return carry, (dq, d_temperature, d_i)

    start = (zeros(k_columns), zeros(v_columns), zeros(scoring.bias), zeros(blocks.scoring.keys.coordinate))
    totals, of_queries = _scan(query_block, varying(start, blocks.q), blocks.query_blocks)
    return _gradients(blocks, residuals, totals, of_queries)


def _gradients(blocks: Blocks, residuals: Residuals, totals: tuple, of_queries: tuple) -> Gradients:
    """The cotangents in the operands' shapes and dtypes, from the sums over all tiles and the sums of each query block."""
    (dk, dv, d_bias, d_j), (dq, d_temperature, d_i) = totals, of_queries
    q, k, v, parts = residuals.q, residuals.k, residuals.v, Differentiable.of(residuals.scoring)
    narrow = lambda x, like: x.astype(like.dtype)
    dq, dk = map(blocks.content.scaled, (dq, dk))
    d_parts = Differentiable(jax.tree.map(narrow, d_bias, parts.bias), None, None, None)
    if parts.temperature is not None:
        d_parts = d_parts._replace(temperature=sum_leading(blocks.join_scalars(d_temperature), parts.temperature))
    if parts.query_coordinate is not None:
        whole = jax.tree.map(lambda x, like: narrow(blocks.join(x), like), d_i, parts.query_coordinate)
        d_parts = d_parts._replace(query_coordinate=whole)
    if parts.key_coordinate is not None:
        whole = jax.tree.map(lambda x, like: narrow(x[..., : k.shape[1]], like), d_j, parts.key_coordinate)
        d_parts = d_parts._replace(key_coordinate=whole)
    dk, dv = (blocks.from_columns(x)[:, : k.shape[1]] for x in (dk, dv))
    d_scoring = d_parts.cotangent(residuals.scoring)
    return Gradients(narrow(blocks.join_rows(dq), q), narrow(dk, k), narrow(dv, v), d_scoring)


def _scan(body: Callable, start: Any, length: int) -> tuple[Any, Any]:
    """`lax.scan` over block indices, without a loop for a single block, because XLA copies the carry of a loop."""
    if length > 1:
        return jax.lax.scan(body, start, jnp.arange(length))
    carry, out = body(start, jnp.zeros((), jnp.int32))
    return carry, jax.tree.map(lambda x: x[None], out)
