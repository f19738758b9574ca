"""A key-value cache that drops keys with provably negligible attention.

Each local head keeps a rolling buffer of its newest tokens; long-range heads keep everything. Each step bounds the dropped mass
from the row's log-normaliser, the largest key norm and the bias bounds. `PrunedCache.missed` flags heads whose bound exceeds
the tolerance.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention.cache import BLOCK, Cache
from bam_jax.attention.cpu import chunked
from bam_jax.attention.logits import skipping
from bam_jax.attention.logits.extents import joined, key_norms, summarize
from bam_jax.attention.logits.scoring import Scoring
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.logits.tokens import EMPTY, Summary, Tokens
from bam_jax.attention.op import Backend, attention, choose
from bam_jax.biases.base import Coordinate, head_axes

type Groups = tuple[tuple[tuple[int, ...], int], ...]
"""Key heads that share a buffer, and its number of slots; 0: they keep every token."""

# One query of all heads at once. Non-finite numbers spread to other heads, but they count as missed anyway.
_ONE_TOKEN = Backend(chunked.one_token, chunked.backward, lambda *operands: None, own_width=True)
_WASTE = 0.1  # largest share of a layer's slots to waste on computing heads of similar reach together


def grouped(reach: Sequence[int], slots: int, devices: int = 1) -> Groups:
    """Group key heads of similar reach, because each group costs a call.

    Args:
        reach: tokens that each key head must keep.
        slots: capacity of a whole cache.
        devices: number of devices that share the heads of each group equally.

    >>> grouped([100, 120, 5000, 900], 4096)
    (((0, 1), 128), ((3,), 1024), ((2,), 0))
    >>> grouped([100, 120, 5000, 900], 4096, devices=2)
    (((0, 1), 128), ((2, 3), 0))
    """
    by_reach = sorted(range(len(reach)), key=lambda head: (reach[head], head))
    groups = [by_reach[at : at + devices] for at in range(0, len(reach), devices)]
    size = lambda group: _rounded(reach[group[-1]])
    whole = tuple(sorted(head for group in groups if size(group) >= slots for head in group))
    groups = [group for group in groups if size(group) < slots]
    spare = _WASTE * sum(len(group) * size(group) for group in groups)
    while len(groups) > 1:
        added = [len(one) * (size(other) - size(one)) for one, other in itertools.pairwise(groups)]
        at = int(np.argmin(added))
        if added[at] > spare:
            break
        spare -= added[at]
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
    found = tuple((tuple(sorted(group)), size(group)) for group in groups)
    return (*found, (whole, 0)) if whole else found


def _rounded(reach: int) -> int:
    return -(-reach // BLOCK) * BLOCK


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RollingCache:
    """Keys and values of the newest tokens. Token n lies in slot n modulo the number of slots.

    Args:
        k, v: keys and values.
        tokens: positions and coordinates of the slots.
        length: [], tokens written so far.
        dropped: bounds of the dropped tokens, as one block; its norm is the maximum over all tokens so far.
    """

    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K E"]
    tokens: Tokens
    length: Int[Array, ""]
    dropped: Summary

    @classmethod
    def empty(cls, k: Array, v: Array, tokens: Tokens, slots: int) -> "RollingCache":
        """A buffer for keys, values and tokens of these shapes, [B, T, K, D], [B, T, K, E] and [#B, T]."""
        cache = Cache.empty(k, tokens, slots, v=v)
        assert cache.tokens.summary is not None
        block = jax.tree.map(lambda x: x[..., :1], cache.tokens.summary)
        tokens = dataclasses.replace(cache.tokens, summary=None, kinds=None)
        return cls(cache.k, cache.v, tokens, cache.length, dataclasses.replace(block, block=1))

    def extended(self, k: Array, v: Array, tokens: Tokens) -> tuple["RollingCache", Array, Array, Tokens, Summary]:
        """The buffer with the next tokens; the keys, values and tokens that these may attend to; and bounds of those dropped."""
        slots, new = self.k.shape[1], k.shape[1]
        k, v = k.astype(self.k.dtype), v.astype(self.v.dtype)
        like = lambda x, room: jnp.broadcast_to(x, (room.shape[0], *x.shape[1:])).astype(room.dtype)
        coordinate = jax.tree.map(like, tokens.coordinate, self.tokens.coordinate)
        new_tokens = Tokens(like(tokens.position, self.tokens.position), coordinate=coordinate)
        along = lambda x: x.ndim - 1
        write_tokens = lambda room, x: self._write(room, x, along(room))
        written = RollingCache(
            self._write(self.k, k, 1),
            self._write(self.v, v, 1),
            jax.tree.map(write_tokens, self.tokens, new_tokens),
            self.length + new,
            self._dropped(k, v, new_tokens),
        )
        if new == 1:  # in place: a copy of the keys would cost more than the step
            # Without the barrier, XLA's CPU backend writes a second time, into a copy, for the read.
            k, v = jax.lax.optimization_barrier((written.k, written.v))
            written = dataclasses.replace(written, k=k, v=v)
            return written, written.k, written.v, written.tokens, written.dropped
        in_order = lambda x, axis: jnp.roll(x, -(self.length % slots), axis)
        behind = lambda room, x, axis: jnp.concatenate([in_order(room, axis), x], axis)
        seen = jax.tree.map(lambda room, x: behind(room, x, along(x)), self.tokens, new_tokens)
        return written, behind(self.k, k, 1), behind(self.v, v, 1), seen, self.dropped

    def _write(self, room: Array, x: Array, axis: int) -> Array:
        slots, new = room.shape[axis], x.shape[axis]
        if new >= slots:
            newest = jax.lax.slice_in_dim(x, new - slots, new, axis=axis)
            return jnp.roll(newest, (self.length + new) % slots, axis)
        start = self.length % slots
        if new == 1:
            return jax.lax.dynamic_update_slice_in_dim(room, x, start, axis)
        at = (slice(None),) * axis + ((start + jnp.arange(new)) % slots,)
        return room.at[at].set(x)

    def _dropped(self, k: Array, v: Array, new: Tokens) -> Summary:
        """The bounds once these tokens are written."""
        slots, count = self.k.shape[1], k.shape[1]
        slot = jnp.arange(slots)
        newest = self.length - 1 - (self.length - 1 - slot) % slots  # the token in each slot
        index = jnp.concatenate([newest, self.length + jnp.arange(count)])
        gone = index < self.length + count - slots
        both = jax.tree.map(lambda old, x: jnp.concatenate([old, x], -1), self.tokens, new)
        both = dataclasses.replace(both, position=jnp.where(gone, both.position, EMPTY))
        norm = key_norms(k, v, self.dropped.norm.dtype)
        norm = jnp.where((new.position < EMPTY)[..., None], norm, 0).max(1)[..., None]
        nothing = jnp.zeros((norm.shape[0], slots + count, norm.shape[1]), norm.dtype)
        summary = dataclasses.replace(summarize(both, nothing, slots + count), block=1)
        summary = joined(self.dropped, summary)
        return dataclasses.replace(summary, norm=jnp.maximum(self.dropped.norm, norm))


class Bound(NamedTuple):
    """The mass that dropped keys may hold.

    Args:
        tolerance: "exact", or a share of a row's mass, as in `Tiling.skip`.
        slots: capacity of a whole cache.
    """

    tolerance: float | str
    slots: int


type OfPart = Callable[..., tuple[Any, Array, Array]]
"""A function with the arguments and results of `attend_part`."""


def attend_part(
    part: Cache | RollingCache,
    q: Float[Array, "B R H D"],
    k: Float[Array, "B T K D"],
    v: Float[Array, "B T K E"],
    scoring: Scoring,
    bound: Bound,
    tiling: Tiling,
    backend: str,
) -> tuple[Cache | RollingCache, Float[Array, "B R H E"], Bool[Array, " K"]]:
    """A part of the cache with the next tokens, attention to it, and for each key head whether it may have missed keys."""
    key_heads = k.shape[2]
    nothing_missed = jnp.zeros(key_heads, bool)
    if isinstance(part, Cache):
        part = part.append(k, v, scoring.keys)
        seen_k, seen_v, seen, dropped = part.k, part.v, part.tokens, None
    else:
        part, seen_k, seen_v, seen, dropped = part.extended(k, v, scoring.keys)
    if not q.shape[1]:
        return part, jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype), nothing_missed
    scoring = dataclasses.replace(scoring, keys=seen)
    operands = q, seen_k.astype(q.dtype), seen_v.astype(q.dtype), scoring
    # One token needs most of a buffer: searching for blocks to skip would cost more than it saves.
    one_token = dropped is not None and k.shape[1] == 1 and backend == "auto" and choose(*operands) == "chunked"
    chosen = _ONE_TOKEN if one_token and seen_k.dtype == q.dtype == jnp.float32 else backend
    out, lse = attention(*operands, tiling=tiling, backend=chosen, return_lse=True)
    if dropped is None:
        return part, out, nothing_missed
    not_finite = ~jnp.isfinite(out).all((0, 1, 3)).reshape(key_heads, -1).all(1)  # see _ONE_TOKEN
    return part, out, _misses(q, scoring, dropped, lse, key_heads, bound) | not_finite


