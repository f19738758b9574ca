"""The backend for every machine: tile by tile in O(T + S) memory, only the tiles that a query block needs.

Rows are cut into query blocks; each walks over the key blocks between the first and the last one that it needs (`tiles`),
so that causal, windowed, packed and cached rows cost what they show, and local heads what they weigh. The output is kept for
the backward pass as it was summed: where one key has nearly all the weight, gradients of the prior are smaller than what
rounding to bfloat16 loses.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.cpu import one_head, repeated
from bam_jax.attention.cpu.repeated import Counted
from bam_jax.attention.logits import skipping, toeplitz
from bam_jax.attention.logits.mask import visible
from bam_jax.attention.logits.residuals import Gradients, Residuals
from bam_jax.attention.logits.scoring import (
    FLOOR,
    HIDDEN,
    Differentiable,
    Scoring,
    bias_table,
    coordinate,
    sealed,
)
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.logits.tokens import Tokens
from bam_jax.biases.base import Bias, Coordinate
from bam_jax.system.axes import varying

_TABLE = 2**22  # Logits of one head from which on its key heads are computed one by one.
_TILE = 2**19  # Elements of one tile of all rows and heads: more calls cost overhead, larger tiles leave the cache.
_PLANE = 2**16  # Elements of one tile of one row and head, at most: 256 x 256.


def forward(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K D"],
    scoring: Scoring,
    tiling: Tiling,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser by the running softmax; see `Backend.forward`."""
    run = functools.partial(_forward, tiling)
    return one_head.forward(run, q, k, v, scoring) if _many_tiles(q, k) else run(q, k, v, scoring)


def backward(residuals: Residuals, d_out: Float[Array, "B T H D"], tiling: Tiling) -> Gradients:
    """Gradients from the output and its log-normaliser, tile by tile; see `Backend.backward`."""
    run = functools.partial(_backward, tiling)
    many = _many_tiles(residuals.q, residuals.k)
    return one_head.backward(run, residuals, d_out) if many else run(residuals, d_out)


def _many_tiles(q: Array, k: Array) -> bool:
    return k.shape[2] > 1 and q.shape[1] * k.shape[1] > _TABLE


