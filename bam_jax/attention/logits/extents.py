"""The extents of blocks of queries and keys, which bound the logits of a tile without computing its pairs.

NaN becomes an infinity here, which every bound keeps, because on CPUs XLA's maximum of many numbers loses NaN.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention.logits.mask import Limits
from bam_jax.attention.logits.scoring import Scoring, origin
from bam_jax.attention.logits.tokens import EMPTY, Summary, Tokens
from bam_jax.biases.base import Range

type Numbers = tuple[Int[Array, " N"], Int[Array, " N"]]
"""The smallest and the largest number of each block; (EMPTY, -1), an empty range, for a block without any."""


_LOW, _HIGH = ("first", "lowest"), ("last", "highest", "norm")  # The minima and the maxima of a summary.


class Extents(NamedTuple):
    """The extents of the N blocks of one side, over all rows of the batch; blocks are the last axis of every array."""

    position: Numbers  # of the tokens
    document: Numbers | None  # of the tokens' documents; None: one document per row
    document_or_pad: Numbers | None  # the same, with padding as document 0
    in_each_row: Bool[Array, " N"]  # whether every row of the batch has a token in the block
    coordinate: Range  # smallest and largest coordinate, leaves [#H, N]; 0 for a block without tokens
    norm: Float[Array, "H N"]  # bound of the norms of the keys, or of the queries times abs(t_i) times the scale
    # smallest and largest t_i of the queries; None: keys
    coldest: Float[Array, "#H N"] | None = None
    hottest: Float[Array, "#H N"] | None = None
    # of what at least one query of a block sees, and of what all of them see; None: keys
    limits: tuple[Limits, Limits] | None = None

    @classmethod
    def of_queries(cls, q: Float[Array, "B T H D"], scoring: Scoring, block: int) -> "Extents":
        """The extents of blocks of queries."""
        dtype = jnp.promote_types(q.dtype, jnp.float32)
        filled = (scoring.queries.position < EMPTY)[:, None]
        norm = norms(q, dtype) * abs(scoring.content(q.shape[-1]).scale)
        temperature = jnp.ones((1, 1, 1), dtype)
        if scoring.temperature is not None:
            temperature = scoring.temperature.astype(dtype)
            norm = norm * jnp.abs(temperature[..., : q.shape[1]]).swapaxes(1, 2)
        extents = _extents(summarize(scoring.queries, norm, block), scoring.queries, scoring, dtype, q.shape[2])
        # Empty slots are neutral.
        coldest = _cut(jnp.where(filled, temperature, jnp.inf), block).min((0, 3))
        hottest = _cut(jnp.where(filled, temperature, -jnp.inf), block).max((0, 3))
        return extents._replace(coldest=coldest, hottest=hottest, limits=_limits(scoring, block))

    @classmethod
    def of_keys(
        cls,
        q: Float[Array, "B T H D"],
        k: Float[Array, "B S K D"],
        scoring: Scoring,
        block: int,
        v: Float[Array, "B S K D"] | None = None,
    ) -> "Extents":
        """The extents of blocks of keys, repeated for the query heads."""
        dtype, keys = jnp.promote_types(q.dtype, jnp.float32), scoring.keys
        batch, slots, heads, _ = k.shape
        summary = keys.summary
        if summary is not None:
            own, theirs = (jax.tree.map(lambda x: x.shape[1], x) for x in (keys.coordinate, summary.lowest))
            if own != theirs or summary.norm.shape != (batch, heads, slots / summary.block):
                what = f"{summary.norm.shape} of blocks of {summary.block}"
                raise ValueError(f"a summary {what} is not of keys {k.shape} with such a coordinate")
        if summary is not None and (block % summary.block == 0 or block >= slots):
            summary = dataclasses.replace(_merged(summary, -(-block // summary.block)), block=block)
        else:
            summary = summarize(keys, key_norms(k, v, dtype), block)
        return _extents(summary, keys, scoring, dtype, q.shape[2])

    @property
    def blocks(self) -> int:
        """N."""
        return self.in_each_row.shape[0]

    def run(self, start: Int[Array, ""], count: int) -> "Extents":
        """The extents of a run of blocks."""
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, count, axis=-1), self)


def possibly_visible(queries: Extents, keys: Extents) -> Bool[Array, "N M"]:
    """Tiles in which a query may see a key, by the ranges of their positions and documents."""
    widest, _ = _limits_of(queries)
    _, (j_first, j_last) = across((), keys.position)
    seen = (queries.position[1][:, None] >= 0) & (j_last >= 0) & widest.meet(j_first, j_last)
    if queries.document is not None and keys.document is not None:
        (i_first, i_last), (j_first, j_last) = across(queries.document, keys.document)
        seen = seen & Limits(i_first, i_last).meet(j_first, j_last)
    return seen


def wholly_visible(queries: Extents, keys: Extents) -> Bool[Array, "N M"]:
    """Tiles in which every query sees every key; empty slots do not count."""
    _, narrowest = _limits_of(queries)
    _, (j_first, j_last) = across((), keys.position)
    seen = (queries.position[1][:, None] >= 0) & narrowest.enclose(j_first, j_last)
    if queries.document_or_pad is not None and keys.document_or_pad is not None:
        # Padding counts here: a block that contains any is not a block of one document.
        (i_first, i_last), (j_first, j_last) = across(queries.document_or_pad, keys.document_or_pad)
        seen = seen & (i_first > 0) & (i_first == i_last) & (j_first == i_first) & (j_last == i_last)
    return seen


def _limits_of(queries: Extents) -> tuple[Limits, Limits]:
    """The limits of what at least one query of a block sees, and of what all of them see, [N, 1]."""
    assert queries.limits is not None
    return across(queries.limits, ())[0]


def across(queries: Any, keys: Any) -> tuple[Any, Any]:
    """Leaves [..., N] of queries as [..., N, 1] and leaves [..., M] of keys as [..., 1, M]."""
    return jax.tree.map(lambda x: x[..., None], queries), jax.tree.map(lambda x: x[..., None, :], keys)


def norms(x: Float[Array, "... D"], dtype: jnp.dtype) -> Float[Array, "..."]:
    """Upper bounds of the norms of vectors, computed in `dtype`."""
    # Squares of numbers below the root of the smallest normal number underflow. A vector of them is shorter than this.
    lost = math.sqrt(x.shape[-1] * float(jnp.finfo(dtype).tiny))
    return jnp.sqrt(jnp.sum(jnp.square(x.astype(dtype)), -1)) + lost


def key_norms(k: Float[Array, "B S K D"], v: Float[Array, "B S K D"] | None, dtype: jnp.dtype) -> Float[Array, "B S K"]:
    """Upper bounds of the norms of keys; infinite, which proves nothing, if a key or its value is not finite."""
    norm = norms(k, dtype)
    known = jnp.isfinite(norm) if v is None else jnp.isfinite(norm) & jnp.isfinite(v).all(-1)
    return jnp.where(known, norm, jnp.inf)


def summarize(tokens: Tokens, norm: Float[Array, "B T H"], block: int) -> Summary:
    """The summary of tokens and of the norms of their vectors."""
    filled = (tokens.position < EMPTY)[:, None]
    position = _cut(tokens.position[:, None], block)[:, 0]
    last = jnp.where(position < EMPTY, position, -1).max(2)

    def extreme(pick: Callable, neutral: float, x: Array) -> Array:
        x = jnp.where(jnp.isnan(x), -neutral, x)
        return pick(_cut(jnp.where(filled, x, neutral), block), 3)

    lowest = jax.tree.map(functools.partial(extreme, jnp.min, jnp.inf), tokens.coordinate)
    highest = jax.tree.map(functools.partial(extreme, jnp.max, -jnp.inf), tokens.coordinate)
    norm = jnp.where(filled[:, 0, : norm.shape[1], None], norm, 0)
    norm = jnp.pad(norm, ((0, 0), (0, -norm.shape[1] % block), (0, 0)))
    # Maxima first: a transposed copy of all norms would be the largest array here.
    norm = norm.reshape(norm.shape[0], -1, block, norm.shape[2]).max(2).swapaxes(1, 2)
    return Summary(position.min(2), last, lowest, highest, norm, block)


def joined(one: Summary, other: Summary) -> Summary:
    """Combine two summaries, block by block."""
    return _by_extremes(jnp.minimum, jnp.maximum, one, other)


def _merged(summary: Summary, many: int) -> Summary:
    """The summary of blocks that are `many` times as long; the last one has the remainder."""

    def merge(extreme: Callable) -> Callable[[Array], Array]:
        def of_longer_blocks(x: Array) -> Array:
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % many)], mode="edge")
            return extreme(x.reshape(*x.shape[:-1], -1, many), -1)

        return of_longer_blocks

    return _by_extremes(merge(jnp.min), merge(jnp.max), summary)


def _by_extremes(smallest: Callable, largest: Callable, first: Summary, *others: Summary) -> Summary:
    """Combine summaries: their minima by `smallest`, their maxima by `largest`."""
    of = lambda pick, name: jax.tree.map(pick, *(getattr(x, name) for x in (first, *others)))
    low, high = ({name: of(pick, name) for name in names} for pick, names in ((smallest, _LOW), (largest, _HIGH)))
    return Summary(**low, **high, block=first.block)


def _extents(summary: Summary, tokens: Tokens, scoring: Scoring, dtype: jnp.dtype, heads: int) -> Extents:
    """The extents over all rows of the batch, for tokens padded to whole blocks."""
    first, last = summary.first.min(0), summary.last.max(0)
    # A block without tokens has infinities, whose differences are NaN; they become 0. The infinities that replace a token's NaN
    # stay, so no bound skips that block.
    shown = lambda x: jnp.where(last >= 0, x, 0)
    if tokens.coordinate is None:
        start = origin(scoring).min()
        coordinate: Range = _outwards(*(shown(x - start)[None].astype(dtype) for x in (first, last)))
    else:
        coordinate = (
            jax.tree.map(lambda x: shown(x.min(0)), summary.lowest),
            jax.tree.map(lambda x: shown(x.max(0)), summary.highest),
        )
    numbers = lambda least: None if tokens.segment is None else _numbers(tokens.segment, least, summary.block)
    norm = jnp.repeat(summary.norm.max(0).astype(dtype), heads // summary.norm.shape[1], axis=0)
    return Extents((first, last), numbers(1), numbers(0), (summary.last >= 0).all(0), coordinate, norm)


def _outwards(low: Array, high: Array) -> Range:
    """Widen a range of positions, because float32 may have rounded it inwards from 2^24 on."""
    spacing = lambda x: jnp.where(jnp.abs(x) < 2**24, 0, jnp.abs(x) * jnp.finfo(x.dtype).eps)
    return low - spacing(low), high + spacing(high)


def _numbers(x: Int[Array, "#B T"], least: int, block: int) -> Numbers:
    """The smallest and the largest number of each block, among those from `least` to EMPTY - 1."""
    x = x.reshape(x.shape[0], -1, block)
    counts = (x >= least) & (x < EMPTY)
    return jnp.where(counts, x, EMPTY).min((0, 2)), jnp.where(counts, x, -1).max((0, 2))


def _limits(scoring: Scoring, block: int) -> tuple[Limits, Limits]:
    """The limits of what at least one query of a block sees, and of what all of them see, [N]."""
    filled = scoring.queries.position < EMPTY

    def of_blocks(pick: Callable, neutral: int, x: Array) -> Array:
        return pick(_cut(jnp.where(filled, x, neutral)[:, None], block), (0, 1, 3))

    least, most = functools.partial(of_blocks, jnp.min, EMPTY), functools.partial(of_blocks, jnp.max, -EMPTY)
    low, high = scoring.mask.limits(scoring.queries)
    widest = Limits(None if low is None else least(low), most(high))
    return widest, Limits(None if low is None else most(low), least(high))


def _cut(x: Array, block: int) -> Array:
    """[#B, H, T] -> [#B, H, N, block]."""
    return x.reshape(*x.shape[:2], -1, block)
