"""The arithmetic of one compute warpgroup of a Hopper GPU: matrix products into its registers, and sums along rows.

A tile has 64 rows of float32 numbers. Its layout, WGMMA, is the layout of tensor-core results: each row lies in the registers
of four neighbouring threads, so a sum along a row takes two shuffles and no shared memory.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from bam_jax.system.platform import platform

TILE_ROWS = 64
"""Rows of a tile: those of one warpgroup's matrix product."""

# Compute warpgroups. With three, a thread would have about 150 registers, and the sums and logits of 128-wide heads take 128.
COMPUTING = 2

# Swizzles, in bytes per row: rows of shared memory are permuted so that the tensor cores read eight rows without bank conflicts.
# The longest one that divides a matrix's width is used, and head widths are padded to a multiple of the shortest.
SWIZZLES = 128, 64, 32

INTERPRETER: Any = plgpu.InterpretGPUParams()
"""How kernels run on a CPU."""

ALONG_ROWS, ALONG_COLUMNS = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
"""The layouts of vectors with one number for each row, and for each column, of a tile."""


def interpreted() -> bool:
    """Whether kernels run in the CPU interpreter, which does not model the threads of a warpgroup."""
    return platform() == "cpu"


def product(a: Any, b: Any) -> Array:
    """Multiply two matrices in shared memory, a b^T, [64, D] and [n, D], summed in float32."""

    def run(total: Any) -> Array:
        plgpu.wgmma(total, a, b.transpose((1, 0)))
        return total[...]  # reading waits for the tensor cores, which run asynchronously

    return pl.run_scoped(run, plgpu.ACC((a.shape[0], b.shape[0]), jnp.float32))


def add_product(total: Array, a: Array, b: Any) -> Array:
    """Add a product to a sum, total [64, D] + a [64, n] b [n, D], with a in registers and b in shared memory.

    The tensor cores accumulate into the registers of `total`, so the product needs no others. The interpreter has no tensor
    cores.
    """
    if interpreted():
        return total + jax.lax.dot(a, b[...], preferred_element_type=jnp.float32)
    return pl.run_state(lambda total: plgpu.wgmma(total, a, b))(plgpu.ACC.init(total))


def spread(x: Array, shape: tuple[int, ...], axis: int = 0) -> Array:
    """Repeat a vector over a tile: [64] along its rows (axis 0), or [n] along its columns (axis 1)."""
    return jax.lax.broadcast_in_dim(x, shape, (axis,))


def constant_vector(value: float) -> Array:
    """A vector with the same number for each row of a tile, [64]."""
    return plgpu.layout_cast(jnp.full((TILE_ROWS,), value, jnp.float32), ALONG_ROWS)


def zeros(width: int) -> Array:
    """The start of a sum, [64, width]."""
    return plgpu.layout_cast(jnp.zeros((TILE_ROWS, width), jnp.float32), plgpu.Layout.WGMMA)


def row_sum(x: Array) -> Array:
    """Sum each row of a tile, [64, n] -> [64]."""
    # x may be a constant, which has no layout yet.
    return plgpu.layout_cast(x, plgpu.Layout.WGMMA).sum(1)


def swizzled(x: Any, row: int) -> tuple:
    """The tiling and swizzle of a matrix in shared memory for the tensor cores, 8 rows of at most 128 bytes at a time.

    The matrix may be sliced only at columns that are multiples of `row`.
    """
    tiled: Any = plgpu.TilingTransform
    swizzle: Any = plgpu.SwizzleTransform
    bytes_of_row = next(n for n in SWIZZLES if row * x.dtype.itemsize % n == 0)
    return tiled((8, bytes_of_row // x.dtype.itemsize)), swizzle(bytes_of_row)


def keep_finite(x: Any) -> None:
    """Replace non-finite numbers by 0 in a matrix [n, D] in shared memory, n a multiple of 64, for the tensor cores."""
    for start in range(0, x.shape[0], TILE_ROWS):
        rows = x.at[pl.ds(start, TILE_ROWS)]
        wide = plgpu.load(rows, layout=plgpu.Layout.WGMMA).astype(jnp.float32)
        rows[...] = jnp.where(jnp.abs(wide) < jnp.inf, wide, 0.0).astype(x.dtype)
    plgpu.commit_smem()


@dataclasses.dataclass(frozen=True)
class Places:
    """Addresses of a tile's numbers in shared memory: row r, column c is at first + r * by_row + c * by_column."""

    first: int
    by_row: int
    by_column: int

    def start(self, thread: Any) -> Any:
        """The address of a thread's first number; tiles of several warpgroups are stacked."""
        lane = thread % 32
        row = thread // 32 * 16 + lane // 4
        return row * self.by_row + lane % 4 * (2 * self.by_column) + self.first

    def steps(self, columns: int) -> tuple[np.ndarray, tuple[int, ...]]:
        """The distance from `start` to each of a thread's pairs, in register order, and the registers' shape."""
        layout = mgpu.WGMMA_LAYOUT
        shape = layout.registers_shape((TILE_ROWS, columns))
        strides = layout.tiling.tile_strides((columns, 1))
        places = [sum(n * stride for n, stride in zip(at, strides, strict=True)) for at in np.ndindex(shape)]
        rows, columns_of = np.divmod(places, columns)
        return rows * self.by_row + columns_of * self.by_column, shape