def _forward(tiling: Tiling, q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    cut = _Cut.of(q, k, v, scoring, tiling, count=True)
    rows = (cut.q.shape[0], cut.kv_heads, cut.groups, cut.block_q)

    def query_block(_: None, n: Array) -> tuple[None, tuple[Array, Array]]:
        queries = cut.query_block(n)

        def add(carry: tuple, logits: Array, v: Array) -> tuple:
            out, top, total = carry
            higher = jnp.maximum(top, logits.max(-1))
            weights = jnp.exp(logits - higher[..., None])
            shrink = jnp.exp(top - higher)
            out = out * shrink[..., None] + cut.dot("bkgqs,bskd->bkgqd", weights, v)
            return out, higher, total * shrink + weights.sum(-1)

        def key_block(m: Array, carry: tuple) -> tuple:
            keys = cut.key_block(m)
            return add(carry, cut.logits(queries, keys, (n, m))[0], keys.v)

        zero = jnp.zeros((*rows, q.shape[-1]), cut.dtype)
        start = (zero, jnp.full(rows, FLOOR, cut.dtype), jnp.zeros(rows, cut.dtype))
        if cut.counted is not None:
            start = add(start, cut.counted_logits(queries, n), cut.counted.v)
        out, top, total = cut.over_keys(n, key_block, varying(start, cut.q))
        none = total == 0  # false for NaN, which stays
        whole = jnp.where(none, 1, total)
        return None, (out / whole[..., None], jnp.where(none, HIDDEN, top + jnp.log(whole)))

    _, (out, lse) = _scan(query_block, None, cut.query_blocks)
    return cut.rows(out), cut.row_scalars(lse)


def _backward(tiling: Tiling, residuals: Residuals, d_out: Array) -> Gradients:
    q, k, v, scoring = residuals.q, residuals.k, residuals.v, residuals.scoring
    cut = _Cut.of(q, k, v, scoring, tiling)
    bias, temperature = scoring.bias, scoring.temperature
    lse, delta = (skipping.pad(x, cut.block_q) for x in residuals.row_terms(d_out))
    d_out = _pad(d_out, cut.block_q)
    scale = 1 / math.sqrt(q.shape[-1])
    zeros = functools.partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)))

    def query_block(carry: tuple, n: Array) -> tuple[tuple, tuple]:
        queries = cut.query_block(n)
        d_rows = cut.split_heads(_block(d_out, 1, n, cut.block_q))
        row_lse, row_delta = (cut.split_scalars(_block(x, -1, n, cut.block_q)) for x in (lse, delta))

        def key_block(m: Array, carry: tuple) -> tuple:
            (dk, dv, d_bias, d_j), (dq, d_temperature, d_i) = carry
            keys = cut.key_block(m)
            logits, raw = cut.logits(queries, keys, (n, m))
            weights = jnp.exp(logits - row_lse[..., None])
            d_weights = cut.dot("bkgqd,bskd->bkgqs", d_rows, keys.v)
            d_logits = weights * (d_weights - row_delta[..., None])
            if queries.temperature is not None:
                d_temperature = d_temperature + (d_logits * raw).sum(-1)
                d_logits = d_logits * queries.temperature[..., None]
            dq = dq + cut.dot("bkgqs,bskd->bkgqd", d_logits, keys.k)
            dk = _add(dk, cut.dot("bkgqs,bkgqd->bskd", d_logits, queries.q), 1, m)
            dv = _add(dv, cut.dot("bkgqs,bkgqd->bskd", weights, d_rows), 1, m)
            b, i, j = cut.bias_cotangents(queries, keys, (n, m), d_logits)
            d_bias, d_i = jax.tree.map(jnp.add, (d_bias, d_i), (b, i))
            d_j = jax.tree.map(lambda total, part: _add(total, part, -1, m), d_j, j)
            return (dk, dv, d_bias, d_j), (dq, d_temperature, d_i)

        start = (zeros(queries.q), zeros(row_lse), zeros(queries.tokens.coordinate))
        carry, (dq, d_temperature, d_i) = cut.over_keys(n, key_block, varying((carry, start), cut.q))
        return carry, (dq * scale, d_temperature, d_i)

    start = (zeros(cut.k), zeros(cut.v), zeros(bias), zeros(cut.keys.coordinate))
    (dk, dv, d_bias, d_j), (dq, d_temperature, d_i) = _scan(query_block, varying(start, cut.q), cut.query_blocks)

    narrow = lambda x, like: x.astype(like.dtype)
    own_i, own_j = scoring.queries.coordinate, scoring.keys.coordinate
    parts = Differentiable(
        jax.tree.map(narrow, d_bias, bias),
        None if temperature is None else _sum_to(cut.row_scalars(d_temperature), temperature),
        None if own_i is None else jax.tree.map(lambda x, like: narrow(cut.join(x), like), d_i, own_i),
        None if own_j is None else jax.tree.map(lambda x, like: narrow(x[..., : k.shape[1]], like), d_j, own_j),
    )
    dk, dv = dk[:, : k.shape[1]], dv[:, : k.shape[1]]
    return Gradients(narrow(cut.rows(dq), q), narrow(dk, k), narrow(dv, v), parts.cotangent(scoring))


@dataclasses.dataclass(frozen=True)
class _Queries:
    """One query block: q [B, K, G, block, D] (already divided by sqrt(D)), temperature [#B, K, G, block]."""

    q: Array
    tokens: Tokens
    temperature: Array | None


@dataclasses.dataclass(frozen=True)
class _Keys:
    """One key block: k and v [B, block, K, D]."""

    k: Array
    v: Array
    tokens: Tokens


