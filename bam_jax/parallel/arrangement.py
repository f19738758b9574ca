"""Devices arranged as a mesh, be they of one slice or of several.

JAX counts as a slice what fast links join: a slice of TPUs, and each host of CPUs or GPUs. Its own `make_mesh` refuses several.
"""

import math
from collections import Counter
from collections.abc import Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bam_jax.system.errors import UserError


def arrange(shape: Sequence[int], names: Sequence[str], devices: Sequence[jax.Device]) -> Mesh:
    """The mesh of a shape, with axes that the compiler shards along; outer axes are the first to cross from slice to slice.

    Args:
        shape: devices along each axis; those that send least stand first.
        names: of the axes.
        devices: as many as the shape has places.

    Raises:
        UserError: the slices have different numbers of devices.
    """
    types = (AxisType.Auto,) * len(names)
    slices = Counter(getattr(device, "slice_index", 0) for device in devices)
    if len(slices) == 1:
        return jax.make_mesh(shape, names, axis_types=types, devices=devices)
    sizes = sorted(set(slices.values()))
    if len(sizes) > 1:
        raise UserError(
            f"some of the {len(slices)} hosts or slices have {sizes[0]} devices and some {sizes[-1]}; start as many on each"
        )
    across, left = list[int](), len(slices)  # `left` comes to 1, since the slices divide the devices
    for size in shape:
        across.append(math.gcd(size, left))
        left //= across[-1]
    within = [size // count for size, count in zip(shape, across, strict=True)]
    placed = mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    return Mesh(placed, names, axis_types=types)
