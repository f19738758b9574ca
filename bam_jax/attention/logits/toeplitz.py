"""Biases of offsets in tiles with contiguous positions: one value per diagonal or, for mixtures, per diagonal and query.

On a CPU, evaluating a formula of exponentials and logarithms takes most of the time of attention. A tile of n queries and m keys
has n m pairs, but only n + m - 1 offsets.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bam_jax import biases
from bam_jax.attention.logits.scoring import Scoring, compares_offsets
from bam_jax.attention.logits.tokens import EMPTY
from bam_jax.biases import Bias, Mixture, Uniform
from bam_jax.biases.base import Coordinate


def contiguous(
    scoring: Scoring, padded: Scoring, block_q: int, block_k: int
) -> tuple[Bool[Array, " N"], Bool[Array, " M"]] | None:
    """The blocks of queries and of keys in which positions ascend by one; None: the bias is uniform or not one of offsets."""
    if not compares_offsets(scoring) or isinstance(scoring.bias, Uniform):
        return None

    def ascending(position: Array, block: int) -> Array:
        position = position.reshape(position.shape[0], -1, block)
        first = position[:, :, :1]
        # Empty slots after the tokens are hidden anyway; one at the front would leave the block without a first position.
        follows = (position == first + jnp.arange(block)) | (position == EMPTY)
        return (follows & (first < EMPTY)).all((0, 2))

    return ascending(padded.queries.position, block_q), ascending(padded.keys.position, block_k)


def of_offsets(bias: Bias, offset: Float[Array, "#B 1 n"]) -> Float[Array, "#B #H n"]:
    """A `Relative` bias at some offsets of a key from its query, in tokens."""
    return biases.table(bias, jnp.zeros_like(offset[..., :1]), offset)[:, :, 0]


def table(bias: Bias, i: Coordinate, j: Float[Array, "#B 1 S"]) -> Float[Array, "#B #H T S"]:
    """`biases.table` of a `Relative` bias or a `Mixture` for contiguous positions; only the first of each side is read.

    table[b, h, t, s] = bias_h(0, (j[b, 0] + s) - (i[b, 0] + t))
    """
    if isinstance(bias, Mixture):
        position, weights = i
        return _mixed(bias, position, weights, j)
    queries, keys = i.shape[-1], j.shape[-1]
    offset = j[..., :1] - i[..., :1] + jnp.arange(1 - queries, keys, dtype=i.dtype)
    diagonals = of_offsets(bias, offset)
    diagonals = jax.lax.optimization_barrier(diagonals)  # else XLA evaluates the formula again for each pair
    row = lambda t: jax.lax.dynamic_slice_in_dim(diagonals, queries - 1 - t, keys, axis=-1)
    return jax.vmap(row, out_axes=-2)(jnp.arange(queries))


def _mixed(
    bias: Mixture, i: Float[Array, "#B 1 T"], weights: tuple[Float[Array, "#B #H T"], ...], j: Float[Array, "#B 1 S"]
) -> Float[Array, "#B #H T S"]:
    """`table` of a mixture: one product gives each query's values at all offsets, and each query takes those of its keys."""
    queries, keys = i.shape[-1], j.shape[-1]
    offset = j[..., :1] - i[..., :1] + jnp.arange(1 - queries, keys + 1, dtype=i.dtype)
    profiles = of_offsets(bias.profiles, offset)  # [#B, C, T + S]
    mixed = jnp.stack(jnp.broadcast_arrays(*weights), axis=-1)
    mixed = jnp.broadcast_to(mixed, (max(len(mixed), len(profiles)), *mixed.shape[1:]))
    # One axis of rows if possible: XLA's CPU backend is slow at gradients that contract over several axes.
    rows = mixed.reshape(len(profiles), -1, mixed.shape[-1])
    at_offsets = jnp.matmul(rows, profiles, precision="highest").reshape(*mixed.shape[:2], -1)
    # Query t starts at offset queries - 1 - t. In rows that are one number shorter, every query starts at column 0.
    flat = at_offsets[..., queries - 1 : -1]
    return flat.reshape(*flat.shape[:2], queries, queries + keys - 1)[..., :keys]