@dataclasses.dataclass(frozen=True)
class _Cut:
    """The operands padded to whole blocks, and which blocks see which."""

    q: Array
    k: Array
    v: Array
    scoring: Scoring
    first: Array  # [query blocks], first key block that is needed
    last: Array  # [query blocks], one past the last
    straight: tuple[Array, Array] | None  # [query blocks] and [key blocks], where positions follow one another
    counted: Counted | None  # the keys that are counted by kind
    block_q: int
    block_k: int
    length: int  # T before padding
    dtype: jnp.dtype

    @classmethod
    def of(cls, q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling, count: bool = False) -> "_Cut":
        dtype = jnp.promote_types(q.dtype, jnp.float32)
        block_q, block_k = tiling.blocks(*_block_sizes(q.shape, k.shape))
        length = q.shape[1]
        own = lambda tokens: dataclasses.replace(tokens, coordinate=coordinate(tokens, dtype))
        whole = dataclasses.replace(scoring, queries=own(scoring.queries), keys=own(scoring.keys))
        whole = skipping.padded(whole, block_q, block_k)
        # Keys and values are sealed tile by tile, as they are read; no tile of a head with a value of NaN is negligible.
        finite = jnp.repeat(jnp.isfinite(jnp.abs(v).max((0, 1, 3))), q.shape[2] // k.shape[2])
        sound = jnp.where(finite[:, None], q, jnp.nan)
        needed, counted = skipping.needed(sound, k, whole, tiling.skip, block_q, block_k), None
        if count and repeated.worthwhile(scoring, tiling.skip, length, q.shape[3], block_k):
            counted, needed = repeated.counted(q, k, v, whole, needed, tiling.skip, block_q, block_k)
        first, walked = skipping.span(needed.any(0))  # all heads walk over the same blocks
        straight = toeplitz.straight(scoring, whole, block_q, block_k)
        q, k, v = _pad(q, block_q), _pad(k, block_k), _pad(v, block_k)
        rest = {"block_q": block_q, "block_k": block_k, "length": length, "dtype": dtype}
        return cls(q, k, v, whole, first, first + walked, straight, counted, **rest)  # type: ignore[arg-type]

    @property
    def queries(self) -> Tokens:
        return self.scoring.queries

    @property
    def keys(self) -> Tokens:
        return self.scoring.keys

    @property
    def temperature(self) -> Array | None:
        return self.scoring.temperature

    @property
    def kv_heads(self) -> int:
        return self.k.shape[2]

    @property
    def groups(self) -> int:
        return self.q.shape[2] // self.k.shape[2]

    @property
    def query_blocks(self) -> int:
        return self.q.shape[1] // self.block_q

    @property
    def key_blocks(self) -> int:
        return self.k.shape[1] // self.block_k

    def over_keys(self, n: Array, body: Callable, start: tuple) -> tuple:
        """Run `body` over the key blocks that query block `n` can see."""
        if self.key_blocks == 1:
            return body(jnp.zeros((), jnp.int32), start)
        return jax.lax.fori_loop(self.first[n], self.last[n], body, start)

    def query_block(self, n: Array) -> _Queries:
        take = lambda x: _block(x, -1, n, self.block_q)
        tokens = jax.tree.map(take, self.queries)
        rows = self.split_heads(_block(self.q, 1, n, self.block_q)) / math.sqrt(self.q.shape[-1])
        temperature = None if self.temperature is None else self.split_scalars(take(self.temperature))
        return _Queries(rows.astype(self.q.dtype), tokens, temperature)

    def key_block(self, m: Array) -> _Keys:
        tokens = jax.tree.map(lambda x: _block(x, -1, m, self.block_k), self.keys)
        k, v = (_block(x, 1, m, self.block_k) for x in (self.k, self.v))
        return _Keys(*sealed(k, v), tokens)

    def bias(self, bias: Bias, i: Coordinate, j: Coordinate) -> Array:
        """The bias of a tile, [#B, #K, #G, block_q, block_k]."""
        scoring = dataclasses.replace(
            self.scoring,
            bias=bias,
            queries=dataclasses.replace(self.queries, coordinate=i),
            keys=dataclasses.replace(self.keys, coordinate=j),
        )
        return varying(self.split_scalars(bias_table(scoring, self.dtype)), self.q)

    def bias_of_offsets(self, bias: Bias, i: Array, j: Array) -> Array:
        """The same of a `Relative` bias and of positions that follow one another."""
        return varying(self.split_scalars(toeplitz.table(bias, i, j)), self.q)

    def of_tile(self, at: tuple[Array, Array], by_offset: Callable, by_pair: Callable, *operands: Any) -> Any:
        """Whichever of two functions of `operands` is due for the bias of the tile at block numbers (n, m)."""
        if self.straight is None:
            return by_pair(*operands)
        straight = self.straight[0][at[0]] & self.straight[1][at[1]]
        return jax.lax.cond(straight, by_offset, by_pair, *operands)

    def bias_cotangents(self, queries: _Queries, keys: _Keys, at: tuple[Array, Array], d_logits: Array) -> tuple:
        """Cotangents of the bias and of both coordinates of a tile."""
        operands = (self.scoring.bias, queries.tokens.coordinate, keys.tokens.coordinate)

        def of(function: Callable, d_logits: Array, *operands: Any) -> tuple:
            of_tile, vjp = jax.vjp(function, *operands)
            return vjp(_sum_to(d_logits, of_tile))

        by = (functools.partial(of, function) for function in (self.bias_of_offsets, self.bias))
        return self.of_tile(at, *by, d_logits, *operands)

    def logits(self, queries: _Queries, keys: _Keys, at: tuple[Array, Array]) -> tuple[Array, Array]:
        """The logits of a tile [B, K, G, block_q, block_k], and those before temperature and mask."""
        operands = (self.scoring.bias, queries.tokens.coordinate, keys.tokens.coordinate)
        raw = self.dot("bkgqd,bskd->bkgqs", queries.q, keys.k)
        raw = raw + self.of_tile(at, self.bias_of_offsets, self.bias, *operands)
        logits = raw if queries.temperature is None else raw * queries.temperature[..., None]
        seen = visible(queries.tokens, keys.tokens, self.scoring.mask)
        return jnp.where(seen[:, None, None], logits, jnp.asarray(HIDDEN, self.dtype)), raw

    def counted_logits(self, queries: _Queries, n: Array) -> Array:
        """The logits of the kinds that query block `n` counts, each with the logarithm of its number, [B, K, G, block_q, C]."""
        assert self.counted is not None
        raw = self.dot("bkgqd,bskd->bkgqs", queries.q, self.counted.k)
        raw = raw + self.split_scalars(self.counted.level[None, :, n, None, None].astype(self.dtype))
        logits = raw if queries.temperature is None else raw * queries.temperature[..., None]
        count = self.counted.count[:, n]
        many = jnp.log(jnp.maximum(count, 1)).astype(self.dtype)
        logits = logits + many[:, None, None, None]
        return jnp.where((count > 0)[:, None, None, None], logits, jnp.asarray(HIDDEN, self.dtype))

    def dot(self, equation: str, a: Array, b: Array) -> Array:
        """A product in the operands' narrower type, summed in `dtype`."""
        narrow = jnp.promote_types(self.q.dtype, self.k.dtype)
        return jnp.einsum(equation, a.astype(narrow), b.astype(narrow), preferred_element_type=self.dtype)

    def split_heads(self, x: Array) -> Array:
        """[B, block, H, D] -> [B, K, G, block, D]."""
        x = x.reshape(*x.shape[:2], self.kv_heads, self.groups, x.shape[-1])
        return x.transpose(0, 2, 3, 1, 4)

    def split_scalars(self, x: Array) -> Array:
        """[#B, #H, ...] -> [#B, #K, #G, ...]."""
        heads = (1, 1) if x.shape[1] == 1 else (self.kv_heads, self.groups)
        return x.reshape(x.shape[0], *heads, *x.shape[2:])

    def rows(self, x: Array) -> Array:
        """[query blocks, B, K, G, block, D] -> [B, T, H, D]."""
        blocks, batch, _, _, block, width = x.shape
        return x.transpose(1, 0, 4, 2, 3, 5).reshape(batch, blocks * block, -1, width)[:, : self.length]

    def join(self, x: Array) -> Array:
        """[query blocks, #B, #H, block] -> [#B, #H, T]."""
        return jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1)[..., : self.length]

    def row_scalars(self, x: Array) -> Array:
        """[query blocks, B, K, G, block] -> [B, H, T]."""
        x = self.join(x)
        return x.reshape(x.shape[0], -1, x.shape[-1])


