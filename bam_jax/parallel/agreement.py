"""Agreement of processes: a number that process 0 sends to all others, and texts that have to be the same in all."""

import zlib

import jax
import numpy as np
from jax.experimental import multihost_utils

from bam_jax.system.errors import UserError


def from_first(number: int) -> int:
    """Send a number from process 0 to all of them; none goes on before all are here.

    Args:
        number: what process 0 sends; those of the others do not matter.
    """
    return int(multihost_utils.broadcast_one_to_all(np.int32(number))) if jax.process_count() > 1 else number


def all_processes(holds: bool) -> bool:
    """True if something holds in every process; none goes on before all are here.

    Args:
        holds: in this process.
    """
    return bool(np.all(multihost_utils.process_allgather(np.bool_(holds)))) if jax.process_count() > 1 else holds


def check_same(text: str, complaint: str) -> None:
    """See that a text is the same in all processes; none goes on before all are here.

    Args:
        text: of this process.
        complaint: what each of them says where it is not.

    Raises:
        UserError: it is not.
    """
    sums = multihost_utils.process_allgather(np.uint32(zlib.crc32(text.encode("utf-8", "surrogateescape"))))
    if np.unique(sums).size > 1:
        raise UserError(complaint)
