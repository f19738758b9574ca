"""The TPU kernels of the forward pass: a block of queries in the lanes walks over the keys that it needs.

A single query, as in decoding, would leave 127 of 128 lanes empty. There, the query heads that share a key head are the
sublanes of one tile, the keys lie in the lanes, and they are read once for all of these heads.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from bam_jax.attention.logits import tile
from bam_jax.attention.logits.dropout import drop
from bam_jax.attention.logits.merge import deal_blocks, merge
from bam_jax.attention.logits.scoring import FLOOR, HIDDEN, Scoring
from bam_jax.attention.logits.skipping import Runs, Tiling
from bam_jax.attention.pallas.tpu_grid import GridStep, TileGrid
from bam_jax.attention.pallas.tpu_layout import along_lanes, along_sublanes, key_pieces, multiply, take_piece
from bam_jax.attention.pallas.tpu_profiles import MixedBias
from bam_jax.attention.pallas.tpu_strips import StripBias
from bam_jax.biases import Bias

_CORES = 2  # The most that a TPU has. One query is one block, so its keys are split to give a second core work.

_SUBLANES = 8  # Copies of the head if a group has only one: Mosaic does not multiply a single bfloat16 row.


def forward_kernel(step: GridStep, q: Any, k: Any, v: Any, outputs: Any, top: Any, total: Any, sums: Any) -> None:
    """Add one tile to a running softmax.

    Args:
        q: [D, n].
        k, v: [D, m].
        outputs: out [D, n] and lse [1, n].
        top, total: [1, n], the largest logit so far, and the sum of exponentials relative to it.
        sums: [D, n], values weighted by the same exponentials.
    """
    out, lse = outputs

    @pl.when(step.first)
    def start() -> None:
        start_softmax(top, total, sums)

    @step.when_needed
    def compute(whole: bool, near: bool) -> None:
        queries, bias = along_lanes(step.queries), step.bias(near)
        for piece in pieces_of_keys(bias, k):
            keys = along_sublanes(take_piece(step.keys, piece))
            scores = step.content.scores(multiply(k[:, piece], q, 0, 0))  # [keys, queries]
            logits, _ = tile.logits(scores, bias_of_piece(bias, piece), queries, keys, whole)
            highest = jnp.maximum(top[...], logits.max(0, keepdims=True))
            weights = jnp.exp(logits - highest)
            # The sums so far are relative to the old maximum. No exponential is ever above 1, so none overflows.
            shrink = jnp.exp(top[...] - highest)
            total[...] = total[...] * shrink + weights.sum(0, keepdims=True)
            weights = drop(weights, tile.dropout_factor(queries, keys))
            sums[...] = sums[...] * shrink + multiply(v[:, piece], weights, 1, 0)
            top[...] = highest

    @pl.when(step.last)
    def finish() -> None:
        finish_softmax(out, lse, top[...], total[...], sums[...])


def bias_of_piece(bias: Bias, piece: slice) -> Bias:
    """Restrict the bias of a tile to a piece of its sublanes: a strip is rolled further, a formula stays the same."""
    return dataclasses.replace(bias, first=piece.start) if isinstance(bias, StripBias | MixedBias) else bias


def pieces_of_keys(bias: Bias, k: Any) -> list[slice]:
    """Cut a block of keys into pieces; a mixture's tile is transposed whole, which takes fewer instructions on a v6e."""
    return [slice(0, k.shape[1])] if isinstance(bias, MixedBias) else key_pieces(k.shape[1])


def start_softmax(top: Any, total: Any, sums: Any) -> None:
    """Set a running softmax's state before the first tile.

    The maximum starts above `HIDDEN`, so if all keys of a tile are hidden, their exponentials are 0 instead of 1.
    """
    top[...] = jnp.full_like(top, FLOOR)
    total[...] = jnp.zeros_like(total)
    sums[...] = jnp.zeros_like(sums)


def finish_softmax(out: Any, lse: Any, top: Array, total: Array, sums: Array) -> None:
    """Write the output and the log-normaliser after the last tile: top and total [1, n], sums [D, n]."""
    none = total == 0  # false for NaN, which stays
    whole = jnp.where(none, 1.0, total)
    out[...] = (sums * (1 / whole)).astype(out.dtype)  # one division per query instead of one per number
    lse[...] = jnp.where(none, HIDDEN, top + jnp.log(whole))


