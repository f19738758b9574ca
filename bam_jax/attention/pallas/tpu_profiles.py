"""Profiles of the offset, mixed by the query, in the tiles of TPU kernels; see `biases.Mixture` and `strips`.

    b(t, s) = sum_c r_c(t) f_c(s - t)

One product, of a tile's weights and the profiles at its offsets, gives the biases of each query at all of these offsets. Each
query needs the biases at its own keys, so its row is rolled by one lane less than the row above. Gradients roll the rows back.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from bam_jax.attention.pallas.strips import StripTable, parts
from bam_jax.attention.pallas.tpu_layout import multiply
from bam_jax.biases import Bias, Mixture

_LANES = 128
_ROWS = _LANES  # queries per product, because no row may be rolled by more than the lanes of a vector
_SUBLANES = 8
_PACKED = 16  # sublanes of a bfloat16 vector; the number of profiles is padded to a multiple


@dataclasses.dataclass(frozen=True)
class ProfileStrips(StripTable):
    """The profiles of a mixture, the bias of this table, at the offsets of all tiles; `heads` is their number.

    In a tile's strip, the pair of query t and key s is at lane N - t + s, where N is the number of queries, padded to a
    multiple of 128.
    """

    # whether cotangents of logits keep all digits of float32, or only 16 bits, which suit bfloat16 operands
    exact: bool

    @property
    def width(self) -> int:
        """W, the lanes of a strip."""
        return _filled(self.block_q) + _filled(self.block_k)

    @property
    def rows(self) -> int:
        """C, the number of profiles, padded with profiles of zeros."""
        return _filled(self.heads, _PACKED)

    @property
    def sums(self) -> tuple[int, int]:
        """The shape of the cotangent of all profiles, [C, L]; strip n begins at lane n * `step` and overlaps the next."""
        return self.rows, (self.count - 1) * self.step + self.width

    def operand(self, *, keys_in_sublanes: bool) -> Float[Array, "1 1 C G*W"]:
        """All profiles in all strips, for tiles of either orientation."""
        values = self._in_lanes(self.bias)
        strip = lambda n: jax.lax.dynamic_slice_in_dim(values, n * self.step, self.width, axis=1)
        return jax.vmap(strip, out_axes=1)(jnp.arange(self.count)).reshape(1, 1, self.rows, -1)

    def in_tile(self, profiles: Any, weights: Any) -> "MixedBias":
        """The bias of a tile, from references to its strip and its queries' weights."""
        return MixedBias(parts(profiles[...]), parts(weights[...]), self.step, 3 if self.exact else 2)

    def weights(self, mixed: tuple[Float[Array, "#B #H T"], ...]) -> Float[Array, "B H C T"]:
        """The weights of the profiles, stacked for the kernels."""
        stacked = jnp.stack(jnp.broadcast_arrays(*mixed), 2).astype(jnp.float32)
        return jnp.pad(stacked, ((0, 0), (0, 0), (0, self.rows - self.heads), (0, 0)))

    def cotangent(self, d_values: Float[Array, "H C L"]) -> Mixture:
        """The mixture's cotangent from the sums of each query head."""
        _, vjp = jax.vjp(self._in_lanes, self.bias)
        return Mixture(vjp(d_values.sum(0))[0])

    def _in_lanes(self, profiles: Bias) -> Array:
        values = self.values(profiles)
        values = jnp.broadcast_to(values, (self.heads, values.shape[1]))
        first = _filled(self.block_q) - self.block_q + 1  # the lane of the last query and the first key
        behind = self.sums[1] - first - values.shape[1]
        return jnp.pad(values, ((0, self.rows - self.heads), (first, behind)))


