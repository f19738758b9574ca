"""The tiles of the logits that must be computed: some pair is visible, and the mass is not provably negligible.

Everything here is conservative: a tile is skipped only if that is proven to be safe, and NaN proves nothing.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention.logits.extents import Extents, across, possibly_visible, wholly_visible
from bam_jax.attention.logits.mask import take_integers
from bam_jax.attention.logits.scoring import Scoring
from bam_jax.attention.logits.tokens import EMPTY, Tokens
from bam_jax.biases import Uniform
from bam_jax.biases.base import head_axes

_FAR = 2**29  # Tokens. Windows and rows are shorter, and sums of a few such numbers fit in int32.

_STRIP = 2**20  # Tiles, over all heads, whose bounds are in memory at once: 4 MB per float32 array.


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How the logits are divided into tiles, and which tiles are skipped.

    Args:
        skip: the share of a row's mass that all skipped tiles may hold together. "exact": half a unit in the last place of the
            softmax (2^-24 in float32). "off": only tiles without visible pairs are skipped.
        block_q, block_k: queries and keys per tile; None: the backend's choice.
    """

    skip: float | str = "exact"
    block_q: int | None = None
    block_k: int | None = None

    def __post_init__(self) -> None:
        if not (self.skip in ("exact", "off") or (isinstance(self.skip, float) and 0 < self.skip < 1)):
            raise ValueError(f'what is skipped is "exact", "off" or a share between 0 and 1, got skip={self.skip!r}')
        take_integers(self, "block_q", "block_k")
        for block in (self.block_q, self.block_k):
            if block is not None and (type(block) is not int or block < 1):
                got = f"{self.block_q!r} x {self.block_k!r}"
                raise ValueError(f"a tile has at least one query and key, whole numbers, got {got}")

    def blocks(self, block_q: int, block_k: int) -> tuple[int, int]:
        """Queries and keys per tile: the tiling's own numbers, or these where it has none."""
        return self.block_q or block_q, self.block_k or block_k


class Runs(NamedTuple):
    """For each block of one side, the run of blocks of the other side that it needs: the first of them, and how many.

    All blocks between the first and the last one are computed, needed or not: a loop has two bounds, and masks leave few gaps.
    """

    first: Int[Array, "*H N"]  # 0 for a block that needs none
    length: Int[Array, "*H N"]  # 0 for a block that needs none

    @classmethod
    def of(cls, needed: Bool[Array, "*H N M"]) -> "Runs":
        """The runs of needed blocks, for each block along the second to last axis."""
        first = jnp.argmax(needed, axis=-1).astype(jnp.int32)
        last = needed.shape[-1] - jnp.argmax(needed[..., ::-1], axis=-1).astype(jnp.int32)
        return cls(first, jnp.where(needed.any(-1), last - first, 0))

    @classmethod
    def unbroken(cls, flags: Bool[Array, "*H N M"]) -> "Runs":
        """The first run of flags that are all set, for each block along the second to last axis."""
        first = jnp.argmax(flags, axis=-1, keepdims=True).astype(jnp.int32)
        number = jnp.arange(flags.shape[-1], dtype=jnp.int32)
        stop = jnp.where(flags | (number < first), flags.shape[-1], number).min(-1)
        return cls(first[..., 0], jnp.where(flags.any(-1), stop - first[..., 0], 0))

    def union(self, axis: int) -> "Runs":
        """The runs that cover all those along an axis."""
        some = self.length > 0
        first = jnp.where(some, self.first, EMPTY).min(axis)
        last = jnp.where(some, self.first + self.length, 0).max(axis)
        return Runs(jnp.where(last > 0, first, 0), jnp.where(last > 0, last - first, 0))


def needed(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    scoring: Scoring,
    skip: float | str,
    block_q: int,
    block_k: int,
    v: Float[Array, "B S K D"] | None = None,
) -> Bool[Array, "H N M"]:
    """The key blocks that each query block needs, head by head."""
    queries, keys = Extents.of_queries(q, scoring, block_q), Extents.of_keys(q, k, scoring, block_k, v)
    table = _needed(queries, keys, scoring, skip, k.shape[1])
    return jnp.broadcast_to(table, (q.shape[2], *table.shape[1:]))


