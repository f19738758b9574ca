"""The memory of this process, and the speed of its device."""

import ctypes
import functools
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

if sys.platform != "win32":
    import resource

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # mallopt's parameters, malloc.h


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step instead of giving it back to the kernel.

    XLA's CPU backend allocates its temporaries anew in each call, and glibc maps and unmaps every block of 32 MiB or more. For a
    small model, the page faults cost more than the arithmetic. Does nothing with another C library.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 2**26)


def total_bytes(devices: Sequence[jax.Device]) -> int | None:
    """The total memory of devices, assuming that each has as much as this process's first one; None: unknown."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics is not None and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"]) * len(devices)
    if devices[0].platform != "cpu" or not hasattr(os, "sysconf"):
        return None
    # The CPU devices of a process share the memory of its machine.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * len({device.process_index for device in devices})


def peak_bytes() -> int | None:
    """The peak memory of this process so far, on its accelerator or, without one, on the machine; None: unknown."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics is not None:
        return int(statistics["peak_bytes_in_use"])
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where the method below starts from the parent's peak
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) * 1024
    if sys.platform == "win32":
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@functools.cache
def speed(dtype: jnp.dtype) -> float:
    """Floating-point operations per second of this process's first device, in the best of three matrix products."""
    device = jax.local_devices()[0]
    size = 1024 if device.platform == "cpu" else 8192  # enough to keep it busy, and well below a second
    product, times = jax.jit(jnp.matmul), []
    # Its own mesh: the caller's may have devices of other processes, which do not take part.
    with jax.set_mesh(jax.make_mesh((1,), ("alone",), axis_types=(AxisType.Auto,), devices=[device])):
        matrix = jnp.ones((size, size), dtype)
        product(matrix, matrix).block_until_ready()  # compiles
        for _ in range(3):
            start = time.perf_counter()
            product(matrix, matrix).block_until_ready()
            times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)
