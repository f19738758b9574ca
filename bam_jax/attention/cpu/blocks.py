"""The operands of attention in blocks of queries and of keys, and the logits of a tile, from one block of each.

All products of tiles are defined here, with their layouts: B rows, K key heads, G query heads of each, q queries, s keys.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bam_jax.attention.cpu import repeated
from bam_jax.attention.cpu.repeated import Counted
from bam_jax.attention.logits import skipping, toeplitz
from bam_jax.attention.logits.mask import visible
from bam_jax.attention.logits.scoring import (
    HIDDEN,
    Content,
    Scoring,
    bias_of_pairs,
    compared_coordinates,
    mask_nonfinite,
)
from bam_jax.attention.logits.skipping import Runs, Tiling
from bam_jax.attention.logits.tokens import Tokens
from bam_jax.biases import Mixture
from bam_jax.biases.base import Bias, Coordinate
from bam_jax.system.axes import varying

_TILE = 2**19  # Elements per tile, over all rows and heads. Smaller tiles add overhead, larger ones overflow the cache.
_FEW, _LEAST = 256, 128  # Keys per tile for one query, and the minimum if more would not divide the key-value cache.
# Largest number of elements of a tile per row and head: 512 x 512. Two cores share such products well. With 256 x 256, one core
# does nearly all the work, and a larger tile contains more keys than a local head needs.
_PLANE = 2**18


@dataclasses.dataclass(frozen=True)
class QueryBlock:
    """One block of queries: q [B, K, G, block, D], and temperature [#B, #K, #G, block]."""

    q: Float[Array, "B K G q D"]
    tokens: Tokens
    temperature: Float[Array, "#B #K #G q"] | None


@dataclasses.dataclass(frozen=True)
class KeyBlock:
    """One block of keys and values after `mask_nonfinite`, in the layouts of their products, so no loop transposes tiles."""

    # [B, K, D, s]; for one head of a cache [B, s, 1, D], the cache's own layout
    k: Float[Array, "B K D s"] | Float[Array, "B s 1 D"]
    v: Float[Array, "B K s D"] | Float[Array, "B s 1 D"]  # [B, K, s, D], or the cache's layout
    tokens: Tokens


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The operands padded to whole blocks, and which key blocks each query block needs."""

    q: Array
    k: Array
    v: Array
    scoring: Scoring
    walk: Runs  # [query blocks], the key blocks that some head needs
    of_heads: Runs  # [key heads, query blocks], the key blocks that the query heads of each key head need
    contiguous: tuple[Array, Array] | None  # [query blocks] and [key blocks], whether positions are contiguous
    counted: Counted | None  # the keys that are counted by kind
    block_q: int
    block_k: int
    length: int  # T before padding
    dtype: jnp.dtype
    head: Array | None = None  # the only key head to use of those in k and v; None: all

    @classmethod
    def of(
        cls,
        q: Float[Array, "B T H D"],
        k: Float[Array, "B S K D"],
        v: Float[Array, "B S K D"],
        scoring: Scoring,
        tiling: Tiling,
        count: bool = False,
        decode: bool = False,
    ) -> "Blocks":
        """Cut the operands of `Backend.forward` into blocks."""
        dtype = jnp.promote_types(q.dtype, jnp.float32)
        block_q, block_k = tiling.blocks(*_block_sizes(q.shape, k.shape))
        length = q.shape[1]
        whole = skipping.padded(scoring, block_q, block_k)
        walk = q, k, whole, tiling.skip, block_q, block_k
        counted = None
        if count and repeated.worthwhile(scoring, tiling.skip, length, q.shape[3], block_k):
            counted, needed = repeated.counted(q, k, v, whole, skipping.needed(*walk, v), *walk[3:])
            runs = Runs.of(jnp.broadcast_to(needed, (q.shape[2], *needed.shape[1:])))
        else:
            runs, _ = skipping.runs(*walk, v)
        of_heads = Runs(*(x.reshape(k.shape[2], -1, x.shape[1]) for x in runs)).union(1)
        # Keys and values of a cache pass through `mask_nonfinite` only when they are read.
        k, v = (pad_rows(x, block_k) for x in ((k, v) if decode else mask_nonfinite(k, v)))
        return cls(
            pad_rows(q, block_q),
            k,
            v,
            whole,
            of_heads.union(0),
            of_heads,
            None if decode else toeplitz.contiguous(scoring, whole, block_q, block_k),
            counted,
            block_q,
            block_k,
            length,
            dtype,
        )

    def of_head(self, head: Int[Array, ""], q: Array, scoring: Scoring) -> "Blocks":
        """The blocks of one key head: only this head is read, over the key blocks that it needs itself."""
        walk = Runs(*(x[head] for x in self.of_heads))
        return dataclasses.replace(self, q=q, scoring=scoring, walk=walk, head=head)

    @property
    def content(self) -> Content:
        """The content scores."""
        return self.scoring.content(self.q.shape[-1])

    @property
    def kv_heads(self) -> int:
        """K."""
        return self.k.shape[2] if self.head is None else 1

    @property
    def groups(self) -> int:
        """G, the query heads of a key head."""
        return self.q.shape[2] // self.kv_heads

    @property
    def query_blocks(self) -> int:
        """Number of query blocks."""
        return self.q.shape[1] // self.block_q

    @property
    def key_blocks(self) -> int:
        """Number of key blocks."""
        return self.k.shape[1] // self.block_k

    def over_keys(self, n: Int[Array, ""], body: Callable, start: tuple) -> tuple:
        """Run `body(m, carry) -> carry` over the key blocks that query block `n` needs."""
        if self.key_blocks == 1:
            return body(jnp.zeros((), jnp.int32), start)
        first = self.walk.first[n]
        return jax.lax.fori_loop(first, first + self.walk.length[n], body, start)

    def query_block(self, n: Int[Array, ""]) -> QueryBlock:
        """The n-th block of queries."""
        take = lambda x: block_of(x, -1, n, self.block_q)
        tokens, temperature = jax.tree.map(take, (self.scoring.queries, self.scoring.temperature))
        rows = self.split_heads(block_of(self.q, 1, n, self.block_q))
        if temperature is not None:
            temperature = self.split_scalars(temperature)
        return QueryBlock(rows, tokens, temperature)

    def by_rows(self, x: Float[Array, "B S K D"]) -> Float[Array, "M B K s D"]:
        """Keys or values block by block, for products that sum over keys."""
        x = x.reshape(x.shape[0], -1, self.block_k, *x.shape[2:])
        return x.transpose(1, 0, 3, 2, 4)

    def by_columns(self, x: Float[Array, "B S K D"]) -> Float[Array, "M B K D s"]:
        """Keys or values block by block, for products that sum over the width."""
        return self.by_rows(x).swapaxes(3, 4)

    def from_columns(self, x: Float[Array, "M B K D s"]) -> Float[Array, "B S K D"]:
        """Keys or values from their blocks."""
        x = x.transpose(1, 0, 4, 2, 3)
        return x.reshape(x.shape[0], -1, *x.shape[3:])

    def key_block(self, m: Int[Array, ""], k: Float[Array, "M B K D s"], v: Float[Array, "M B K _ _"]) -> KeyBlock:
        """The m-th block of keys, from all blocks in the layouts of products."""
        return KeyBlock(k[m], v[m], self._key_tokens(m))

    def cached_block(self, m: Int[Array, ""]) -> KeyBlock:
        """The m-th block of keys of the only head, in the cache's layout."""
        assert self.head is not None
        shape = lambda x: (x.shape[0], self.block_k, 1, x.shape[3])
        # All int32: in 64-bit mode, loop counters are int64.
        start = [jnp.asarray(n, jnp.int32) for n in (0, m * self.block_k, self.head, 0)]
        k, v = (jax.lax.dynamic_slice(x, start, shape(x)) for x in (self.k, self.v))
        # As `mask_nonfinite`, with a product, which is much faster on a CPU than a reduction. 0 times inf or NaN is NaN.
        finite = (jnp.einsum("bskd,d->bsk", v * 0, jnp.ones(v.shape[-1:], v.dtype)) == 0)[..., None]
        return KeyBlock(jnp.where(finite, k, jnp.nan), jnp.where(finite, v, 0), self._key_tokens(m))

    def _key_tokens(self, m: Int[Array, ""]) -> Tokens:
        keys = dataclasses.replace(self.scoring.keys, summary=None)
        return jax.tree.map(lambda x: block_of(x, -1, m, self.block_k), keys)

    def logits(
        self, queries: QueryBlock, keys: KeyBlock, at: tuple[Array, Array]
    ) -> tuple[Float[Array, "B K G q s"], Float[Array, "B K G q s"], Float[Array, "B K G q s"]]:
        """The logits of the tile at block indices (n, m), those before temperature and mask, and the content scores."""
        operands = (self.scoring.bias, *self._coordinates(queries, keys))
        scores = self.content.scores(self.products(queries.q, keys.k))
        raw = scores + self._if_straight(at, self._bias_of_offsets, self._bias_of_pairs, *operands)
        logits = raw if queries.temperature is None else raw * queries.temperature[..., None]
        seen = visible(queries.tokens, keys.tokens, self.scoring.mask)
        return jnp.where(seen[:, None, None], logits, jnp.asarray(HIDDEN, self.dtype)), raw, scores

    def dropout_factor(self, queries: QueryBlock, keys: KeyBlock) -> Float[Array, "B K G q s"] | None:
        """The factor of a tile's weights and of their cotangents; None: nothing is dropped."""
        if self.scoring.dropout is None:
            return None
        return self.split_scalars(self.scoring.dropout.factor(queries.tokens, keys.tokens, self.dtype))

    def counted_logits(self, queries: QueryBlock, n: Int[Array, ""]) -> Float[Array, "B K G q C"]:
        """The logits of the C kinds for query block `n`, each plus the logarithm of the number of its keys."""
        assert self.counted is not None
        raw = self.content.scores(self.dot("bkgqd,bskd->bkgqs", queries.q, self.counted.k))
        raw = raw + self.split_scalars(self.counted.level[None, :, n, None, None].astype(self.dtype))
        logits = raw if queries.temperature is None else raw * queries.temperature[..., None]
        count = self.counted.count[:, n]
        many = jnp.log(jnp.maximum(count, 1)).astype(self.dtype)
        logits = logits + many[:, None, None, None]
        return jnp.where((count > 0)[:, None, None, None], logits, jnp.asarray(HIDDEN, self.dtype))

    def bias_cotangents(
        self, queries: QueryBlock, keys: KeyBlock, at: tuple[Array, Array], d_logits: Float[Array, "B K G q s"]
    ) -> tuple[Bias, Coordinate, Coordinate]:
        """Cotangents of the bias's parameters and of both sides' coordinates, summed over a tile."""
        operands = (self.scoring.bias, *self._coordinates(queries, keys))

        def through(formula: Callable, d_logits: Array, *operands: Any) -> tuple:
            bias, vjp = jax.vjp(formula, *operands)
            return vjp(sum_leading(d_logits, bias))

        by_offset = functools.partial(through, self._bias_of_offsets)
        by_pair = functools.partial(through, self._bias_of_pairs)
        d_bias, *d_own = self._if_straight(at, by_offset, by_pair, d_logits, *operands)
        # A coordinate that is the position has no cotangent.
        if isinstance(self.scoring.bias, Mixture):
            d_own[0] = d_own[0][1]
        sides = (queries.tokens, keys.tokens)
        d_i, d_j = (None if side.coordinate is None else d for side, d in zip(sides, d_own, strict=True))
        return d_bias, d_i, d_j

    def _coordinates(self, queries: QueryBlock, keys: KeyBlock) -> tuple[Coordinate, Coordinate]:
        """The coordinates of a tile; positions are counted from those of the tile's queries."""
        scoring = dataclasses.replace(self.scoring, queries=queries.tokens, keys=keys.tokens)
        return compared_coordinates(scoring, self.dtype)

    def _if_straight(self, at: tuple[Array, Array], by_offset: Callable, by_pair: Callable, *operands: Any) -> Any:
        """`by_offset` of the operands if positions are contiguous in both blocks of the tile, else `by_pair`."""
        if self.contiguous is None:
            return by_pair(*operands)
        of_queries, of_keys = self.contiguous
        return jax.lax.cond(of_queries[at[0]] & of_keys[at[1]], by_offset, by_pair, *operands)

    def _bias_of_pairs(self, bias: Bias, i: Coordinate, j: Coordinate) -> Array:
        """The bias of a tile, [#B, #K, #G, q, s]."""
        return varying(self.split_scalars(bias_of_pairs(bias, i, j, self.dtype)), self.q)

    def _bias_of_offsets(self, bias: Bias, i: Coordinate, j: Array) -> Array:
        """The same for a `Relative` bias or a `Mixture` and contiguous positions."""
        return varying(self.split_scalars(toeplitz.table(bias, i, j)), self.q)

    def products(self, q: Float[Array, "B K G q D"], k: Array) -> Float[Array, "B K G q s"]:
        """The products of queries and keys, with k in the layout of `KeyBlock`."""
        if self.head is None:
            return self.dot("bkgqd,bkds->bkgqs", q, k)
        # Axes of length one between other axes would cost a transposed copy of the keys.
        return self.dot("bgd,bsd->bgs", q[:, 0, :, 0], k[:, :, 0])[:, None, :, None]

    def weighted(self, weights: Float[Array, "B K G q s"], v: Array) -> Float[Array, "B K G q D"]:
        """The weighted sums of values, with v in the layout of `KeyBlock`."""
        if self.head is None:
            return self.dot("bkgqs,bksd->bkgqd", weights, v)
        return self.dot("bgs,bsd->bgd", weights[:, 0, :, 0], v[:, :, 0])[:, None, :, None]

    def dot(self, equation: str, a: Array, b: Array) -> Array:
        """A product in the dtype of queries and keys, accumulated in `dtype`."""
        narrow = jnp.promote_types(self.q.dtype, self.k.dtype)
        return jnp.einsum(equation, a.astype(narrow), b.astype(narrow), preferred_element_type=self.dtype)

    def split_heads(self, x: Float[Array, "B q H D"]) -> Float[Array, "B K G q D"]:
        """A block of rows, with heads split into key heads and the query heads of each."""
        x = x.reshape(*x.shape[:2], self.kv_heads, self.groups, x.shape[-1])
        return x.transpose(0, 2, 3, 1, 4)

    def split_scalars(self, x: Float[Array, "#B #H ..."]) -> Float[Array, "#B #K #G ..."]:
        """Numbers per head, with heads split into key heads and the query heads of each."""
        heads = (1, 1) if x.shape[1] == 1 else (self.kv_heads, self.groups)
        return x.reshape(x.shape[0], *heads, *x.shape[2:])

    def join_rows(self, x: Float[Array, "N B K G q D"]) -> Float[Array, "B T H D"]:
        """All rows from those of the query blocks."""
        blocks, batch, _, _, block, width = x.shape
        return x.transpose(1, 0, 4, 2, 3, 5).reshape(batch, blocks * block, -1, width)[:, : self.length]

    def join(self, x: Float[Array, " N #B #H q"]) -> Float[Array, "#B #H T"]:
        """Numbers of all queries from those of the query blocks, with any leading axes."""
        return jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1)[..., : self.length]

    def join_scalars(self, x: Float[Array, "N B K G q"]) -> Float[Array, "B H T"]:
        """Numbers of all rows and heads from those of the query blocks."""
        x = self.join(x)
        return x.reshape(x.shape[0], -1, x.shape[-1])


