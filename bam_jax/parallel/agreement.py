"""Agreement of processes. Each function waits until all processes have called it."""

import zlib

import jax
import numpy as np
from jax.experimental import multihost_utils

from bam_jax.system.errors import UserError


def from_first(number: int) -> int:
    """The number that process 0 passes."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(number))) if jax.process_count() > 1 else number


def contents_from_first(contents: bytes) -> bytes:
    """The bytes that process 0 passes."""
    if jax.process_count() == 1:
        return contents
    whole = np.zeros(from_first(len(contents)), np.uint8)
    whole[: len(contents)] = np.frombuffer(contents, np.uint8)[: len(whole)]
    return multihost_utils.broadcast_one_to_all(whole).astype(np.uint8).tobytes()


def all_processes(holds: bool) -> bool:
    """True if `holds` is true in every process."""
    return bool(np.all(multihost_utils.process_allgather(np.bool_(holds)))) if jax.process_count() > 1 else holds


def check_same(text: str, message: str) -> None:
    """Raise a UserError with the message, in all processes, unless the text is the same in all of them."""
    checksums = multihost_utils.process_allgather(np.uint32(zlib.crc32(text.encode("utf-8", "surrogateescape"))))
    if np.unique(checksums).size > 1:
        raise UserError(message)