def _scan(body: Callable, start: Any, length: int) -> tuple[Any, Any]:
    """`lax.scan` over block numbers, without a loop for one block: XLA copies what a loop carries."""
    if length > 1:
        return jax.lax.scan(body, start, jnp.arange(length))
    carry, out = body(start, jnp.zeros((), jnp.int32))
    return carry, jax.tree.map(lambda x: x[None], out)


def _block_sizes(q: tuple[int, ...], k: tuple[int, ...]) -> tuple[int, int]:
    """Query and key block: square blocks whose tile of all rows and heads has about `_TILE` elements; longer for few queries."""
    area = min(max(_TILE // (q[0] * q[2]), 1), _PLANE)
    side = 2 ** max(round(math.log2(area) / 2), 5)
    block_q = min(q[1], side)
    return block_q, min(k[1], max(side, min(area // block_q, 2048)))


def _pad(x: Array, block: int) -> Array:
    """[B, T, H, D] with T padded to whole blocks."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0), (0, 0)))


def _block(x: Array, axis: int, n: Array, size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, n * size, size, axis)


def _add(total: Array, part: Array, axis: int, n: Array) -> Array:
    """Add `part` to the n-th block of `total`."""
    size = part.shape[axis]
    part = part.astype(total.dtype) + _block(total, axis, n, size)
    return jax.lax.dynamic_update_slice_in_dim(total, part, n * size, axis)


def _sum_to(x: Array, like: Array) -> Array:
    """Sum over the leading axes that have length 1 in `like`.

    The batch axis is summed by a product with ones, which XLA's CPU backend does many times faster than a reduction.
    """
    if like.shape[0] == 1 < x.shape[0]:
        x = (jnp.ones((1, x.shape[0]), x.dtype) @ x.reshape(x.shape[0], -1)).reshape(1, *x.shape[1:])
    axes = tuple(n for n in range(1, x.ndim) if like.shape[n] == 1 < x.shape[n])
    return x.sum(axes, keepdims=True).astype(like.dtype)
