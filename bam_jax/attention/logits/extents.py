"""The extents of blocks of queries and of keys: what bounds the logits of a tile without a look at its pairs."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention.logits.scoring import Scoring, coordinate
from bam_jax.attention.logits.tokens import EMPTY, KeyNorms, Tokens
from bam_jax.biases.base import Range

type Numbers = tuple[Int[Array, " N"], Int[Array, " N"]]
"""The smallest and the largest number of each block; (EMPTY, -1), a range that meets none, of a block without any."""


class Extents(NamedTuple):
    """The extents of the N blocks of one side; every array has the blocks along its last axis.

    Args:
        position: of the tokens.
        document: of the tokens' documents; None: one document a row.
        document_or_pad: the same, where a pad is of document 0.
        in_each_row: whether each row of the batch has a token there.
        coordinate: smallest and largest coordinate, leaves [#H, N].
        norm: at least the largest norm of the keys, or of the queries times abs(t_i) times the scale.
        coldest, hottest: smallest and largest t_i of the queries; None: keys.
    """

    position: Numbers
    document: Numbers | None
    document_or_pad: Numbers | None
    in_each_row: Bool[Array, " N"]
    coordinate: Range
    norm: Float[Array, "H N"]
    coldest: Float[Array, "#H N"] | None = None
    hottest: Float[Array, "#H N"] | None = None

    @classmethod
    def of_queries(cls, q: Float[Array, "B T H D"], scoring: Scoring, block: int) -> "Extents":
        """The extents of blocks of queries.

        Args:
            q: of any length.
            scoring: padded to whole blocks.
            block: queries of a block.
        """
        dtype = jnp.promote_types(q.dtype, jnp.float32)
        filled = (scoring.queries.position < EMPTY)[:, None]
        temperature = jnp.ones((), dtype) if scoring.temperature is None else scoring.temperature.astype(dtype)
        heat = jnp.broadcast_to(jnp.abs(temperature), jnp.broadcast_shapes(temperature.shape, (1, 1, filled.shape[-1])))
        norm = (_cut(norms(q, dtype).swapaxes(1, 2), block) * _cut(heat, block)).max((0, 3))
        # Empty slots are neutral; the padding of q is 0 and raises no maximum.
        coldest = _cut(jnp.where(filled, temperature, jnp.inf), block).min((0, 3))
        hottest = _cut(jnp.where(filled, temperature, -jnp.inf), block).max((0, 3))
        norm = norm * abs(scoring.factor(q.shape[-1]))
        return _extents(scoring.queries, dtype, block, norm)._replace(coldest=coldest, hottest=hottest)

    @classmethod
    def of_keys(
        cls,
        q: Float[Array, "B T H D"],
        k: Float[Array, "B S K D"],
        scoring: Scoring,
        block: int,
        v: Float[Array, "B S K D"] | None = None,
    ) -> "Extents":
        """The extents of blocks of keys, each with the head of the queries that read it.

        Args:
            q: of any length; its shape and type count.
            k: of any length.
            scoring: padded to whole blocks.
            block: keys of a block.
            v: the values, if keys do not yet stand for those that are not finite; see `sealed`.
        """
        dtype, known = jnp.promote_types(q.dtype, jnp.float32), scoring.keys.norms
        if known is not None:
            largest = _known_norms(known, k.shape, block).astype(dtype)
        else:
            largest = _cut(norms(k, dtype).swapaxes(1, 2), block).max((0, 3))
            if v is not None:  # NaN proves nothing: a block with a value that is not finite is never left out
                values = _cut(jnp.abs(v).max(3).swapaxes(1, 2), block).max((0, 3))
                largest = jnp.where(jnp.isfinite(values), largest, jnp.nan)
        return _extents(scoring.keys, dtype, block, jnp.repeat(largest, q.shape[2] // k.shape[2], axis=0))

    @property
    def count(self) -> int:
        """N."""
        return self.in_each_row.shape[0]

    def run(self, start: Int[Array, ""], count: int) -> "Extents":
        """The extents of a run of blocks."""
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, count, axis=-1), self)


def norms(x: Float[Array, "... D"], dtype: jnp.dtype) -> Float[Array, "..."]:
    """At least the norms of some vectors, computed in `dtype`."""
    # The square of a number below the root of the smallest normal one is lost; together these are shorter than this.
    lost = math.sqrt(x.shape[-1] * float(jnp.finfo(dtype).tiny))
    return jnp.sqrt(jnp.sum(jnp.square(x.astype(dtype)), -1)) + lost


def _known_norms(known: KeyNorms, shape: tuple[int, ...], block: int) -> Float[Array, "K M"]:
    """The largest norms of blocks of keys, from those of blocks of another size.

    Args:
        known: of all keys.
        shape: of the keys, [B, S, K, D].
        block: keys of a block.

    Raises:
        ValueError: the norms are not those of such keys.
    """
    batch, slots, heads, _ = shape
    blocks = -(-slots // known.block)
    if known.largest.shape != (batch, heads, blocks):
        raise ValueError(f"norms {known.largest.shape} of blocks of {known.block} are not those of keys {shape}")
    # A block overlaps a run of the others, of which the longest key may be its own.
    start = np.arange(-(-slots // block)) * block
    first, last = start // known.block, np.minimum((start + block - 1) // known.block, blocks - 1)
    overlapping = np.minimum(first[:, None] + np.arange((last - first).max() + 1), last[:, None])
    return known.largest.max(0)[:, overlapping].max(2)


def _extents(tokens: Tokens, dtype: jnp.dtype, block: int, norm: Float[Array, "H N"]) -> Extents:
    """The extents of blocks of tokens, padded to whole ones, whose norms are known."""
    position = tokens.position
    filled = position < EMPTY
    in_each_row = filled.reshape(filled.shape[0], -1, block).any(2).all(0)
    document, document_or_pad = (
        None if tokens.segment is None else _numbers(tokens.segment, least, block) for least in (1, 0)
    )
    lowest, highest = _coordinate_range(tokens, dtype, block)
    return Extents(_numbers(position, 0, block), document, document_or_pad, in_each_row, (lowest, highest), norm)


def _numbers(x: Int[Array, "#B T"], least: int, block: int) -> Numbers:
    """The smallest and the largest number of each block, of those from `least` to EMPTY - 1."""
    x = x.reshape(x.shape[0], -1, block)
    counts = (x >= least) & (x < EMPTY)
    return jnp.where(counts, x, EMPTY).min((0, 2)), jnp.where(counts, x, -1).max((0, 2))


def _coordinate_range(tokens: Tokens, dtype: jnp.dtype, block: int) -> Range:
    """Smallest and largest coordinate of each block, leaves [#H, N]."""
    filled = tokens.position[:, None] < EMPTY
    some = _cut(filled, block).any((0, 3))  # [1, N]

    def extreme(pick: Callable, neutral: float, x: Array) -> Array:
        x = pick(_cut(jnp.where(filled, x, neutral), block), (0, 3))
        # A block without tokens has infinities, whose differences are NaN. A token's own NaN stays: no bound leaves it out.
        return jnp.where(some, x, 0)

    own = coordinate(tokens, dtype)
    lowest = jax.tree.map(functools.partial(extreme, jnp.min, jnp.inf), own)
    return lowest, jax.tree.map(functools.partial(extreme, jnp.max, -jnp.inf), own)


def _cut(x: Array, block: int) -> Array:
    """[#B, H, T] -> [#B, H, N, block], with zeros behind the last token."""
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % block)))
    return x.reshape(*x.shape[:2], -1, block)