def block_of(x: Array, axis: int, n: Int[Array, ""], size: int) -> Array:
    """The n-th block of this size along an axis of x, [...]."""
    return jax.lax.dynamic_slice_in_dim(x, n * size, size, axis)


def add_to_block(total: Array, part: Array, axis: int, n: Int[Array, ""]) -> Array:
    """Add `part`, [...], to the n-th block of `total` along an axis."""
    size = part.shape[axis]
    part = part.astype(total.dtype) + block_of(total, axis, n, size)
    return jax.lax.dynamic_update_slice_in_dim(total, part, n * size, axis)


def _block_sizes(q: tuple[int, ...], k: tuple[int, ...]) -> tuple[int, int]:
    """Query and key block sizes: square, with about `_TILE` elements per tile over all rows and heads; longer for few queries."""
    if q[1] == 1:  # small, so a local head reads little extra; if possible a divisor, to avoid a padded copy
        return 1, min(k[1], math.gcd(k[1], _FEW) if k[1] % _LEAST == 0 else _FEW)
    batch = q[0] if isinstance(q[0], int) else 1  # a symbolic batch may have any size
    area = min(max(_TILE // (batch * q[2]), 1), _PLANE)
    side = 2 ** max(round(math.log2(area) / 2), 5)
    block_q = min(q[1], side)
    return block_q, min(k[1], max(side, min(area // block_q, 2048)))


def pad_rows(x: Array, block: int) -> Array:
    """[B, T, H, D] with T padded to whole blocks."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0), (0, 0)))


def sum_leading(x: Array, like: Array) -> Array:
    """Sum over the leading axes that have length 1 in `like`.

    The batch axis is summed by a product with ones, which is many times faster than a reduction in XLA's CPU backend.
    """
    if like.shape[0] == 1 != x.shape[0]:
        x = (jnp.ones((1, x.shape[0]), x.dtype) @ x.reshape(x.shape[0], -1)).reshape(1, *x.shape[1:])
    axes = tuple(n for n in range(1, x.ndim) if like.shape[n] == 1 < x.shape[n])
    return x.sum(axes, keepdims=True).astype(like.dtype)
