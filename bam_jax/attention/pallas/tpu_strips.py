"""A relative bias in the tiles of TPU kernels as strips, one value for each diagonal of a tile.

A kernel cannot look up a value in a table. Outside it the bias is evaluated once for each offset, by all that JAX can do. Inside,
the values of a tile's diagonals, a strip, are copied to every sublane and rolled there by one lane more than above: that is the
tile. The transpose sums along diagonals.
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


def slot_shift(scoring: Scoring) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    """Find out whether offsets are those of slots, and how far apart the slots of both sides are.

    position[s] - position[t] = s - t + shift   wherever key slot s is visible from query slot t
    """
    queries, keys = scoring.queries, scoring.keys

    def extent(tokens: Tokens) -> tuple[Array, Array]:
        """By how much positions are ahead of their slots in each row of the batch, at least and at most."""
        ahead = tokens.position - jnp.arange(tokens.position.shape[1])
        filled = tokens.position < EMPTY
        return jnp.where(filled, ahead, EMPTY).min(1), jnp.where(filled, ahead, -EMPTY).max(1)

    (i_low, i_high), (j_low, j_high) = extent(queries), extent(keys)
    some = (i_low <= i_high) & (j_low <= j_high)
    least = jnp.where(some, j_low - i_high, EMPTY).min()
    most = jnp.where(some, j_high - i_low, -EMPTY).max()
    one = least == most
    # Documents of one row begin anew, but a query sees its own alone, in which both sides are ahead of their slots alike.
    return one | ~some.any() | _same_documents(queries, keys), jnp.where(one, least, 0).astype(jnp.int32)


def _same_documents(queries: Tokens, keys: Tokens) -> Array | bool:
    """Tell whether both sides are the same tokens, in documents whose positions ascend by one, padding behind them."""
    if queries.segment is None or keys.segment is None or queries.position.shape[1] != keys.position.shape[1]:
        return False
    before, after = keys.segment[:, :-1], keys.segment[:, 1:]
    follows = keys.position[:, 1:] == keys.position[:, :-1] + 1
    fits = (after == 0) | jnp.where(before == after, follows, (0 < before) & (before < after))
    same = (queries.position == keys.position).all() & (queries.segment == keys.segment).all()
    return same & fits.all()


@dataclasses.dataclass(frozen=True)
class StripTable:
    """The strips of all tiles: tiles on one diagonal share theirs."""

    bias: Bias  # a `Relative` one
    shift: Int[Array, ""]  # of the slots; see `slot_shift`
    heads: int  # of queries
    block_q: int  # queries and keys of a tile
    block_k: int
    query_blocks: int  # number of blocks on either side
    key_blocks: int

    @property
    def step(self) -> int:
        """Slots from one strip to the next."""
        return math.gcd(self.block_q * (self.query_blocks > 1), self.block_k * (self.key_blocks > 1)) or 1

    @property
    def count(self) -> int:
        """G, the number of strips."""
        return self.index(0, self.key_blocks - 1) + 1

    @property
    def width(self) -> int:
        """W, the numbers of a strip: whole groups of 128 lanes."""
        return -(-(self.block_q + self.block_k) // 128) * 128

    def index(self, n: Any, m: Any) -> Any:
        """Number the strip of query block n and key block m."""
        return (self.query_blocks - 1 - n) * (self.block_q // self.step) + m * (self.block_k // self.step)

    def values(self, *, keys_in_sublanes: bool) -> Float[Array, "H G W"]:
        """Evaluate the bias: all strips, for tiles whose sublanes are keys, or queries."""
        return self._evaluate(keys_in_sublanes, self.bias)

    def cotangent(self, d_values: Float[Array, "H G W"]) -> Bias:
        """Give the bias's cotangent from that of `values`, for tiles whose sublanes are keys."""
        _, vjp = jax.vjp(functools.partial(self._evaluate, True), self.bias)
        return vjp(d_values)[0]

    def _evaluate(self, keys_in_sublanes: bool, bias: Bias) -> Array:
        used = self.block_q + self.block_k - 1
        offset = self.shift + 1 - self.query_blocks * self.block_q + jnp.arange((self.count - 1) * self.step + used)
        values = toeplitz.of_offsets(bias, offset.astype(jnp.float32)[None, None])[0].astype(jnp.float32)
        values = jnp.broadcast_to(values, (self.heads, values.shape[1]))
        strip = lambda n: jax.lax.dynamic_slice_in_dim(values, n * self.step, used, axis=1)
        strips = jax.vmap(strip, out_axes=1)(jnp.arange(self.count))
        # Offsets fall from lane to lane where queries lie there.
        strips = strips[..., ::-1] if keys_in_sublanes else strips
        strips = jnp.pad(strips, ((0, 0), (0, 0), (0, self.width - used)))
        # The first sublane's values come first, so that the tile's own roll starts at 0.
        return jnp.roll(strips, 1 - (self.block_k if keys_in_sublanes else self.block_q), axis=2)


@dataclasses.dataclass(frozen=True)
class StripBias(Bias):
    """The bias of one tile inside a kernel, whose coordinates follow one another, whatever they are."""

    values: Any  # reference to the strip, [1, W]
    first: int = 0  # the sublane of the tile at which it starts

    def __call__(self, i: Array, j: Array) -> Array:
        sublanes, lanes = jnp.broadcast_shapes(i.shape, j.shape)
        return tile_of_strip(self.values[...], sublanes, lanes, self.first)

    def cotangents(self, i: Array, j: Array, d_bias: Array) -> tuple:
        """Give none: those of the strip are `diagonal_sums`."""
        return None, None, None


def tile_of_strip(
    strip: Float[Array, "1 W"], sublanes: int, lanes: int, first: int = 0
) -> Float[Array, "sublanes lanes"]:
    """Make a tile of its strip, from some sublane on: tile[r, l] = strip[(l - r - first) mod W]."""
    copies = jnp.broadcast_to(strip, (sublanes, strip.shape[1]))
    return pltpu.roll(copies, first, 1, stride=1, stride_axis=0)[:, :lanes]


def diagonal_sums(tile: Float[Array, "sublanes lanes"], width: int) -> Float[Array, "1 W"]:
    """Sum a tile along its diagonals, the transpose of `tile_of_strip`: strip[w] = sum of tile[r, l], (l - r) mod W = w."""
    sublanes, lanes = tile.shape
    return _fold_diagonals(jnp.concatenate([tile, jnp.zeros((sublanes, width - lanes), tile.dtype)], axis=1))


def _fold_diagonals(x: Array) -> Array:
    """[1, W], the sum over r of x[r, (w + r) mod W]: the lower half of the sublanes is rolled and added to the upper.

    So the rolls are of whole halves, as many as the logarithm of the sublanes, and not one for each sublane.
    """
    sublanes, width = x.shape
    if sublanes % 2:
        return sum((pltpu.roll(x[r : r + 1], width - r, 1) for r in range(1, sublanes)), x[:1])
    half = sublanes // 2
    return _fold_diagonals(x[:half] + pltpu.roll(x[half:], width - half, 1))
