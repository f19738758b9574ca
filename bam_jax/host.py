"""The process that XLA's CPU backend runs in, and how much memory it took."""

import ctypes
import functools
import re
import sys
from pathlib import Path

import jax

if sys.platform != "win32":
    import resource

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # mallopt's parameters, malloc.h


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step instead of giving it back to the kernel.

    XLA's CPU backend allocates its temporaries anew in each call, and glibc maps and unmaps any block of 32 MiB or more: the
    page faults cost a small model more than its arithmetic. Does nothing where the C library is another one.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 2**26)


def peak_bytes() -> int | None:
    """The most memory that this process has held so far, an accelerator's or, without one, the machine's; None: not known."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics is not None:
        return int(statistics["peak_bytes_in_use"])
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where the other way begins with the parent's
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) * 1024
    if sys.platform == "win32":
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