def _misses(
    q: Array, scoring: Scoring, dropped: Summary, lse: Array, key_heads: int, bound: Bound
) -> Bool[Array, " K"]:
    """For each key head whether the dropped tokens may hold more than the tolerated share of a row's mass."""
    as_one_key = Tokens(dropped.last, coordinate=dropped.highest, summary=dropped)
    of_rows = q, lse, scoring.queries, as_one_key, scoring.temperature

    def of_row(row: Any) -> Array:
        q, lse, queries, keys, temperature = jax.tree.map(lambda x: x[None], row)
        alone = dataclasses.replace(scoring, queries=queries, keys=keys, temperature=temperature)
        k = jnp.zeros((1, 1, key_heads, q.shape[3]), q.dtype)  # only the bounds are read
        return skipping.within_reach(q, k, alone, lse, bound.tolerance, bound.slots)

    # Row by row: if rows differ in length, the same position is near in one row and far in another.
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (q.shape[0], *x.shape[1:])), of_rows)
    return jax.vmap(of_row)(rows).any(0).reshape(key_heads, -1).any(1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrunedCache:
    """The cache of one layer, in which groups of key heads keep different numbers of tokens.

    Args:
        parts: a cache for each group.
        last: the coordinate of the newest token, [B, #H, 1], from which running sums go on.
        missed: whether the dropped tokens of a key head may have held more than the tolerated share of a row's mass.
        groups: see `grouped`.
        slots: capacity of a whole cache.
        tolerance: "exact", or a share of a row's mass, as in `Tiling.skip`.
        state: as in `Cache`.
    """

    parts: tuple[Cache | RollingCache, ...]
    last: Coordinate
    missed: Bool[Array, " K"]
    groups: Groups = dataclasses.field(metadata={"static": True})
    slots: int = dataclasses.field(metadata={"static": True})
    tolerance: float | str = dataclasses.field(metadata={"static": True})
    state: Any = None

    @classmethod
    def empty(
        cls,
        k: Array,
        tokens: Tokens,
        slots: int,
        groups: Groups,
        tolerance: float | str,
        *,
        v: Array,
        state: Any = None,
    ) -> "PrunedCache":
        """A cache with room for `slots` tokens in the heads that keep them all; arguments as in `Cache.empty`."""
        parts: list[Cache | RollingCache] = []
        key_heads = k.shape[2]
        for heads, kept in groups:
            of_heads = dataclasses.replace(tokens, coordinate=_take_coordinate(tokens.coordinate, heads, key_heads))
            own_k, own_v = _take(k, heads, 2), _take(v, heads, 2)
            if kept:
                parts.append(RollingCache.empty(own_k, own_v, of_heads, kept))
            else:
                parts.append(Cache.empty(own_k, of_heads, slots, v=own_v))
        last = jax.tree.map(lambda x: jnp.zeros((*x.shape[:2], 1), x.dtype), tokens.coordinate)
        return cls(tuple(parts), last, jnp.zeros(key_heads, bool), groups, slots, tolerance, state)

    def attend(
        self,
        q: Float[Array, "B R H D"],
        k: Float[Array, "B T K D"],
        v: Float[Array, "B T K E"],
        scoring: Scoring,
        *,
        tiling: Tiling,
        backend: str = "auto",
        of_part: OfPart = attend_part,
    ) -> tuple[Float[Array, "B R H E"], "PrunedCache"]:
        """Attention from the last R of T new tokens to these tokens and the cache, and the cache with them appended.

        Args:
            q: queries; R may be 0.
            k, v, scoring: of the new tokens only.
            of_part: the function that computes each part.

        Raises:
            ValueError: the scoring has sink tokens or is row-wise, which need keys that are dropped.
        """
        if scoring.mask.sink_tokens or scoring.rowwise is not None:
            raise ValueError("sink tokens and row-wise biases need keys that a pruned cache drops; use Cache")
        key_heads, group = k.shape[2], q.shape[2] // k.shape[2]
        out: list[Any] = [None] * key_heads
        parts: list[Cache | RollingCache] = []
        missed, bound = self.missed, Bound(self.tolerance, self.slots)
        for part, (heads, _) in zip(self.parts, self.groups, strict=True):
            own = _take(q, _queries_of(heads, group), 2), _take(k, heads, 2), _take(v, heads, 2)
            of_heads = _of_heads(scoring, heads, key_heads)
            part, found, misses = of_part(part, *own, of_heads, bound, tiling, backend)
            parts.append(part)
            missed = missed.at[np.array(heads)].max(misses)
            for n, head in enumerate(heads):
                out[head] = found[:, :, n * group : (n + 1) * group]
        last = jax.tree.map(lambda x: x[..., -1:], scoring.keys.coordinate)
        return jnp.concatenate(out, 2), dataclasses.replace(self, parts=tuple(parts), last=last, missed=missed)

    def last_coordinate(self) -> Coordinate:
        """As `Cache.last_coordinate`."""
        return self.last

    def rewound(
        self, length: Int[Array, ""] | int, saved: Any, of_whole: Callable[[Cache, Any], Cache] = Cache.rewound
    ) -> "PrunedCache":
        """The cache as it was when it held `length` tokens; `saved` is the value of `to_save` at that time."""
        rolling, last, state = saved
        rolling = iter(rolling)
        parts = tuple(of_whole(part, length) if isinstance(part, Cache) else next(rolling) for part in self.parts)
        return dataclasses.replace(self, parts=parts, last=last, state=state)

    @property
    def to_save(self) -> Any:
        """What a later `rewound` needs, because a rolling buffer overwrites old tokens."""
        return [part for part in self.parts if isinstance(part, RollingCache)], self.last, self.state


type LayerCache = Cache | PrunedCache
"""The cache of one layer."""


def _queries_of(heads: Sequence[int], group: int) -> tuple[int, ...]:
    """The query heads of some key heads, `group` for each."""
    return tuple(head * group + n for head in heads for n in range(group))


def _take(x: Array, heads: Sequence[int], axis: int) -> Array:
    """The part of an array that belongs to some heads."""
    first, count = heads[0], len(heads)
    if tuple(heads) == tuple(range(first, first + count)):
        return jax.lax.slice_in_dim(x, first, first + count, axis=axis)
    return jnp.take(x, np.array(heads), axis)


def _take_coordinate(coordinate: Coordinate, heads: Sequence[int], key_heads: int) -> Coordinate:
    def of(x: Array) -> Array:
        return x if x.shape[1] == 1 else _take(x, _queries_of(heads, x.shape[1] // key_heads), 1)

    return jax.tree.map(of, coordinate)


def _of_heads(scoring: Scoring, heads: Sequence[int], key_heads: int) -> Scoring:
    """The scoring of some key heads and their queries."""
    leaves, structure = jax.tree.flatten(scoring.bias)
    axes = jax.tree.leaves(head_axes(scoring.bias), is_leaf=lambda x: x is None)
    own: Callable[[Array, int], Array] = lambda x, axis: _take(x, _queries_of(heads, x.shape[axis] // key_heads), axis)
    bias = [x if axis is None else own(x, axis) for x, axis in zip(leaves, axes, strict=True)]
    side = lambda tokens: dataclasses.replace(tokens, coordinate=_take_coordinate(tokens.coordinate, heads, key_heads))
    temperature = scoring.temperature
    if temperature is not None and temperature.shape[1] > 1:
        temperature = own(temperature, 1)
    return dataclasses.replace(
        scoring,
        bias=jax.tree.unflatten(structure, bias),
        queries=side(scoring.queries),
        keys=side(scoring.keys),
        temperature=temperature,
        sink_logits=None if scoring.sink_logits is None else own(scoring.sink_logits, 0),
    )
