"""Locks between processes.

They are those of flock(2). The system ends such a lock with the process that holds it, however that ends: none is left behind
by a process that was killed, and none has to be removed by hand. It says nothing to other hosts, unless they share a file
system that passes it on, as NFS and Lustre can be told to do.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from bam_jax.system.errors import UserError

NAME = ".lock"
"""The file in a folder by which all of it is locked."""


@contextlib.contextmanager
def hold(path: Path, busy: str = "") -> Iterator[None]:
    """Keeps other processes out of blocks that hold the same lock; it ends with the block, or with the process.

    Args:
        path: a file in or beside what is locked; it is made, and stays, since another process may have opened it already and
            would hold a lock on a file that is gone. No folder: NFS gives an exclusive lock to who may write alone.
        busy: what is said where another process holds it; "": wait for that one.

    Raises:
        UserError: another process holds it, or the file system knows no locks.
    """
    opened = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        try:
            if busy:
                _lock_at_once(opened)
            else:
                fcntl.flock(opened, fcntl.LOCK_EX)
        except BlockingIOError as error:
            raise UserError(busy) from error
        except OSError as error:
            raise UserError(f"{path} cannot be locked: {error.strerror}; use another file system") from error
        yield
    finally:
        os.close(opened)


def _lock_at_once(opened: int) -> None:
    """Take the lock, or raise BlockingIOError; a second try passes by a process that only looks, as `is_held` does."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """True if a process holds a lock on a file.

    Args:
        path: the file; a missing one is held by none, nor is one on a file system without locks.
    """
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not see each other
        except BlockingIOError:
            return True
        except OSError:  # a copy on a file system without locks, where `hold` lets nobody work
            return False
    return False
