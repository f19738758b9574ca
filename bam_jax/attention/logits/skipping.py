"""The tiles of the table of logits that must be computed: some pair is seen, and the mass is not provably negligible.

Everything here errs on one side: a tile is left out only where that is proven, and NaN proves nothing.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention.logits.mask import Limits
from bam_jax.attention.logits.scoring import Scoring, coordinate
from bam_jax.attention.logits.tokens import EMPTY, Tokens
from bam_jax.biases.base import Range, head_axes


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The cut of the table of logits into tiles, and which of them are left out.

    Args:
        skip: the share of a row's mass that all tiles left out may hold together; "exact": half a unit in the last place of
            the softmax (2^-24 in float32); "off": tiles are left out only where nothing is visible.
        block_q, block_k: queries and keys of a tile; None: the backend's choice.
    """

    skip: float | str = "exact"
    block_q: int | None = None
    block_k: int | None = None

    def __post_init__(self) -> None:
        if not (self.skip in ("exact", "off") or (isinstance(self.skip, float) and 0 < self.skip < 1)):
            raise ValueError(f'what is skipped is "exact", "off" or a share between 0 and 1, got skip={self.skip!r}')
        for block in (self.block_q, self.block_k):
            if block is not None and block < 1:
                raise ValueError(f"a tile has at least one query and key, got {self.block_q} x {self.block_k}")

    def blocks(self, block_q: int, block_k: int) -> tuple[int, int]:
        """Queries and keys of a tile: its own numbers, or these where it has none."""
        return self.block_q or block_q, self.block_k or block_k


def needed(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    scoring: Scoring,
    skip: float | str,
    block_q: int,
    block_k: int,
) -> Bool[Array, "H N M"]:
    """The key blocks that each query block needs, head by head.

    Args:
        q, k: of any length.
        scoring: padded to whole blocks.
        skip: see `Tiling`.
        block_q, block_k: rows of a query block and of a key block.
    """
    seen = _possibly_visible(scoring, block_q, block_k)[None]
    if skip != "off":
        negligible = _negligible(q, k, scoring, skip, block_q, block_k)
        if negligible is not None:
            seen = seen & ~negligible
    return jnp.broadcast_to(seen, (q.shape[2], *seen.shape[1:]))


def counts(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], scoring: Scoring, tiling: Tiling
) -> tuple[Int[Array, " H"], Int[Array, " H"]]:
    """Tiles of each head that are computed, and those that would be without skipping; of 512 x 512 unless `tiling` says more."""
    blocks = tiling.blocks(512, 512)
    whole = padded(scoring, *blocks)
    computed, seen = (span(needed(q, k, whole, skip, *blocks))[1].sum(-1) for skip in (tiling.skip, "off"))
    return computed, seen


def span(needed: Bool[Array, "*H N M"]) -> tuple[Int[Array, "*H N"], Int[Array, "*H N"]]:
    """For each block the first of the others that it needs, and how many up to the last one."""
    # What lies between the two is walked over, needed or not: a loop has two ends, and masks leave few holes.
    first = jnp.argmax(needed, axis=-1).astype(jnp.int32)
    last = needed.shape[-1] - jnp.argmax(needed[..., ::-1], axis=-1).astype(jnp.int32)
    return first, jnp.where(needed.any(-1), last - first, 0)


def padded(scoring: Scoring, block_q: int, block_k: int) -> Scoring:
    """The scoring padded to whole blocks by empty slots."""

    def side(tokens: Tokens, block: int) -> Tokens:
        return Tokens(
            position=pad(tokens.position, block, EMPTY),
            segment=None if tokens.segment is None else pad(tokens.segment, block),
            **jax.tree.map(
                lambda x: pad(x, block),
                {name: getattr(tokens, name) for name in ("coordinate", "sees_from", "sees_to", "kinds")},
            ),
        )

    return dataclasses.replace(
        scoring,
        queries=side(scoring.queries, block_q),
        keys=side(scoring.keys, block_k),
        temperature=None if scoring.temperature is None else pad(scoring.temperature, block_q),
    )


