"""Tile sizes that were measured to be the fastest, by device kind, operand dtype and head width."""

import dataclasses

from jaxtyping import Array, Float

from bam_jax.attention.logits.skipping import Tiling
from bam_jax.system.platform import device_kind

TILES: dict[tuple[str, str, int], tuple[int, int]] = {}
"""Queries and keys per tile, as found by `python -m benchmarks.accelerator`. A chip that is not listed was never measured;
the kernels choose a size there."""


def fill(tiling: Tiling, q: Float[Array, "B T H D"], k: Float[Array, "B S K D"]) -> Tiling:
    """The tiling with the measured size, if it has no size of its own, one is known, and the rows are at least that long."""
    if not TILES or (tiling.block_q, tiling.block_k) != (None, None):
        return tiling
    key = (device_kind(), q.dtype.name, q.shape[-1])
    if key not in TILES or q.shape[1] < TILES[key][0] or k.shape[1] < TILES[key][1]:
        return tiling
    block_q, block_k = TILES[key]
    return dataclasses.replace(tiling, block_q=block_q, block_k=block_k)
