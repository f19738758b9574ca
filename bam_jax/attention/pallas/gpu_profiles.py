"""Profiles of the offset, mixed by the query, in the tiles of GPU kernels; see `biases.Mixture` and `strips`.

    b(t, s) = sum_c r_c(t) f_c(s - t)

The tensor cores multiply the weights of 64 queries by the profiles at all offsets of a tile. Each query needs the results for
its own keys. The products are therefore written to shared memory, and each thread reads them along diagonals. Cotangents take
the reverse path.
"""

import dataclasses
from collections.abc import Callable
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

from bam_jax.attention.pallas.gpu_arithmetic import (
    COMPUTING,
    TILE_ROWS,
    Places,
    add_product,
    interpreted,
    swizzled,
    zeros,
)
from bam_jax.attention.pallas.strips import StripTable, parts
from bam_jax.biases import Bias, Mixture

_FILLED = 16  # profiles that one tensor-core instruction sums over; their number is padded to a multiple


@dataclasses.dataclass(frozen=True)
class ProfileStrips(StripTable):
    """The profiles of a mixture, the bias of this table, at the offsets of all tiles; `heads` is their number."""

    dtype: Any  # of the operands, see `_in_parts`

    @property
    def columns(self) -> int:
        """C, the number of profiles including padding, which is 0 everywhere."""
        return -(-self.heads // _FILLED) * _FILLED

    @property
    def rows(self) -> int:
        """The number of offsets of a tile, plus one."""
        return self.used + 1

    @property
    def bytes(self) -> int:
        """The bytes of one strip."""
        return self.rows * 2 * self.columns * _kind(self.dtype).itemsize

    def array(self, _: Any) -> Float[Array, "1 G*n 2*C"]:
        """All strips, with one offset per row, and two parts side by side."""
        place = np.minimum(np.arange(self.rows, dtype=np.int32), self.used - 1)
        at = place + self.step * jnp.arange(self.count, dtype=jnp.int32)[:, None]
        values = self._of_all(self.bias).at[:, at].get(mode="promise_in_bounds")
        return _in_parts(values.reshape(self.columns, -1).T, self.dtype)[None]

    def spec(self, number: Callable, _: int) -> Any:
        """The block spec of a tile's strip, `number(step)`."""
        strip = jax.ShapeDtypeStruct((self.rows, 2 * self.columns), _kind(self.dtype))
        return plgpu.BlockSpec(strip.shape, lambda *step: (number(*step), 0), transforms=swizzled(strip, self.columns))

    def cotangent(self, d_values: Float[Array, "C O"]) -> Mixture:
        """The mixture's cotangent from the cotangents of all profiles."""
        _, vjp = jax.vjp(self._of_all, self.bias)
        return Mixture(vjp(d_values)[0])

    def _of_all(self, profiles: Bias) -> Float[Array, "C O"]:
        values = self.values(profiles)
        return _filled(jnp.broadcast_to(values, (self.heads, values.shape[1])))


def stack_weights(mixed: tuple[Float[Array, "#B #H T"], ...], dtype: Any) -> Float[Array, "#B T #H 2*C"]:
    """The weights of the profiles in the layout of the kernels, for operands of this dtype."""
    stacked = _filled(jnp.stack(jnp.broadcast_arrays(*mixed)).astype(jnp.float32))
    return _in_parts(jnp.moveaxis(stacked, (0, 2), (3, 2)), dtype)


def weights_cotangent(number: int, made: Float[Array, "B T H 2*C"]) -> list[Float[Array, "B H T"]]:
    """The cotangent of each profile's weights, from products with both parts of the profiles."""
    return [*jnp.moveaxis(sum(jnp.split(made, 2, axis=3)), (3, 2), (0, 2))[:number]]


def strip_sums(made: Float[Array, "G 256 2*C"]) -> Float[Array, "C G n"]:
    """The cotangent of all strips from each warpgroup's cotangents at its offsets, times both parts of the weights."""
    of_all = jnp.moveaxis(sum(jnp.split(made, 2, axis=2)), 2, 0)
    later, earlier = jnp.split(of_all, COMPUTING, axis=2)  # see `MixedTile.of`
    shifted = lambda x, *by: jnp.pad(x, ((0, 0), (0, 0), by))
    return (shifted(earlier, 0, TILE_ROWS) + shifted(later, TILE_ROWS, 0))[..., :-1]


def _filled(x: Float[Array, "c ..."]) -> Float[Array, "C ..."]:
    """Profiles, or their weights, padded with zeros to a whole number of instructions."""
    return jnp.pad(x, [(0, -len(x) % _FILLED), *[(0, 0)] * (x.ndim - 1)])


def _pitch(columns: int) -> int:
    """Numbers in a row of shared memory: 64 + `columns` offsets and 8 more, so that simultaneous writes use different banks."""
    return TILE_ROWS + columns + 8


def passage_size(columns: int) -> int:
    """Numbers of shared memory that a warpgroup needs to move its tiles with this many columns."""
    # Cotangents, of 64 columns, lie between the zeros of their row and those of the next row. The last row needs zeros after it.
    behind = TILE_ROWS if columns == TILE_ROWS else 0
    return -(-(TILE_ROWS * _pitch(columns) + behind) // 128) * 128


def passages(columns: int) -> Any:
    """The shared memory through which the tiles of all compute warpgroups are moved."""
    return plgpu.SMEM((COMPUTING, passage_size(columns)), jnp.float32)


def clear(passage: Any) -> None:
    """Fill one warpgroup's memory with zeros before the first tile: the gaps between rows are read as 0 and never written."""
    zero = jnp.zeros(passage.shape, jnp.float32)
    passage[...] = plgpu.layout_cast(zero, plgpu.Layout.WG_STRIDED(passage.shape, 1))
    plgpu.commit_smem()  # waits for the other threads of the warpgroup, too


def _kind(dtype: Any) -> jnp.dtype:
    """The dtype of parts, whose products must have the range of float32."""
    return jnp.dtype(jnp.float32 if dtype == jnp.float32 else jnp.bfloat16)


def _in_parts(x: Float[Array, "... C"], dtype: Any) -> Float[Array, "... 2*C"]:
    """Numbers of 16 bits in two parts; for float32 operands, whose products the interpreter computes, unsplit."""
    exact = _kind(dtype) == jnp.float32
    return jnp.concatenate([x, jnp.zeros_like(x)] if exact else parts(x, 2), axis=-1)


@dataclasses.dataclass(frozen=True)
class MixedTile:
    """The operands of one compute warpgroup for a tile's bias, in shared memory."""

    weights: Any  # [64, 2 C], of the tile's queries
    profiles: Any  # [64 + n, 2 C]; the offset of the first query and the first key is row 63
    passage: Any  # `passages` of this warpgroup
    keys_in_rows: bool
    near: Array | bool  # whether the profiles are not all 0 here

    @classmethod
    def of(
        cls, weights: Any, strip: Any, passages: Any, group: Array, keys_in_rows: bool, near: Array | bool = True
    ) -> "MixedTile":
        """The operands of one compute warpgroup, from the strip of both."""
        # The first warpgroup has the first queries and the last offsets or, if keys are in rows, the first keys and offsets.
        first = group if keys_in_rows else COMPUTING - 1 - group
        profiles = strip.at[pl.ds(first * TILE_ROWS, strip.shape[0] - TILE_ROWS)]
        return cls(weights, profiles, passages.at[group], keys_in_rows, near)

    def values(self) -> Float[Array, "64 n"]:
        """The tile's biases; n is 64 if keys are in rows."""
        columns = self.profiles.shape[0] - TILE_ROWS
        near = lambda: _move_to_tile(self.passage, self._products(), columns, self.keys_in_rows)
        return self._where_near(near, lambda: zeros(columns))

    def add_to_weights(self, total: Array, d_tile: Float[Array, "64 64"]) -> Float[Array, "64 2*C"]:
        """Add a tile's cotangent, times both parts of the profiles, to the weights' cotangent."""

        def added() -> Array:
            result = total
            for n, half in enumerate(self._offset_halves(d_tile, False)):
                result = add_product(result, half, self.profiles.at[pl.ds(n * TILE_ROWS, TILE_ROWS)])
            return result

        return self._where_near(added, lambda: total)

    def add_to_profiles(self, totals: tuple[Array, Array], d_tile: Float[Array, "64 64"]) -> tuple[Array, Array]:
        """Add a tile's cotangent, times both parts of the weights, to those of the profiles at its first and last 64 offsets."""

        def added() -> tuple:
            halves = self._offset_halves(d_tile, True)
            return tuple(add_product(total, half, self.weights) for total, half in zip(totals, halves, strict=True))

        return self._where_near(added, lambda: totals)

    def _where_near(self, near: Callable, far: Callable) -> Any:
        return near() if self.near is True else jax.lax.cond(self.near, near, far)

    def _products(self) -> Float[Array, "64 64+n"]:
        """The biases of each query at all offsets: all products of parts except small times small."""
        columns = self.weights.shape[1] // 2
        large, small = (pl.ds(n * columns, columns) for n in range(2))

        def run(total: Any) -> Array:
            for a, b in ((large, large), (large, small), (small, large)):
                plgpu.wgmma(total, self.weights.at[:, a], self.profiles.at[:, b].transpose((1, 0)))
            return total[...]

        return pl.run_scoped(run, plgpu.ACC((TILE_ROWS, self.profiles.shape[0]), jnp.float32))

    def _offset_halves(self, d_tile: Array, offsets_in_rows: bool) -> list[Float[Array, "64 64"]]:
        """A tile with queries in rows, its numbers moved to their offsets: the first 64 offsets, and the rest.

        They are rounded in the same way as cotangents of logits before the product with keys.
        """
        return [x.astype(self.weights.dtype) for x in _move_to_offsets(self.passage, d_tile, offsets_in_rows)]


@dataclasses.dataclass(frozen=True)
class Passing:
    """The addresses where tiles are written one after another, and those from which tiles are then read."""

    written: tuple[Places, ...]
    read: tuple[Places, ...]
    across_warps: bool  # whether a warp reads data that another warp may have written, now or earlier


def to_tile(columns: int, keys_in_rows: bool) -> Passing:
    """Write the biases of queries at all offsets, and read those of a tile.

    Key s of query t is at offset number 63 - t + s of its row.
    """
    pitch = _pitch(columns)
    read = (1, pitch - 1) if keys_in_rows else (pitch - 1, 1)
    # If queries are in rows, threads read rows that four threads of their own warp have written.
    return Passing((Places(0, pitch, 1),), (Places(TILE_ROWS - 1, *read),), keys_in_rows)


def to_offsets(offsets_in_rows: bool) -> Passing:
    """Write zeros and, after them, a tile's cotangents, and read the cotangents at each half of its offsets."""
    pitch = _pitch(TILE_ROWS)
    read = (1, pitch + 1) if offsets_in_rows else (pitch + 1, 1)
    halves = Places(1, *read), Places(1 + TILE_ROWS, *read)
    # Each row is read together with the start of the next one.
    return Passing((Places(0, pitch, 1), Places(TILE_ROWS, pitch, 1)), halves, True)


def _fragment(columns: int) -> Any:
    return plgpu.ShapeDtypeStruct((TILE_ROWS, columns), jnp.dtype(jnp.float32), layout=plgpu.Layout.WGMMA)


def _move_to_tile(passage: Any, at_offsets: Array, columns: int, keys_in_rows: bool) -> Float[Array, "64 n"]:
    """Move the biases at all offsets to their pairs in the tile."""
    if interpreted():
        query, key = jnp.arange(TILE_ROWS)[:, None], jnp.arange(columns)
        made = jnp.take_along_axis(at_offsets, TILE_ROWS - 1 - query + key, axis=1)
        return made.T if keys_in_rows else made

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA), return_type=_fragment(columns))
    def move(_: Any, passage: Any, at_offsets: Any) -> Any:
        return _Memory.of(passage).move(to_tile(columns, keys_in_rows), (at_offsets,), columns)[0]

    return move(passage, at_offsets)


