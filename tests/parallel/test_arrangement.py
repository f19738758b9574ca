"""Devices of several slices as a mesh: which of its axes cross from one to another."""

import dataclasses

import numpy as np
import pytest

from bam_jax.parallel.arrangement import arrange
from bam_jax.system.errors import UserError

NAMES = ("rows", "parts", "heads", "tokens")


@dataclasses.dataclass(frozen=True)
class Device:
    """A device with the attributes that jax asks for."""

    slice_index: int
    id: int
    platform: str = "gpu"
    device_kind: str = "one that is made up"


@pytest.mark.parametrize(
    ("shape", "slices"),
    [
        ((2, 4, 1, 1), [[[[0]]] * 4, [[[1]]] * 4]),
        ((4, 1, 2, 1), [[[[0], [0]]]] * 2 + [[[[1], [1]]]] * 2),
        ((1, 2, 4, 1), [[[[0]] * 4, [[1]] * 4]]),
        ((1, 1, 2, 4), [[[[0] * 4, [1] * 4]]]),
        ((1, 1, 1, 8), [[[[0, 0, 0, 0, 1, 1, 1, 1]]]]),
    ],
    ids=str,
)
def test_outer_axes_cross_from_slice_to_slice(shape, slices):
    """Each axis may do so, since a mesh that is asked for has to start."""
    devices = [Device(n // 4, n) for n in range(8)]
    mesh = arrange(shape, NAMES, devices[::-1])
    assert np.vectorize(lambda device: device.slice_index)(mesh.devices).tolist() == slices
    assert set(mesh.devices.flat) == set(devices) and mesh.axis_names == NAMES


def test_two_axes_share_the_crossing():
    mesh = arrange((2, 4, 1, 3), NAMES, [Device(n // 6, n) for n in range(24)])
    found = np.vectorize(lambda device: device.slice_index)(mesh.devices)[:, :, 0, 0]
    assert found.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]


def test_slices_of_different_sizes_are_refused():
    uneven = [Device(int(n > 2), n) for n in range(8)]
    with pytest.raises(
        UserError, match="some of the 2 hosts or slices have 3 devices and some 5; start as many on each"
    ):
        arrange((8, 1, 1, 1), NAMES, uneven)
