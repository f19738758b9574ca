"""The ceilings of a chip: operations a second of its matrix products, bytes a second of its memory."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bam_jax.models.counts import BANDWIDTHS
from bam_jax.models.counts import CHIPS as PEAKS

KINDS = {
    "NVIDIA RTX A6000": "a6000",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5p": "v5p",
    "TPU v5": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
"""The names of `bam_jax.models.counts.CHIPS` by that which jax has for a device."""


class Ceilings(NamedTuple):
    """The most that a chip can do.

    Args:
        operations: floating-point operations a second, in bfloat16 on accelerators.
        bandwidth: bytes a second, those read and those written counted both.
        source: where the numbers come from.
    """

    operations: float
    bandwidth: float
    source: str


def published(device_kind: str) -> Ceilings | None:
    """The ceilings by the makers' data sheets; None of a device that is not known here.

    Args:
        device_kind: the name that jax has for it.
    """
    if device_kind not in KINDS:
        return None
    chip = KINDS[device_kind]
    return Ceilings(PEAKS[chip], BANDWIDTHS[chip], "data sheet")


def ceilings(measured: Mapping[str, Any], device_kind: str) -> Ceilings:
    """The ceilings that shares are of: by the data sheet or, of a chip that is not known here, as measured.

    Args:
        measured: the outcome of `measure`.
        device_kind: the name that jax has for the device.
    """
    known = published(device_kind)
    return known or Ceilings(measured["operations_per_second"], measured["bytes_per_second"], "measured")


def measure(side: int, copied: int, dtype: str) -> dict[str, Any]:
    """Measure both ceilings: a product of two square matrices, and a copy within the device's memory.

    Args:
        side: of the matrices.
        copied: bytes that are read, and written again.
        dtype: of the matrices.
    """
    # Random numbers: a chip multiplies zeros faster, since fewer of its wires change.
    a, b = (jax.random.normal(jax.random.key(n), (side, side), dtype) for n in (0, 1))
    x = jax.random.normal(jax.random.key(2), (copied // 4,), jnp.float32)
    multiply, turn = jax.jit(jnp.matmul), jax.jit(jnp.negative, donate_argnums=0)
    product = _seconds(lambda last: multiply(a, b), a)
    copy = _seconds(turn, x)  # in place: to ask a system for new memory takes longer than to write it
    operations, bandwidth = 2 * side**3 / product, 2 * copied / copy
    return {
        "status": "measured",
        "operations_per_second": operations,
        "bytes_per_second": bandwidth,
        "dtype": dtype,
        "side": side,
        "copied_bytes": copied,
        "summary": f"{operations / 1e12:.3g} Tflop/s in {dtype}, {bandwidth / 1e9:.4g} GB/s",
    }


def _seconds(function: Callable[[jax.Array], jax.Array], x: jax.Array, repetitions: int = 10) -> float:
    """The median time of a call on the result of the one before, after one that compiles and fills caches."""
    x = jax.block_until_ready(function(x))
    taken = []
    for _ in range(repetitions):
        started = time.perf_counter()
        x = jax.block_until_ready(function(x))
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
