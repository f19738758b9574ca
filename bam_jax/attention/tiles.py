"""Which tiles of the table of logits must be computed: those that are seen, and whose mass is not provably negligible."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bam_jax.attention.scoring import EMPTY, Mask, Scoring, Tokens
from bam_jax.biases.base import head_axes


def key_blocks(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], scoring: Scoring, block_q: int, block_k: int
) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
    """First, and one past the last, key block that each query block needs for all of these heads.

    Args:
      q, k: of whole blocks.
      scoring: with coordinates, of whole blocks; added slots have the position `EMPTY`.
      block_q, block_k: rows of a query block and of a key block.
    """
    needed = _seen(scoring.queries, scoring.keys, scoring.mask, block_q, block_k)
    negligible = _negligible(q, k, scoring, block_q, block_k)
    if negligible is not None:
        needed = needed & ~negligible
    first = jnp.argmax(needed, axis=1)
    last = needed.shape[1] - jnp.argmax(needed[:, ::-1], axis=1)
    return first, jnp.where(needed.any(1), last, first)


def _seen(queries: Tokens, keys: Tokens, mask: Mask, block_q: int, block_k: int) -> Array:
    """[N, M]: whether any query of a block can see any key of another, by their ranges of positions and documents."""
    i_low, i_high, j_low, j_high = _extents(queries.position, keys.position, 0, block_q, block_k)
    seen = (i_high >= 0) & (j_high >= 0)
    if mask.causal:
        seen = seen & (j_low <= i_high)
    if mask.window is not None:
        seen = seen & (j_high > i_low - mask.window) & (j_low < i_high + mask.window)
    if queries.segment is not None and keys.segment is not None:
        i_low, i_high, j_low, j_high = _extents(queries.segment, keys.segment, 1, block_q, block_k)
        seen = seen & (j_low <= i_high) & (j_high >= i_low)
    return seen


def _all_seen(queries: Tokens, keys: Tokens, mask: Mask, block_q: int, block_k: int) -> Array:
    """[N, M]: whether every query of a block is sure to see a key of another, whichever key of its row is there."""
    i_low, i_high, j_low, j_high = _extents(queries.position, keys.position, 0, block_q, block_k)
    in_each_row = (keys.position < EMPTY).reshape(keys.position.shape[0], -1, block_k).any(2).all(0)
    seen = in_each_row[None] & (i_high >= 0)
    if mask.causal:
        seen = seen & (j_high <= i_low)
    if mask.window is not None:
        seen = seen & (i_high - j_low < mask.window) & (j_high - i_low < mask.window)
    if queries.segment is not None and keys.segment is not None:
        i_low, i_high, j_low, j_high = _extents(queries.segment, keys.segment, 0, block_q, block_k)
        seen = seen & (i_low == i_high) & (j_low == j_high) & (i_low == j_low) & (i_low > 0)
    return seen


def _negligible(q: Array, k: Array, scoring: Scoring, block_q: int, block_k: int) -> Array | None:
    """[N, M]: tiles that can be left out, so that all of them together lack less than half a unit in the last place.

    By Cauchy-Schwarz abs(t_i q_i . k_j) / sqrt(D) <= C_i. A key of bias b has at most exp(2 C_i + t_i (b - b')) times the
    weight of a key that row i is sure to see and whose bias is at least b'. With S keys, a tile can be left out where

        2 C_i + log S + t_i (b_max(tile) - b'_i) < log(eps)   for every row i of the tile and every head.
    """
    low_high = _bounds(scoring, block_q, block_k)
    if low_high is None:
        return None
    low, high = low_high  # [H, N, M]
    norm = lambda x: jnp.sqrt(jnp.sum(jnp.square(x.astype(low.dtype)), -1)).transpose(0, 2, 1)  # [B, heads, T]
    cut = lambda x: x.reshape(x.shape[0], x.shape[1], -1, block_q)
    longest_key = jnp.repeat(norm(k).max((0, 2)), q.shape[2] // k.shape[2])
    temperature = jnp.ones((1, 1, q.shape[1]), low.dtype) if scoring.temperature is None else scoring.temperature
    reach = cut(norm(q) * jnp.abs(temperature)).max((0, 3)) * longest_key[:, None] / math.sqrt(q.shape[-1])  # [H, N]
    coldest = cut(temperature).min((0, 3))
    sure = _all_seen(scoring.queries, scoring.keys, scoring.mask, block_q, block_k)
    best = jnp.where(sure, low, -jnp.inf).max(2, keepdims=True)
    lost = 2 * reach[:, :, None] + math.log(k.shape[1]) + coldest[:, :, None] * (high - best)
    negligible = (lost < math.log(jnp.finfo(low.dtype).eps / 2)) & (coldest[:, :, None] > 0)
    return negligible.all(0)


def _bounds(scoring: Scoring, block_q: int, block_k: int) -> tuple[Array, Array] | None:
    """Smallest and largest bias of each tile, [#H, N, M] both; None if the bias does not know."""

    def extent(coordinate: Any, position: Array, block: int, axis: int) -> tuple[Any, Any]:
        filled = position[:, None] < EMPTY

        def one(x: Array, pick: Any, neutral: float) -> Array:
            x = jnp.where(filled, x, neutral)
            x = pick(x.reshape(*x.shape[:2], -1, block), (0, 3))  # [#H, blocks]
            return jnp.expand_dims(jnp.where(jnp.isfinite(x), x, 0), axis)

        return tuple(
            jax.tree.map(lambda x, pick=pick, neutral=neutral: one(x, pick, neutral), coordinate)
            for pick, neutral in ((jnp.min, jnp.inf), (jnp.max, -jnp.inf))
        )  # type: ignore[return-value]

    i = extent(scoring.queries.coordinate, scoring.queries.position, block_q, 2)
    j = extent(scoring.keys.coordinate, scoring.keys.position, block_k, 1)
    axis = lambda tree: jax.tree.map(lambda x: None if x.shape[0] == 1 else 0, tree)
    value = lambda tree: jax.tree.map(lambda x: x[0] if x.shape[0] == 1 else x, tree)
    axes = (head_axes(scoring.bias), axis(i), axis(j))
    of_head = lambda bias, i, j: bias.bounds(i, j)
    if not jax.tree.leaves(axes):
        bounds = of_head(scoring.bias, value(i), value(j))
        return None if bounds is None else (bounds[0][None], bounds[1][None])
    return jax.vmap(of_head, axes)(scoring.bias, value(i), value(j))


def _extents(i: Array, j: Array, least: int, block_q: int, block_k: int) -> tuple[Array, Array, Array, Array]:
    """Smallest and largest number in each query block [N, 1] and key block [1, M], of those from `least` to EMPTY - 1."""

    def extent(x: Array, block: int) -> tuple[Array, Array]:
        x = x.reshape(x.shape[0], -1, block)
        counts = (x >= least) & (x < EMPTY)
        return jnp.where(counts, x, EMPTY).min((0, 2)), jnp.where(counts, x, -1).max((0, 2))

    (i_low, i_high), (j_low, j_high) = extent(i, block_q), extent(j, block_k)
    return i_low[:, None], i_high[:, None], j_low[None], j_high[None]
