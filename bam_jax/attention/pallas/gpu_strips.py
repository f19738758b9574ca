"""The strips of a relative bias in the tiles of GPU kernels; see `strips`.

A strip lies in shared memory, and each thread reads the numbers for its own part of a tile. Neighbouring columns are neighbours
in the strip, and each number of a diagonal is read once.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm
from jaxtyping import Array, Float

from bam_jax.attention.logits import tile
from bam_jax.attention.pallas.gpu_arithmetic import TILE_ROWS, Places, interpreted
from bam_jax.attention.pallas.strips import StripTable
from bam_jax.biases import Bias

_ROWS = 2 * TILE_ROWS  # of the tiles of both compute warpgroups, which read the same strip

_PLACES = Places(_ROWS - 1, -1, 1)  # tile[r, c] = strip[127 - r + c]

# A thread reads aligned pairs of numbers. A pair that starts at an odd index is read at an even index of a second copy, which is
# shifted by one. The copies are offset by half of the 32 banks, so rows with even and with odd indices never share a bank.
_APART = 16

PIECES = 4
"""Rows of a strip in memory: its two copies in sequence, cut into pieces that are short enough for the copy engine."""


@dataclasses.dataclass(frozen=True)
class PairedStrips(StripTable):
    """Strips in the layout that threads read, for tiles with 128 rows of queries or of keys."""

    keys_in_rows: bool

    @property
    def piece(self) -> int:
        """Numbers in a row of memory."""
        return _copy(self.block_q + self.block_k - _ROWS) * 2 // PIECES

    def array(self, columns: Sequence[int]) -> Float[Array, "H G*R piece"]:
        """The strips of the bias, each followed by its derivatives in some columns of the parameter table, all in `PIECES`."""
        slot = np.arange(2 * self.piece, dtype=np.int32)
        place = np.minimum(slot + np.asarray([[0], [1]], np.int32), self.used - 1)  # in each copy
        # Offsets decrease from column to column if keys are in rows.
        place = self.used - 1 - place if self.keys_in_rows else place
        # Gathered instead of sliced and copied, so XLA computes all strips, with their values, in one kernel.
        at = place + self.step * jnp.arange(self.count, dtype=jnp.int32)[:, None, None]
        look_up = lambda x: x.at[:, at].get(mode="promise_in_bounds")
        strips = jnp.stack([look_up(x) for x in (self.values(self.bias), *self._slopes(columns))], 2)
        return jnp.broadcast_to(strips, (self.heads, *strips.shape[1:])).reshape(self.heads, -1, self.piece)

    def spec(self, number: Callable, slopes: int) -> Any:
        """The block spec of a tile's strip, `number(step)`: the bias and this many slopes."""
        return plgpu.BlockSpec(((1 + slopes) * PIECES, self.piece), lambda *step: (number(*step), 0))

    def _slopes(self, columns: Sequence[int]) -> list[Float[Array, "#H O"]]:
        """The derivatives of the bias at all offsets with respect to some parameters of each head."""
        values, vjp = jax.vjp(self.values, self.bias)
        # The transpose of a transpose, because a formula with a custom gradient has no forward-mode derivative.
        _, along = jax.vjp(vjp, jnp.zeros_like(values))
        return [along((self._direction(n),))[0] for n in columns]

    def _direction(self, column: int) -> Bias:
        """The tangent of the bias that is 1 for one parameter of each head, and 0 elsewhere."""
        parameters, leaves = tile.Parameters.of(self.bias), []
        one_hot = iter(jnp.split(jnp.arange(sum(parameters.sizes)) == column, np.cumsum(parameters.sizes)[:-1]))
        for x, size in zip(jax.tree.leaves(self.bias), parameters.sizes, strict=True):
            leaves.append(jnp.broadcast_to(next(one_hot), (jnp.size(x) // size, size)).reshape(x.shape).astype(x.dtype))
        return jax.tree.unflatten(parameters.tree, leaves)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StripBias(Bias):
    """The bias of one tile inside a kernel, whatever its coordinates, and its derivatives in the wanted parameters."""

    values: Float[Array, "64 n"]
    slopes: list[Float[Array, "64 n"]]

    def __call__(self, i: Array, j: Array) -> Array:
        return self.values

    def cotangents(self, i: Array, j: Array, d_bias: Array) -> tuple:
        """The cotangents of the wanted parameters, not summed yet; none for coordinates."""
        return [d_bias * slope for slope in self.slopes], (), ()


def strip_bias(strips: Any, width: int) -> StripBias:
    """The bias of a tile [64, width] from the strips in shared memory; see `PairedStrips.array`."""
    read = _interpreted_tile if interpreted() else _tile
    values, *slopes = (read(strips, part, width) for part in range(strips.shape[0] // PIECES))
    return StripBias(values, slopes)


def _copy(width: int) -> int:
    """Numbers of one copy of a strip."""
    return _ROWS + width + _APART


def first_pair(thread: Any, width: int) -> Any:
    """The index, in the two copies of a strip, of the first pair of a tile that a thread of the compute warpgroups reads.

    An odd index is an even one of the second copy.
    """
    first = _PLACES.start(thread)
    odd = first % 2
    return first - odd + odd * _copy(width)


def _tile(strips: Any, part: int, width: int) -> Float[Array, "64 n"]:
    kind = plgpu.ShapeDtypeStruct((TILE_ROWS, width), jnp.dtype(jnp.float32), layout=plgpu.Layout.WGMMA)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=kind)
    def read(_: Any, strips: Any) -> Any:
        thread = mgpu.FragmentedArray.splat(mgpu.utils.thread_idx(), (), is_signed=False)
        first = first_pair(thread, width).registers.item()
        number = ir.F32Type.get()
        pair = ir.VectorType.get((2,), number)
        start = mgpu.utils.getelementptr(mgpu.utils.memref_ptr(strips), [first], number)
        steps, shape = _PLACES.steps(width)
        begin = part * 2 * _copy(width)
        of_diagonal = {
            step: llvm.load(pair, mgpu.utils.getelementptr(start, [begin + step], number), alignment=8)
            for step in map(int, np.unique(steps))
        }
        registers = np.array([of_diagonal[step] for step in map(int, steps)], object).reshape(shape)
        return mgpu.FragmentedArray(_registers=registers, _layout=mgpu.WGMMA_LAYOUT, _is_signed=None)

    return read(strips)


def _interpreted_tile(strips: Any, part: int, width: int) -> Float[Array, "64 n"]:
    """The replacement of `_tile` in the interpreter, which does not model the threads of a warpgroup."""
    first_copy = strips[pl.ds(part * PIECES, PIECES), :].reshape(-1)
    row = jax.lax.axis_index("group") * TILE_ROWS + jnp.arange(TILE_ROWS)
    return first_copy[_ROWS - 1 - row[:, None] + jnp.arange(width)]