def runs(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    scoring: Scoring,
    skip: float | str,
    block_q: int,
    block_k: int,
    v: Float[Array, "B S K D"] | None = None,
) -> tuple[Runs, Runs]:
    """The runs of `needed`, of key blocks for each query block and of query blocks for each key block, [H, N] and [H, M].

    The flags of all tiles are never in memory at once: for a long row they would be the largest array.
    """
    if _by_slots(scoring) and not _weighs(scoring, skip):
        seen, (_, length, heads, _), slots = _seen_offsets(scoring), q.shape, k.shape[1]
        both = seen.runs(length, block_q, slots, block_k), seen.turned().runs(slots, block_k, length, block_q)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (heads, x.shape[1])), both)
    queries = Extents.of_queries(q, scoring, block_q)
    if _weighs(scoring, skip):
        # One side after the other: the norms of one side's tokens are freed before those of the other are computed.
        k, queries = jax.lax.optimization_barrier((k, queries))
    keys = Extents.of_keys(q, k, scoring, block_k, v)

    def of_queries(start: Array, count: int) -> Runs:
        return Runs.of(of_heads(_needed(queries.run(start, count), keys, scoring, skip, k.shape[1])))

    def of_keys(start: Array, count: int) -> Runs:
        return Runs.of(of_heads(_needed(queries, keys.run(start, count), scoring, skip, k.shape[1])).swapaxes(1, 2))

    of_heads = lambda table: jnp.broadcast_to(table, (q.shape[2], *table.shape[1:]))
    strip = lambda others: max(1, _STRIP // (q.shape[2] * others))
    return _strip_by_strip(of_queries, queries.blocks, strip(keys.blocks)), _strip_by_strip(
        of_keys, keys.blocks, strip(queries.blocks)
    )


def whole_runs(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    scoring: Scoring,
    block_q: int,
    block_k: int,
) -> tuple[Runs, Runs]:
    """Runs of tiles that need no mask, because all slots are filled and every query sees every key, [1, N] and [1, M].

    As in `runs`, they are runs of key blocks for each query block and of query blocks for each key block. A row may have
    more such tiles outside its run, where a mask does no harm.
    """
    if _by_slots(scoring):
        seen, (slots_q, slots_k) = (
            _seen_offsets(scoring),
            (x.position.shape[1] for x in (scoring.queries, scoring.keys)),
        )
        sound_q, sound_k = _sound(scoring.queries, block_q), _sound(scoring.keys, block_k)
        return (
            seen.whole_runs(slots_q, block_q, sound_q, block_k, sound_k),
            seen.turned().whole_runs(slots_k, block_k, sound_k, block_q, sound_q),
        )
    queries, keys = Extents.of_queries(q, scoring, block_q), Extents.of_keys(q, k, scoring, block_k)
    in_all = lambda x, block: x.reshape(*x.shape[:2], -1, block).all((0, 1, 3))
    filled = lambda tokens, block: in_all(tokens.position[:, None] < EMPTY, block)
    some_q = filled(scoring.queries, block_q)
    some_k = filled(scoring.keys, block_k)
    cut = jax.lax.dynamic_slice_in_dim

    def of_queries(start: Array, count: int) -> Runs:
        whole = wholly_visible(queries.run(start, count), keys) & cut(some_q, start, count)[:, None] & some_k
        return Runs.unbroken(whole[None])

    def of_keys(start: Array, count: int) -> Runs:
        whole = wholly_visible(queries, keys.run(start, count)) & some_q[:, None] & cut(some_k, start, count)
        return Runs.unbroken(whole.T[None])

    strip = lambda others: max(1, _STRIP // others)
    return _strip_by_strip(of_queries, queries.blocks, strip(keys.blocks)), _strip_by_strip(
        of_keys, keys.blocks, strip(queries.blocks)
    )


class _SeenOffsets(NamedTuple):
    """The smallest and largest offset from a slot of one side to the slots of the other side that it sees; None: no limit."""

    least: Int[Array, ""] | None
    most: Int[Array, ""] | None

    def turned(self) -> "_SeenOffsets":
        """The same offsets, counted from the other side."""
        return _SeenOffsets(*(None if x is None else -x for x in (self.most, self.least)))

    def runs(self, own: int, own_block: int, others: int, block: int) -> Runs:
        """The blocks of the other side that each own block sees, [1, N], from the number of slots on each side."""
        start = np.arange(0, own, own_block, dtype=np.int32)[None]
        last = np.minimum(start + own_block, own) - 1
        low = 0 if self.least is None else jnp.maximum(start + self.least, 0)
        high = others - 1 if self.most is None else jnp.minimum(last + self.most, others - 1)
        return self._runs(low // block, jnp.where(low <= high, high // block + 1, 0), start)

    def whole_runs(self, own: int, own_block: int, own_sound: Array, block: int, sound: Array) -> Runs:
        """The blocks without hidden pairs, among those before the first block with an empty slot on either side."""
        start = np.arange(0, own, own_block, dtype=np.int32)[None]
        low = 0 if self.least is None else jnp.maximum(start + own_block - 1 + self.least, 0)
        stop = sound if self.most is None else jnp.minimum(sound, (start + self.most + 1) // block)
        return self._runs(-(-low // block), jnp.where(start // own_block < own_sound, stop, 0), start)

    def _runs(self, first: Array | int, stop: Array, start: np.ndarray) -> Runs:
        """The runs from block `first` up to, but not including, block `stop`."""
        length = jnp.broadcast_to(jnp.maximum(stop - first, 0), start.shape).astype(jnp.int32)
        return Runs(jnp.where(length > 0, first, 0).astype(jnp.int32), length)


def _by_slots(scoring: Scoring) -> bool:
    """Whether slots alone determine which keys a query sees, apart from empty slots."""
    queries, keys, window = scoring.queries, scoring.keys, scoring.mask.window
    one_document = queries.segment is None or keys.segment is None
    own = queries.sees_from is not None or queries.sees_to is not None
    return queries.consecutive and keys.consecutive and one_document and not own and (window or 0) < _FAR


def _seen_offsets(scoring: Scoring) -> _SeenOffsets:
    """The offsets of slots at which queries see keys, where `_by_slots` holds."""
    ahead = scoring.keys.start - scoring.queries.start
    ahead = jnp.clip(ahead, -2 * _FAR, 2 * _FAR).astype(jnp.int32)  # sums of it fit in int32
    reach = None if scoring.mask.window is None else scoring.mask.window - 1
    later = 0 if scoring.mask.causal else reach
    return _SeenOffsets(None if reach is None else -reach - ahead, None if later is None else later - ahead)


def _sound(tokens: Tokens, block: int) -> Int[Array, ""]:
    """The number of blocks before the first one with an empty slot."""
    return jnp.minimum(first_false(tokens.position < EMPTY), tokens.position.shape[1]) // block


def first_false(flags: Bool[Array, "... T"]) -> Int[Array, ""]:
    """The first slot where a flag is not set; `EMPTY` if there is none."""
    return jnp.where(flags, EMPTY, np.arange(flags.shape[-1], dtype=np.int32)).min()


def _strip_by_strip(of_strip: Callable[[Array, int], Runs], blocks: int, strip: int) -> Runs:
    """The runs of all blocks, from strips: `of_strip(start, count)` has those of `count` blocks from `start` on, [H, count]."""
    if blocks <= strip:
        return of_strip(jnp.zeros((), jnp.int32), blocks)
    # The last strip ends with the last block, so it may repeat blocks of the strip before.
    starts = np.minimum(np.arange(0, blocks, strip), blocks - strip)
    own = np.arange(blocks) // strip
    of_all = jax.lax.map(lambda start: of_strip(start, strip), jnp.asarray(starts, jnp.int32))
    return jax.tree.map(lambda x: x[own, :, np.arange(blocks) - starts[own]].T, of_all)


def padded(scoring: Scoring, block_q: int, block_k: int) -> Scoring:
    """The scoring padded to whole blocks with empty slots."""

    def side(tokens: Tokens, block: int) -> Tokens:
        whole = jax.tree.map(lambda x: pad(x, block), dataclasses.replace(tokens, summary=None))
        return dataclasses.replace(whole, position=pad(tokens.position, block, EMPTY), summary=tokens.summary)

    return dataclasses.replace(
        scoring,
        queries=side(scoring.queries, block_q),
        keys=side(scoring.keys, block_k),
        temperature=None if scoring.temperature is None else pad(scoring.temperature, block_q),
    )


def pad(x: Array, block: int, value: float = 0) -> Array:
    """[..., n], n padded to whole blocks."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % block)], constant_values=value)


def _weighs(scoring: Scoring, skip: float | str) -> bool:
    """Whether tiles may be skipped because of their bias. A uniform bias gives all keys the same weight."""
    return skip != "off" and not isinstance(scoring.bias, Uniform)


def _needed(queries: Extents, keys: Extents, scoring: Scoring, skip: float | str, total: int) -> Bool[Array, "#H N M"]:
    """The tiles of these blocks that are needed, if rows have `total` keys in all."""
    seen = possibly_visible(queries, keys)[None]
    negligible = _negligible(queries, keys, scoring, skip, total) if _weighs(scoring, skip) else None
    return seen if negligible is None else seen & ~negligible


def _negligible(queries: Extents, keys: Extents, scoring: Scoring, skip: float | str, total: int) -> Array | None:
    """[H, N, M]: tiles that can be skipped, so that all of them together hold less than a share of each row's mass.

    Let c and c' bound the content scores of row i in this tile and in another one (`_content`), and let b' bound from below the
    bias of a key of the other tile that row i is sure to see. A key of this tile with bias b then has at most
    exp(c + c' + t_i (b - b')) times the weight of that key. With S keys, a tile can be skipped if

        c + c' + log S + t_i (b_max(tile) - b') < log(share)   for every row i of the tile.
    """
    bounds = _bounds(queries, keys, scoring)
    if bounds is None:
        return None
    low, high = (jnp.broadcast_to(x, (keys.norm.shape[0], *x.shape[1:])) for x in bounds)
    content = _content(queries, keys, scoring)
    assert queries.coldest is not None
    coldest = queries.coldest[:, :, None]
    # The other tile is the one that is sure to be seen and has the largest lower bound of a weight.
    sure = keys.in_each_row & wholly_visible(queries, keys)
    weight = coldest * low - content
    weight = jnp.where(sure & ~jnp.isnan(weight), weight, -jnp.inf)
    at = jnp.argmax(weight, axis=2, keepdims=True)
    best, its_content = (jnp.take_along_axis(x, at, 2) for x in (low, content))
    # Without such a tile the best is -inf, the lost mass is +inf, and nothing is skipped.
    best = jnp.where(jnp.isfinite(jnp.take_along_axis(weight, at, 2)), best, -jnp.inf)
    # Only a tile whose bias is below the best can be skipped. Its t_i (b - b') is negative, so the smallest t_i bounds it for
    # all rows. If a t_i is 0 or less, the bias rules nothing out.
    lost = content + its_content + math.log(total) + coldest * (high - best)
    return (lost < log_share(skip, lost.dtype)) & (coldest > 0)


def _content(queries: Extents, keys: Extents, scoring: Scoring) -> Array:
    """An upper bound of abs(t_i cap(scale q_i . k_j)) for each tile, [H, N, M].

    By Cauchy-Schwarz the score is at most abs(t_i) scale |q_i| |k_j|, and a soft cap keeps it at or below abs(t_i) times the cap.
    A key norm that is not finite stays infinite here: no cap makes NaN finite.
    """
    norms, theirs = across(queries.norm, keys.norm)
    content = norms * theirs
    if scoring.soft_cap is None:
        return content
    return jnp.where(jnp.isfinite(theirs), jnp.minimum(content, _heat(queries) * scoring.soft_cap), jnp.inf)


def _heat(queries: Extents) -> Array:
    """The largest abs(t_i) of each block, [#H, N, 1]; infinite for a block without queries."""
    assert queries.coldest is not None and queries.hottest is not None
    return jnp.maximum(jnp.abs(queries.coldest), jnp.abs(queries.hottest))[:, :, None]


def constant_bias(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    scoring: Scoring,
    needed: Bool[Array, "H N M"],
    skip: float | str,
    block_q: int,
    block_k: int,
) -> tuple[Bool[Array, "H N M"], Float[Array, "H N"]] | None:
    """The needed tiles without hidden pairs in which a query block can use one bias b for all keys, and that bias.

        abs(t_i) abs(b_j - b) < share   for every row i and key j: no weight is changed by more than this share of it

    b is the bias of the first such tile, the farthest one of a causal row. None if the bias has no bounds.
    """
    queries, keys = Extents.of_queries(q, scoring, block_q), Extents.of_keys(q, k, scoring, block_k)
    bounds = _bounds(queries, keys, scoring)
    if bounds is None:
        return None
    low, high = (jnp.broadcast_to(x, needed.shape) for x in bounds)
    whole = needed & wholly_visible(queries, keys)[None]
    at = jnp.argmax(whole, axis=-1, keepdims=True)
    middle = (jnp.take_along_axis(low, at, -1) + jnp.take_along_axis(high, at, -1)) / 2
    # A block without queries has infinite heat, but none of its tiles is whole.
    off = _heat(queries) * jnp.maximum(high - middle, middle - low)
    return whole & (off < math.exp(log_share(skip, off.dtype))), middle[..., 0]


def within_reach(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    scoring: Scoring,
    lse: Float[Array, "B H T"],
    skip: float | str,
    total: int,
) -> Bool[Array, "H N M"]:
    """The tiles that may hold non-negligible mass for a query, given its log-normaliser over other keys.

    With c as in `_negligible` and total keys in all, a tile holds less than a share of the mass of row i if

        c + log(total) + max(t b over the block's t and the tile's b) - lse_i < log(share).
    """
    block_q, block_k = (min(512, length) for length in (q.shape[1], k.shape[1]))
    whole = padded(scoring, block_q, block_k)
    queries, keys = Extents.of_queries(q, whole, block_q), Extents.of_keys(q, k, whole, block_k)
    seen = possibly_visible(queries, keys)[None]
    bounds = None if skip == "off" else _bounds(queries, keys, scoring)
    if bounds is None:
        return jnp.broadcast_to(seen, (q.shape[2], *seen.shape[1:]))
    temperatures, _ = across((queries.coldest, queries.hottest), ())
    corners = [t * b for t in temperatures for b in bounds]  # a product of two ranges is largest at one of them
    # An empty slot needs nothing more. The row with the smallest normaliser decides for its block.
    found = jnp.where((scoring.queries.position < EMPTY)[:, None], lse, jnp.inf)
    found = pad(found, block_q, jnp.inf)
    found = found.reshape(*found.shape[:2], -1, block_q).min((0, 3))[:, :, None]  # [H, N, 1]
    held = _content(queries, keys, scoring) + math.log(total) + functools.reduce(jnp.maximum, corners) - found
    return seen & ~(held < log_share(skip, held.dtype))  # NaN compares as false, so the tile is needed


def log_share(skip: float | str, dtype: jnp.dtype) -> float:
    """The logarithm of the share of a row's mass that may be skipped."""
    return math.log(float(jnp.finfo(dtype).eps) / 2 if skip == "exact" else float(skip))


def _bounds(queries: Extents, keys: Extents, scoring: Scoring) -> tuple[Array, Array] | None:
    """Smallest and largest bias of each tile, [#H, N, M] both; None if the bias has no bounds."""
    i, j = across(queries.coordinate, keys.coordinate)
    of_head = lambda bias, i, j: bias.bounds(i, j)
    # A head axis of length one is common to all heads: it is not mapped.
    axis = lambda tree: jax.tree.map(lambda x: None if x.shape[0] == 1 else 0, tree)
    value = lambda tree: jax.tree.map(lambda x: x[0] if x.shape[0] == 1 else x, tree)
    axes = (head_axes(scoring.bias), axis(i), axis(j))
    if jax.tree.leaves(axes):
        return jax.vmap(of_head, axes)(scoring.bias, value(i), value(j))
    bounds = of_head(scoring.bias, value(i), value(j))
    return None if bounds is None else (bounds[0][None], bounds[1][None])