@dataclasses.dataclass(frozen=True)
class MixedBias(Bias):
    """The bias of one tile inside a kernel, whose coordinates are contiguous, whatever they are."""

    profiles: list[Float[Array, "C W"]]  # bfloat16 parts, whose sum is exact
    weights: list[Float[Array, "C n"]]
    step: int  # lanes from one strip to the next
    digits: int  # number of parts of the cotangents of logits
    first: int = 0  # the query at which it starts

    def __call__(self, i: Array, j: Array) -> Array:
        tile, turned = jnp.broadcast_shapes(i.shape, j.shape), i.shape[0] == 1 and j.shape[1] == 1
        queries, keys = tile[::-1] if turned else tile
        # All products of two parts that affect the digits of float32, in one product of the matrix unit.
        a, b, c = self.weights
        x, y, z = self.profiles
        weights, profiles = jnp.concatenate([a, a, b, a, b, c]), jnp.concatenate([x, y, x, z, y, x])
        rows, t, end = [], self.first, self.first + queries
        while t < end:
            before = t % _ROWS  # queries of this block of `_ROWS` before the piece
            of_rows = weights[:, t : min(t - before + _ROWS, end)]
            at_offsets = multiply(of_rows, profiles[:, self._offsets(t - before, keys)], 0, 0)
            first = at_offsets.shape[1] - _LANES + before
            rolled = pltpu.roll(at_offsets, first, 1, stride=1, stride_axis=0)[:, :keys]
            rows.append(rolled.T if turned else rolled)
            t += of_rows.shape[1]
        return jnp.concatenate(rows, axis=1 if turned else 0)

    def cotangents(self, i: Array, j: Array, d_bias: Array) -> tuple:
        """None: `add_sums` sums the cotangents."""
        return None, None, None

    def add_sums(self, d_tile: Float[Array, "n m"], d_weights: Any, d_profiles: Any, strip: Any) -> None:
        """Add the cotangents of a tile to those of the weights [C, n] and of all profiles [C, L]; None: not wanted.

        `strip` is the index of the tile's strip.
        """
        queries, keys = d_tile.shape
        weights, profiles = jnp.concatenate(self.weights), jnp.concatenate(self.profiles)
        for t in range(0, queries, _ROWS):
            of_rows, offsets = slice(t, min(t + _ROWS, queries)), self._offsets(t, keys)
            for d in parts(_rolled_back(d_tile[of_rows]), self.digits):
                if d_weights is not None:
                    d_weights[:, of_rows] += _folded(multiply(profiles[:, offsets], d, 1, 1))
                if d_profiles is not None:
                    at = pl.ds(pl.multiple_of(strip * self.step, _LANES) + offsets.start, d.shape[1])
                    d_profiles[:, at] += _folded(multiply(weights[:, of_rows], d, 1, 0))

    def _offsets(self, query: int, keys: int) -> slice:
        """The lanes of a strip that contain the offsets of a block of `_ROWS` queries to the first `keys` keys."""
        start = _filled(self.weights[0].shape[1]) - _ROWS - query
        return slice(start, start + _ROWS + _filled(keys))


def bytes_of_sums(profiles: int, offsets: int) -> int:
    """An estimate of the on-chip memory for the cotangent of all profiles; see `ProfileStrips.sums`."""
    return 4 * _filled(profiles, _PACKED) * offsets


def _rolled_back(rows: Float[Array, "n m"]) -> Float[Array, "n w"]:
    """Move number s of row t to lane 128 - t + s, with zeros elsewhere.

    A row can only be rolled further than the row above. So eight rows at a time are flipped, rolled and flipped back.
    """
    count, keys = rows.shape
    whole = jnp.pad(rows, ((0, _filled(count, _SUBLANES) - count), (0, _filled(keys) - keys + _LANES)))
    eights = []
    for t in range(0, len(whole), _SUBLANES):
        rolled = pltpu.roll(
            _upside_down(whole[t : t + _SUBLANES]), _LANES - _SUBLANES + 1 - t, 1, stride=1, stride_axis=0
        )
        eights.append(_upside_down(rolled))
    return jnp.concatenate(eights)[:count]


def _upside_down(x: Float[Array, "8 n"]) -> Float[Array, "8 n"]:
    return jnp.take_along_axis(x, _SUBLANES - 1 - jax.lax.broadcasted_iota(jnp.int32, x.shape, 0), axis=0)


def _folded(x: Float[Array, "m n"]) -> Float[Array, "C n"]:
    """The sum of the results for the three parts."""
    a, b, c = jnp.split(x, 3)
    return a + b + c


def _filled(n: int, unit: int = _LANES) -> int:
    return -(-n // unit) * unit