def pad(x: Array, block: int, value: float = 0) -> Array:
    """[..., n], n padded to whole blocks."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % block)], constant_values=value)


def _possibly_visible(scoring: Scoring, block_q: int, block_k: int) -> Bool[Array, "N M"]:
    """Tiles in which a query may see a key, by the ranges of their positions and documents."""
    _, (j_first, j_last) = _ranges("position", scoring, 0, block_q, block_k)
    some, widest, _ = _limits(scoring, block_q)
    seen = some & (j_last >= 0) & widest.meet(j_first, j_last)
    if scoring.queries.segment is not None and scoring.keys.segment is not None:
        (i_first, i_last), (j_first, j_last) = _ranges("segment", scoring, 1, block_q, block_k)
        seen = seen & Limits(i_first, i_last).meet(j_first, j_last)
    return seen


def _wholly_visible(scoring: Scoring, block_q: int, block_k: int) -> Bool[Array, "N M"]:
    """Tiles in which every query sees every key that is there."""
    _, (j_first, j_last) = _ranges("position", scoring, 0, block_q, block_k)
    some, _, narrowest = _limits(scoring, block_q)
    seen = some & narrowest.enclose(j_first, j_last)
    if scoring.queries.segment is not None and scoring.keys.segment is not None:
        # Pads count here: a block with one of them is no block of one document.
        (i_first, i_last), (j_first, j_last) = _ranges("segment", scoring, 0, block_q, block_k)
        seen = seen & (i_first > 0) & (i_first == i_last) & (j_first == i_first) & (j_last == i_last)
    return seen


def _limits(scoring: Scoring, block_q: int) -> tuple[Bool[Array, "N 1"], Limits, Limits]:
    """Query blocks that hold a token, the limits of what any query of a block sees, and of what all of them see, [N, 1]."""
    limits = scoring.mask.limits(scoring.queries)
    filled = scoring.queries.position < EMPTY

    def of_blocks(pick: Callable, neutral: int, x: Array) -> Array:
        x = jnp.where(filled, x, neutral)
        return pick(x.reshape(x.shape[0], -1, block_q), (0, 2))[:, None]

    least = lambda x: of_blocks(jnp.min, EMPTY, x)
    most = lambda x: of_blocks(jnp.max, -EMPTY, x)
    some = filled.reshape(len(filled), -1, block_q).any((0, 2))[:, None]
    low, high = limits
    return (
        some,
        Limits(None if low is None else least(low), most(high)),
        Limits(None if low is None else most(low), least(high)),
    )


def _surely_visible(scoring: Scoring, block_q: int, block_k: int) -> Bool[Array, "N M"]:
    """Tiles in which every query is sure to see a key: it sees all that are there, and each row of the batch has one."""
    position = scoring.keys.position
    in_each_row = (position < EMPTY).reshape(position.shape[0], -1, block_k).any(2).all(0)
    return in_each_row[None] & _wholly_visible(scoring, block_q, block_k)


def _negligible(q: Array, k: Array, scoring: Scoring, skip: float | str, block_q: int, block_k: int) -> Array | None:
    """[#H, N, M]: tiles that can be left out, so that all of them together hold less than a share of each row's mass.

    By Cauchy-Schwarz abs(t_i scale q_i . k_j) <= C_i. A key of bias b has at most exp(2 C_i + t_i (b - b')) times the
    weight of a key that row i is sure to see and whose bias is at least b'. With S keys, a tile can be left out where

        2 C_i + log S + t_i (b_max(tile) - b'_i) < log(share)   for every row i of the tile.
    """
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    bounds = _bounds(scoring, dtype, block_q, block_k)
    if bounds is None:
        return None
    low, high = bounds  # [#H, N, M]
    content, coldest, _ = _content(q, k, scoring, dtype, block_q)
    sure = _surely_visible(scoring, block_q, block_k)
    # Without a key that is sure to be seen the best is -inf, the mass lost +inf, and nothing is left out.
    best = jnp.where(sure, low, -jnp.inf).max(2, keepdims=True)
    # Only a tile whose bias is below the best can be left out. Its t_i (b - b') is negative, so that the smallest t_i
    # bounds it for all rows; with a t_i of 0 or less the bias rules nothing out.
    lost = 2 * content + math.log(k.shape[1]) + coldest * (high - best)
    return (lost < _log_share(skip, dtype)) & (coldest > 0)


def level(
    q: Float[Array, "B T H D"],
    scoring: Scoring,
    needed: Bool[Array, "H N M"],
    skip: float | str,
    block_q: int,
    block_k: int,
) -> tuple[Bool[Array, "H N M"], Float[Array, "H N"]] | None:
    """The needed tiles without hidden pairs in which a query block has one bias b for all of its keys, and that bias.

        abs(t_i) abs(b_j - b) < share   for every row i and key j: no weight is changed by more than this share of it

    b is the bias of the first such tile, of a causal row the farthest; None if the bias does not know its bounds.

    Args:
        q: of any length.
        scoring: padded to whole blocks.
        needed: see `needed`.
        skip: the share; see `Tiling`.
        block_q, block_k: rows of a query block and of a key block.
    """
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    bounds = _bounds(scoring, dtype, block_q, block_k)
    if bounds is None:
        return None
    low, high = (jnp.broadcast_to(x, needed.shape) for x in bounds)
    whole = needed & _wholly_visible(scoring, block_q, block_k)[None]
    at = jnp.argmax(whole, axis=-1, keepdims=True)
    middle = (jnp.take_along_axis(low, at, -1) + jnp.take_along_axis(high, at, -1)) / 2
    hottest = jnp.ones((1, 1, 1), dtype)
    if scoring.temperature is not None:
        filled = (scoring.queries.position < EMPTY)[:, None]
        heat = jnp.where(filled, jnp.abs(scoring.temperature.astype(dtype)), 0)
        hottest = heat.reshape(*heat.shape[:2], -1, block_q).max((0, 3))[:, :, None]
    off = hottest * jnp.maximum(high - middle, middle - low)
    return whole & (off < math.exp(_log_share(skip, dtype))), middle[..., 0]


def reach(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    scoring: Scoring,
    lse: Float[Array, "B H T"],
    skip: float | str,
    total: int,
) -> Bool[Array, ""]:
    """Tell whether any query may find mass among these keys that matters beside what it has found already.

    With C_i as above and total keys in all, a tile holds less than a share of the mass of row i if

        C_i + log(total) + max(t b over the block's t and the tile's b) - lse_i < log(share).

    Args:
        q, k: of any length.
        scoring: with these keys.
        lse: logarithms of the rows' normalisers so far; `HIDDEN` where a row has seen nothing.
        skip: see `Tiling`; "off": keys matter where any of them is seen.
        total: keys of the whole text.
    """
    block_q, block_k = (min(512, length) for length in (q.shape[1], k.shape[1]))
    whole = padded(scoring, block_q, block_k)
    seen = _possibly_visible(whole, block_q, block_k)[None]
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    bounds = None if skip == "off" else _bounds(whole, dtype, block_q, block_k)
    if bounds is None:
        return seen.any()
    content, coldest, hottest = _content(q, k, whole, dtype, block_q)
    corners = [t * b for t in (coldest, hottest) for b in bounds]  # where a product of two ranges is largest
    # An empty slot has found all it needs; the row of a block that has found least decides for it.
    found = jnp.where((scoring.queries.position < EMPTY)[:, None], lse, jnp.inf)
    found = pad(found, block_q, jnp.inf)
    found = found.reshape(*found.shape[:2], -1, block_q).min((0, 3))[:, :, None]  # [H, N, 1]
    held = content + math.log(total) + functools.reduce(jnp.maximum, corners) - found
    return (seen & ~(held < _log_share(skip, dtype))).any()  # NaN compares as false: it is needed


def _log_share(skip: float | str, dtype: jnp.dtype) -> float:
    return math.log(float(jnp.finfo(dtype).eps) / 2 if skip == "exact" else float(skip))


def _content(q: Array, k: Array, scoring: Scoring, dtype: jnp.dtype, block_q: int) -> tuple[Array, Array, Array]:
    """The largest C_i, the smallest and the largest t_i of each query block, [H, N, 1] or [#H, N, 1]."""
    norm = lambda x: jnp.sqrt(jnp.sum(jnp.square(x.astype(dtype)), -1)).transpose(0, 2, 1)  # [B, heads, T]
    cut = lambda x: x.reshape(x.shape[0], x.shape[1], -1, block_q)
    longest_key = jnp.repeat(norm(k).max((0, 2)), q.shape[2] // k.shape[2])
    filled = (scoring.queries.position < EMPTY)[:, None]
    temperature = jnp.ones((), dtype) if scoring.temperature is None else scoring.temperature.astype(dtype)
    content = cut(pad(norm(q), block_q) * jnp.abs(temperature)).max((0, 3)) * longest_key[:, None]
    # Empty slots are neutral; the padding of q is 0 and raises no maximum.
    coldest = cut(jnp.where(filled, temperature, jnp.inf)).min((0, 3))  # [#H, N]
    hottest = cut(jnp.where(filled, temperature, -jnp.inf)).max((0, 3))
    return content[:, :, None] * abs(scoring.content(q.shape[-1]).scale), coldest[:, :, None], hottest[:, :, None]


def _bounds(scoring: Scoring, dtype: jnp.dtype, block_q: int, block_k: int) -> tuple[Array, Array] | None:
    """Smallest and largest bias of each tile, [#H, N, M] both; None if the bias does not know."""
    i = _coordinate_range(scoring.queries, dtype, block_q, axis=2)
    j = _coordinate_range(scoring.keys, dtype, block_k, axis=1)
    of_head = lambda bias, i, j: bias.bounds(i, j)
    # A head axis of length one is common to all heads: it is not mapped.
    axis = lambda tree: jax.tree.map(lambda x: None if x.shape[0] == 1 else 0, tree)
    value = lambda tree: jax.tree.map(lambda x: x[0] if x.shape[0] == 1 else x, tree)
    axes = (head_axes(scoring.bias), axis(i), axis(j))
    if jax.tree.leaves(axes):
        return jax.vmap(of_head, axes)(scoring.bias, value(i), value(j))
    bounds = of_head(scoring.bias, value(i), value(j))
    return None if bounds is None else (bounds[0][None], bounds[1][None])


def _coordinate_range(tokens: Tokens, dtype: jnp.dtype, block: int, axis: int) -> Range:
    """Smallest and largest coordinate of each block, [#H, N, 1] or [#H, 1, M]: the axis is that of the other side's blocks."""
    filled = tokens.position[:, None] < EMPTY
    some = filled.reshape(len(filled), 1, -1, block).any((0, 3))  # [1, blocks]

    def extreme(pick: Callable, neutral: float, x: Array) -> Array:
        x = jnp.where(filled, x, neutral)
        x = pick(x.reshape(*x.shape[:2], -1, block), (0, 3))  # [#H, blocks]
        # A block without tokens has infinities, whose differences are NaN. A token's own NaN stays: no bound leaves it out.
        return jnp.expand_dims(jnp.where(some, x, 0), axis)

    own = coordinate(tokens, dtype)
    lowest = jax.tree.map(functools.partial(extreme, jnp.min, jnp.inf), own)
    highest = jax.tree.map(functools.partial(extreme, jnp.max, -jnp.inf), own)
    return lowest, highest


def _ranges(field: str, scoring: Scoring, least: int, block_q: int, block_k: int) -> tuple[tuple, tuple]:
    """The smallest and the largest number of each query block, [N, 1] both, and of each key block, [1, M] both.

    Only numbers from `least` to EMPTY - 1 count. A block without any has (EMPTY, -1), a range that meets none.

    Args:
        field: of `Tokens`, "position" or "segment".
        scoring: padded to whole blocks.
        least: the smallest number that counts.
        block_q, block_k: rows of a query block and of a key block.
    """

    def of_blocks(tokens: Tokens, block: int) -> tuple[Array, Array]:
        x = getattr(tokens, field)
        x = x.reshape(x.shape[0], -1, block)
        counts = (x >= least) & (x < EMPTY)
        return jnp.where(counts, x, EMPTY).min((0, 2)), jnp.where(counts, x, -1).max((0, 2))

    i_first, i_last = of_blocks(scoring.queries, block_q)
    j_first, j_last = of_blocks(scoring.keys, block_k)
    return (i_first[:, None], i_last[:, None]), (j_first[None], j_last[None])
