"""Locks between processes, by flock(2).

The system releases such a lock when its process ends, even by SIGKILL, so no lock has to be removed by hand. Other hosts do not
see it, unless they share a file system that forwards locks, as NFS and Lustre can be configured to do.
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

NAME = ".lock"  # the file that locks the folder that contains it


@contextlib.contextmanager
def hold(path: Path, busy: str = "") -> Iterator[None]:
    """Keep other processes out of blocks that hold the same lock."""
    made = not os.path.lexists(path)
    opened = _open_locked(path, busy, made)
    try:
        files.sweep(path.parent)
        yield
    except UserError:
        if made:  # a command that is refused leaves nothing behind
            path.unlink(missing_ok=True)  # while it is held: a process that waits for it notices the removal
        raise
    finally:
        os.close(opened)


@contextlib.contextmanager
def hold_folder(folder: Path, busy: str) -> Iterator[None]:
    """Make a folder and hold its lock. After a `UserError`, folders that were created here are removed if they are empty."""
    made = list(itertools.takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with hold(folder / NAME, busy):
            yield
    except UserError:
        with contextlib.suppress(OSError):  # it is not empty
            for each in made:
                each.rmdir()
        raise


def is_held(path: Path) -> bool:
    """True if a process holds the lock of a file."""
    try:
        file = open(path, "rb", opener=regular.opener)
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two processes that check do not block each other
        except BlockingIOError:
            return True
        except OSError:  # a copy on a file system without locks, where `hold` always fails
            return False
    return False


def _open_locked(path: Path, busy: str, made: bool) -> int:
    """The descriptor of a locked file."""
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
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile: make it again
                if os.path.samestat(os.fstat(opened), path.lstat()):
                    ends.pop_all()
                    return opened


def _lock_at_once(opened: int) -> None:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # perhaps locked by a process that only checks, in `is_held`
        time.sleep(0.05)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
