"""Sizes of tiles that were measured to be the fastest, by the kind of device, the type of the operands and the head width."""

import dataclasses

from jaxtyping import Array, Float

from bam_jax.attention.logits.skipping import Tiling
from bam_jax.system.platform import device_kind

TILES: dict[tuple[str, str, int], tuple[int, int]] = {}
"""Queries and keys of a tile, as `python -m benchmarks.accelerator` finds them; a chip that is not here was never
measured, and its kernels choose for themselves."""


def fill(tiling: Tiling, q: Float[Array, "B T H D"], k: Float[Array, "B S K D"]) -> Tiling:
    """The tiling with the measured size, where it has none of its own, one is known, and the rows are as long."""
    if not TILES or (tiling.block_q, tiling.block_k) != (None, None):
        return tiling
    key = (device_kind(), q.dtype.name, q.shape[-1])
    if key not in TILES or q.shape[1] < TILES[key][0] or k.shape[1] < TILES[key][1]:
        return tiling
    block_q, block_k = TILES[key]
    return dataclasses.replace(tiling, block_q=block_q, block_k=block_k)
