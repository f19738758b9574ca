"""A relative bias in the tiles of TPU kernels as strips, one value for each diagonal of a tile.

A kernel cannot look up a value in a table. Outside it the bias is evaluated once for each offset, by all that JAX can do; inside,
a strip of a tile's values is rolled by one more for each row, and is the tile. Its transpose sums along diagonals.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention.logits import toeplitz
from bam_jax.attention.logits.scoring import Scoring
from bam_jax.attention.logits.tokens import EMPTY, Tokens
from bam_jax.biases import Bias


def shift(scoring: Scoring) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    """Whether offsets are those of slots, and how far apart the slots of both sides are.

    position[s] - position[t] = s - t + shift   wherever key slot s is visible from query slot t
    """
    queries, keys = scoring.queries, scoring.keys

    def extent(tokens: Tokens) -> tuple[Array, Array]:
        ahead = tokens.position - jnp.arange(tokens.position.shape[1])
        filled = tokens.position < EMPTY
        return jnp.where(filled, ahead, EMPTY).min(1), jnp.where(filled, ahead, -EMPTY).max(1)

    (i_low, i_high), (j_low, j_high) = extent(queries), extent(keys)
    some = (i_low <= i_high) & (j_low <= j_high)
    least = jnp.where(some, j_low - i_high, EMPTY).min()
    most = jnp.where(some, j_high - i_low, -EMPTY).max()
    one = least == most
    return one | ~some.any() | _same_documents(queries, keys), jnp.where(one, least, 0).astype(jnp.int32)


def _same_documents(queries: Tokens, keys: Tokens) -> Array | bool:
    """Whether both sides are the same tokens, packed in documents whose positions ascend by one, padding behind them."""
    if queries.segment is None or keys.segment is None or queries.position.shape[1] != keys.position.shape[1]:
        return False
    before, after = keys.segment[:, :-1], keys.segment[:, 1:]
    follows = keys.position[:, 1:] == keys.position[:, :-1] + 1
    fits = (after == 0) | jnp.where(before == after, follows, (0 < before) & (before < after))
    same = (queries.position == keys.position).all() & (queries.segment == keys.segment).all()
    return same & fits.all()


@dataclasses.dataclass(frozen=True)
class Strips:
    """The strips of all tiles: those on one diagonal share theirs.

    Args:
      bias: a `Relative` one.
      shift: of the slots; see the function.
      heads: of queries.
      block_q, block_k: queries and keys of a tile.
      query_blocks, key_blocks: number of blocks on either side.
    """

    bias: Bias
    shift: Int[Array, ""]
    heads: int
    block_q: int
    block_k: int
    query_blocks: int
    key_blocks: int

    @property
    def step(self) -> int:
        """Slots from one strip to the next."""
        return math.gcd(self.block_q * (self.query_blocks > 1), self.block_k * (self.key_blocks > 1)) or 1

    @property
    def count(self) -> int:
        """G, the number of strips."""
        return self.number(0, self.key_blocks - 1) + 1

    @property
    def width(self) -> int:
        """W, the numbers of a strip: whole groups of 128 lanes."""
        return -(-(self.block_q + self.block_k) // 128) * 128

    def number(self, n: Any, m: Any) -> Any:
        """Which strip is that of query block n and key block m."""
        return (self.query_blocks - 1 - n) * (self.block_q // self.step) + m * (self.block_k // self.step)

    def values(self, *, keys_in_rows: bool) -> Float[Array, "H G W"]:
        """All strips, for tiles whose rows are keys, or queries."""
        return self._of(keys_in_rows, self.bias)

    def cotangent(self, d_values: Float[Array, "H G W"]) -> Bias:
        """The bias's cotangent from that of `values`, for tiles whose rows are keys."""
        _, vjp = jax.vjp(functools.partial(self._of, True), self.bias)
        return vjp(d_values)[0]

    def _of(self, keys_in_rows: bool, bias: Bias) -> Array:
        used = self.block_q + self.block_k - 1
        offset = self.shift + 1 - self.query_blocks * self.block_q + jnp.arange((self.count - 1) * self.step + used)
        values = toeplitz.of_offsets(bias, offset.astype(jnp.float32)[None, None])[0].astype(jnp.float32)
        values = jnp.broadcast_to(values, (self.heads, values.shape[1]))
        strip = lambda n: jax.lax.dynamic_slice_in_dim(values, n * self.step, used, axis=1)
        strips = jax.vmap(strip, out_axes=1)(jnp.arange(self.count))
        strips = strips[..., ::-1] if keys_in_rows else strips
        strips = jnp.pad(strips, ((0, 0), (0, 0), (0, self.width - used)))
        return jnp.roll(strips, 1 - (self.block_k if keys_in_rows else self.block_q), axis=2)


@dataclasses.dataclass(frozen=True)
class Strip(Bias):
    """The bias of one tile inside a kernel, from some row on; its coordinates follow one another, whatever they are."""

    values: Any
    row: int = 0

    def __call__(self, i: Array, j: Array) -> Array:
        rows, lanes = jnp.broadcast_shapes(i.shape, j.shape)
        return spread(self.values[...], rows, lanes, self.row)

    def cotangents(self, i: Array, j: Array, d_bias: Array) -> tuple:
        """None: those of the strip are `sums`."""
        return None, None, None


def spread(strip: Float[Array, "1 W"], rows: int, lanes: int, row: int = 0) -> Float[Array, "rows lanes"]:
    """The tile of a strip from some row on: tile[r, l] = strip[(l - r - row) mod W]."""
    tile = jnp.broadcast_to(strip, (rows, strip.shape[1]))
    return pltpu.roll(tile, row, 1, stride=1, stride_axis=0)[:, :lanes]


def sums(tile: Float[Array, "rows lanes"], width: int) -> Float[Array, "1 W"]:
    """Sums along diagonals, the transpose of `spread`: strip[w] = sum of tile[r, l] where (l - r) mod W = w."""
    rows, lanes = tile.shape
    return _folded(jnp.concatenate([tile, jnp.zeros((rows, width - lanes), tile.dtype)], axis=1))


def _folded(x: Array) -> Array:
    """[1, W], the sum over rows r of x[r, (w + r) mod W]: the lower half of the rows is rolled and added to the upper."""
    rows, width = x.shape
    if rows % 2:
        return sum((pltpu.roll(x[r : r + 1], width - r, 1) for r in range(1, rows)), x[:1])
    return _folded(x[: rows // 2] + pltpu.roll(x[rows // 2 :], width - rows // 2, 1))
