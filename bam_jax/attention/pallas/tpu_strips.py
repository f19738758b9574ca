"""The strips of a relative bias in the tiles of TPU kernels; see `strips`.

A strip, the values of a tile's diagonals, is copied to every sublane, and each sublane is rolled by one lane more than the one
above. The result is the tile. The transpose sums along diagonals.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from bam_jax.attention.pallas.strips import StripTable
from bam_jax.biases import Bias


@dataclasses.dataclass(frozen=True)
class RolledStrips(StripTable):
    """Strips along the lanes."""

    @property
    def width(self) -> int:
        """W, the length of a strip, a multiple of 128 lanes."""
        return -(-(self.block_q + self.block_k) // 128) * 128

    def operand(self, *, keys_in_sublanes: bool) -> Float[Array, "1 H 1 G*W"]:
        """The bias in all strips, for tiles whose sublanes are keys, or queries."""
        return self._evaluate(keys_in_sublanes, self.bias).reshape(1, self.heads, 1, -1)

    @property
    def sums(self) -> tuple[int, int]:
        """The shape of the cotangent of a head's strips."""
        return self.count, self.width

    def cotangent(self, d_values: Float[Array, "H G W"]) -> Bias:
        """The bias's cotangent from that of its strips, for tiles whose sublanes are keys."""
        _, vjp = jax.vjp(functools.partial(self._evaluate, True), self.bias)
        return vjp(d_values)[0]

    def in_tile(self, strip: Any, _: None) -> "StripBias":
        """The bias of a tile from the reference to its strip, which has the layout for the tile's orientation."""
        return StripBias(strip)

    def _evaluate(self, keys_in_sublanes: bool, bias: Bias) -> Array:
        strips = self.strips(bias)
        # Offsets decrease from lane to lane if queries are in the lanes.
        strips = strips[..., ::-1] if keys_in_sublanes else strips
        strips = jnp.pad(strips, ((0, 0), (0, 0), (0, self.width - self.used)))
        # The first sublane's values come first, so that the tile's own roll starts at 0.
        return jnp.roll(strips, 1 - (self.block_k if keys_in_sublanes else self.block_q), axis=2)


@dataclasses.dataclass(frozen=True)
class StripBias(Bias):
    """The bias of one tile inside a kernel, whose coordinates are contiguous, whatever they are."""

    values: Any  # reference to the strip, [1, W]
    first: int = 0  # the sublane of the tile at which it starts

    def __call__(self, i: Array, j: Array) -> Array:
        sublanes, lanes = jnp.broadcast_shapes(i.shape, j.shape)
        return tile_of_strip(self.values[...], sublanes, lanes, self.first)

    def cotangents(self, i: Array, j: Array, d_bias: Array) -> tuple:
        """None: `add_sums` sums the cotangents of the strip."""
        return None, None, None

    def add_sums(self, d_tile: Float[Array, "m n"], _: None, d_strips: Any, strip: Any) -> None:
        """Add the cotangents of a tile to those of all strips [G, W]; `strip` is the index of the tile's."""
        d_strips[pl.ds(strip, 1)] += diagonal_sums(d_tile, d_strips.shape[1])


def tile_of_strip(
    strip: Float[Array, "1 W"], sublanes: int, lanes: int, first: int = 0
) -> Float[Array, "sublanes lanes"]:
    """The tile of a strip, from sublane `first` on: tile[r, l] = strip[(l - r - first) mod W]."""
    copies = jnp.broadcast_to(strip, (sublanes, strip.shape[1]))
    return pltpu.roll(copies, first, 1, stride=1, stride_axis=0)[:, :lanes]


def diagonal_sums(tile: Float[Array, "sublanes lanes"], width: int) -> Float[Array, "1 W"]:
    """Sum a tile along its diagonals, the transpose of `tile_of_strip`: strip[w] = sum of tile[r, l], (l - r) mod W = w."""
    sublanes, lanes = tile.shape
    return _fold_diagonals(jnp.concatenate([tile, jnp.zeros((sublanes, width - lanes), tile.dtype)], axis=1))


def _fold_diagonals(x: Array) -> Array:
    """[1, W], the sum over r of x[r, (w + r) mod W], by rolling the lower half of the sublanes and adding it to the upper half.

    This takes log2(sublanes) rolls of whole halves instead of one roll per sublane.
    """
    sublanes, width = x.shape
    if sublanes % 2:
        return sum((pltpu.roll(x[r : r + 1], width - r, 1) for r in range(1, sublanes)), x[:1])
    half = sublanes // 2
    return _fold_diagonals(x[:half] + pltpu.roll(x[half:], width - half, 1))
