"""The layout of arrays in TPU kernels, and the few operations that depend on it.

A vector register holds 8 sublanes of 128 lanes. The held side of a tile lies along the lanes. Its running sums and maxima are
then single rows of lanes, and reducing over the other side adds whole registers instead of lanes within a register.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention.logits import skipping

# The number of keys, or queries, of a tile that are computed at once. Smaller pieces spill fewer registers, but take more
# instructions in every kernel on a v6e and in most kernels on a v5e (benchmarks/tpu_static.py).
_KEYS_AT_ONCE, _QUERIES_AT_ONCE = 256, 512


def sequence_last(x: Float[Array, "B T H D"], block: int) -> Float[Array, "B H D T2"]:
    """Lay an operand out for the kernels: [B, T, H, D] -> [B, H, D, T], T padded to whole blocks."""
    return skipping.pad(x.transpose(0, 2, 3, 1), block)


def sequence_second(x: Float[Array, "B H D T2"], length: int) -> Float[Array, "B T H D"]:
    """Undo `sequence_last`: [B, H, D, T or more] -> [B, length, H, D]."""
    return x[..., :length].transpose(0, 3, 1, 2)


def dimension_semantics(whole_outputs: tuple) -> Any:
    """Which axes of the grid may be distributed over the cores of a chip.

    The last axis is summed over sequentially. Blocks that add to the same whole output must stay on one core.
    """
    held_blocks = "arbitrary" if jax.tree.leaves(whole_outputs) else "parallel"
    return "parallel", "parallel", held_blocks, "arbitrary"


def key_pieces(length: int) -> list[slice]:
    """Cut a block of keys into pieces that are computed one after another."""
    return _pieces(length, _KEYS_AT_ONCE)


def query_pieces(length: int) -> list[slice]:
    """Cut a block of queries into pieces that are computed one after another."""
    return _pieces(length, _QUERIES_AT_ONCE)


def _pieces(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def take_piece(refs: Any, piece: slice) -> Any:
    """Take a piece of references to vectors or matrices [n, length], without reading it yet."""
    return jax.tree.map(lambda ref: ref.at[:, piece], refs)


def along_lanes(refs: Any) -> Any:
    """Read vectors [1, n] as rows."""
    return jax.tree.map(lambda ref: ref[...], refs)


def along_sublanes(refs: Any) -> Any:
    """Read vectors [1, n] as columns [n, 1], as the streamed side needs."""
    return jax.tree.map(lambda ref: ref[0][:, None], refs)


def multiply(a: Any, b: Any, axis_a: int, axis_b: int) -> Array:
    """Multiply two matrices [n, m], contracting one axis of each, in the dtype of the first.

    The matrix unit is fast for two-byte operands, and accumulates their products in float32.
    """
    a, b = a[...], b[...]
    axes = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b.astype(a.dtype), axes, preferred_element_type=jnp.float32)