def _move_to_offsets(passage: Any, tile: Float[Array, "64 64"], offsets_in_rows: bool) -> list[Float[Array, "64 64"]]:
    """Move a tile's numbers to their offsets, in two halves."""
    if interpreted():
        query, offset = jnp.arange(TILE_ROWS)[:, None], jnp.arange(2 * TILE_ROWS)
        key = offset - (TILE_ROWS - 1) + query
        made = jnp.take_along_axis(tile, jnp.clip(key, 0, TILE_ROWS - 1), axis=1)
        halves = jnp.split(jnp.where((key >= 0) & (key < TILE_ROWS), made, 0), 2, axis=1)
        return [half.T for half in halves] if offsets_in_rows else halves

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA), return_type=[_fragment(TILE_ROWS)] * 2)
    def move(_: Any, passage: Any, tile: Any) -> Any:
        zeros = mgpu.FragmentedArray.splat(mgpu.c(0.0, ir.F32Type.get()), tile.shape, mgpu.WGMMA_LAYOUT)
        return _Memory.of(passage).move(to_offsets(offsets_in_rows), (zeros, tile), TILE_ROWS)

    return move(passage, tile)


@dataclasses.dataclass(frozen=True)
class _Memory:
    """One warpgroup's shared memory, at compile time."""

    start: Any  # pointer
    thread: Any

    @classmethod
    def of(cls, passage: Any) -> "_Memory":
        thread = mgpu.FragmentedArray.splat(mgpu.utils.thread_idx(), (), is_signed=False)
        return cls(mgpu.utils.memref_ptr(passage), thread % 128)

    def move(self, passing: Passing, tiles: tuple, columns: int) -> list:
        """Write tiles, wait for the threads that write what this one reads, and read tiles of this many columns."""
        for places, x in zip(passing.written, tiles, strict=True):
            self._write(places, x)
        wait = mgpu.utils.warpgroup_barrier if passing.across_warps else mgpu.utils.warp_barrier
        wait()
        made = [self._read(places, columns) for places in passing.read]
        wait()  # before the next write
        return made

    def _write(self, places: Places, x: Any) -> None:
        begin, (steps, _) = self._begin(places), places.steps(x.shape[1])
        for register, step in zip(x.registers.flat, map(int, steps), strict=True):
            llvm.store(register, self._at(begin, step), alignment=8)

    def _read(self, places: Places, columns: int) -> Any:
        number, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
        pair = ir.VectorType.get((2,), number)
        begin, (steps, shape) = self._begin(places), places.steps(columns)
        registers = []
        for step in map(int, steps):
            register = llvm.mlir_undef(pair)
            for n in range(2):
                value = llvm.load(number, self._at(begin, step + n * places.by_column), alignment=4)
                register = llvm.insertelement(register, value, mgpu.c(n, i32))
            registers.append(register)
        held = np.array(registers, object).reshape(shape)
        return mgpu.FragmentedArray(_registers=held, _layout=mgpu.WGMMA_LAYOUT, _is_signed=None)

    def _begin(self, places: Places) -> Any:
        return self._at(self.start, places.start(self.thread).registers.item())

    def _at(self, pointer: Any, place: Any) -> Any:
        return mgpu.utils.getelementptr(pointer, [place], ir.F32Type.get())
