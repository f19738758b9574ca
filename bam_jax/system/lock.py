"""Locks between processes.

They are those of flock(2). The system ends such a lock with the process that holds it, however that ends: none is left behind
by a process that was killed, and none has to be removed by hand. It says nothing to other hosts, unless they share a file
system that passes it on, as NFS and Lustre can be told to do.
"""

import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from bam_jax.system import files, regular
from bam_jax.system.errors import UserError

NAME = ".lock"
"""The file in a folder by which all of it is locked."""


@contextlib.contextmanager
def hold(path: Path, busy: str = "") -> Iterator[None]:
    """Keeps other processes out of blocks that hold the same lock; it ends with the block, or with the process.

    Args:
        path: a file in or beside what is locked. It is made, and stays, unless the block that made it ends with a `UserError`:
            a command that is refused leaves nothing behind. No folder: NFS gives an exclusive lock to who may write alone.
        busy: what is said where another process holds it; "": wait for that one.

    Raises:
        UserError: another process holds it, or the file system knows no locks.
    """
    made = not os.path.lexists(path)
    opened = _open_locked(path, busy, made)
    try:
        files.sweep(path.parent)
        yield
    except UserError:
        if made:
            path.unlink(missing_ok=True)  # while it is held: who waits for it sees that it is gone
        raise
    finally:
        os.close(opened)


@contextlib.contextmanager
def hold_folder(folder: Path, busy: str) -> Iterator[None]:
    """Makes a folder and keeps other processes out of blocks that hold it; it goes again if nothing is in it after a `UserError`.

    Args:
        folder: what is locked, by its file `NAME`.
        busy: what is said where another process holds it.

    Raises:
        UserError: see `hold`.
    """
    made = list(itertools.takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with hold(folder / NAME, busy):
            yield
    except UserError:
        with contextlib.suppress(OSError):  # something is in it
            for each in made:
                each.rmdir()
        raise


def _open_locked(path: Path, busy: str, made: bool) -> int:
    """The descriptor of a file whose lock is taken; a file that is taken away meanwhile is made once more."""
    while True:
        with contextlib.ExitStack() as ends:
            opened = regular.opener(path, os.O_WRONLY | os.O_CREAT)
            ends.callback(os.close, opened)
            try:
                if busy:
                    _lock_at_once(opened)
                else:
                    fcntl.flock(opened, fcntl.LOCK_EX)
            except BlockingIOError as error:
                raise UserError(busy) from error
            except OSError as error:
                if made:
                    path.unlink(missing_ok=True)
                raise UserError(f"{path} cannot be locked: {error.strerror}; use another file system") from error
            if _is_at(opened, path):
                ends.pop_all()
                return opened


def _is_at(opened: int, path: Path) -> bool:
    """True if a file that is open is the one of a name still."""
    try:
        return os.path.samestat(os.fstat(opened), path.lstat())
    except FileNotFoundError:
        return False


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
    try:
        file = open(path, "rb", opener=regular.opener)
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not see each other
        except BlockingIOError:
            return True
        except OSError:  # a copy on a file system without locks, where `hold` lets nobody work
            return False
    return False