def decode(
    q: Float[Array, "B 1 H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring, tiling: Tiling
) -> tuple[Float[Array, "B 1 H D"], Float[Array, "B H 1"]]:
    """Attend from one query; see `Backend.forward`.

    The grid treats each part of the keys as a head.
    """
    grid = TileGrid.of(q, k, v, scoring, dataclasses.replace(tiling, block_q=1), marked=False)
    heads = k.shape[2]
    group = q.shape[2] // heads
    count = group if group > 1 else _SUBLANES

    def grouped(x: Array) -> Array:
        """[#B, #H, n, 1] -> [#B, #K, n, count]."""
        x = jnp.broadcast_to(x, (x.shape[0], max(x.shape[1], group), *x.shape[2:]))
        x = x.reshape(x.shape[0], -1, group, x.shape[2]).swapaxes(2, 3)
        return jnp.repeat(x, count // group, axis=3)

    def grouped_keys(x: Array) -> Array:
        """[#B, H, 1, S] -> [#B, K, group, S]; what all heads share stays [#B, 1, 1, S]."""
        return x if x.shape[1] == 1 else x.reshape(x.shape[0], heads, group, -1)

    # If one head of the group needs a block, all of them walk over it.
    runs = Runs(*(x.reshape(heads, group, 1) for x in grid.runs_of_keys)).union(1)
    number = min(_CORES, grid.k.shape[3] // grid.block_k)
    dealt = deal_blocks(runs, number)
    by_key_head = dataclasses.replace(
        grid,
        q=grouped(grid.q),
        queries=jax.tree.map(grouped, grid.queries),
        keys=jax.tree.map(grouped_keys, grid.keys),
        table=jnp.zeros((1, 1), jnp.float32),  # a tile holds several heads, so their parameters come with the queries
        runs_of_keys=Runs(*(x.reshape(heads * number, 1) for x in dealt)),
        whole_runs=None,  # finding whole tiles would cost more than the mask
        block_q=count,
    )
    output = lambda n: jax.ShapeDtypeStruct((q.shape[0], heads * number, n, count), jnp.float32)
    operands = (by_key_head.q, grouped(grid.table[None, :, :, None]))
    scratch = [(count, 1), (count, 1), (q.shape[-1], count)]
    out, lse = by_key_head.over_keys(decode_kernel, operands, (output(q.shape[-1]), output(1)), scratch)

    def by_part(x: Array) -> Array:
        """[B, K * number, n, count] -> [B, K, number, group, n]."""
        return x[..., :group].reshape(q.shape[0], heads, number, -1, group).swapaxes(3, 4)

    out, lse = merge(by_part(out), by_part(lse)[..., 0], axis=2)  # [B, K, group, D], [B, K, group]
    return out.reshape(q.shape), lse.reshape(q.shape[0], q.shape[2], 1)


def decode_kernel(
    step: GridStep, query_operands: Any, k: Any, v: Any, outputs: Any, top: Any, total: Any, sums: Any
) -> None:
    """Add one tile to the running softmax of the query heads of a key head.

    Args:
        query_operands: q [D, count], and the parameters of the bias, [P, count].
        k, v: [D, m].
        outputs: out [D, count] and lse [1, count].
        top, total: [count, 1], as in `forward_kernel`.
        sums: [D, count].
    """
    (q, table), (out, lse) = query_operands, outputs

    @pl.when(step.first)
    def start() -> None:
        start_softmax(top, total, sums)

    @pl.when(step.needed)
    def compute() -> None:
        queries, keys = along_sublanes(step.queries), along_lanes(step.keys)
        bias = step.parameters.bias([table[n][:, None] for n in range(table.shape[0])])
        # As `mask_nonfinite`: if a value is not finite, the value becomes 0 and its logit NaN, which the mask may hide.
        wide = v[...].astype(jnp.float32)
        flaw = (wide * 0).sum(0, keepdims=True)  # 0 or NaN, [1, keys]
        whole = jnp.where(flaw == 0, wide, 0).astype(v.dtype)
        scores = step.content.scores(multiply(q, k, 0, 0)) + flaw
        logits, _ = tile.logits(scores, bias, queries, keys)  # [count, keys]
        highest = jnp.maximum(top[...], logits.max(1, keepdims=True))
        weights = jnp.exp(logits - highest)
        shrink = jnp.exp(top[...] - highest)  # rescales sums relative to the old maximum; see `forward_kernel`
        total[...] = total[...] * shrink + weights.sum(1, keepdims=True)
        weights = drop(weights, tile.dropout_factor(queries, keys))
        sums[...] = sums[...] * shrink[:, 0][None] + multiply(whole, weights, 1, 1)
        top[...] = highest

    @pl.when(step.last)
    def finish() -> None:
        finish_softmax(out, lse, top[:, 0][None], total[:, 0][None], sums[...])
