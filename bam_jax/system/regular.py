"""Regular files in folders that may be a stranger's: runs, prepared data, records, rankings.

A link, a pipe or a device in such a folder is refused, and so is a file that is too large for what it is. Otherwise a command
could wait for ever, fill the memory, or read and write outside of the folder. The folder itself may be a link. Everything here
raises `UserError` for what it refuses.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from bam_jax.system.errors import UserError

DOCUMENT = 2**22  # bytes of a JSON document of a run, or of a line of its records: parsed they take many times that
RECORDS = 2**28  # bytes of a run's file of records, at most
ENTRIES = 100_000  # files and folders below a folder of a run, at most


def opener(path: str | os.PathLike, flags: int) -> int:
    """The `opener` with which `open` opens a file of a run, without waiting for a pipe's other end."""
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        # Links; pipes and sockets; folders, of which the last is opened for writing.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _refused(path, os.lstat(path).st_mode) from error
        raise
    mode = os.fstat(opened).st_mode
    if not stat.S_ISREG(mode):
        os.close(opened)
        raise _refused(path, mode)
    return opened


def read(path: str | os.PathLike, max_bytes: int = DOCUMENT) -> bytes:
    """Reads a file of a run as a whole."""
    with open(path, "rb", opener=opener) as file:
        return file.read(check_size(file, max_bytes))


def size(path: str | os.PathLike) -> int:
    """The bytes of a file of a run, which may then be opened by its name, as libraries do."""
    with open(path, "rb", opener=opener) as file:
        return os.fstat(file.fileno()).st_size


def check_size(file: BinaryIO, max_bytes: int) -> int:
    """The bytes of an open file, which may have so many."""
    found = os.fstat(file.fileno()).st_size
    if found > max_bytes:
        raise UserError(f"{file.name} has more than {max_bytes:,} bytes, and is not what its name says; take it away")
    return found


def check_folder(path: str | os.PathLike) -> bool:
    """True if there is a folder in a run's, False if nothing is there."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(mode):
        raise _refused(path, mode, "a folder")
    return True


def list_tree(path: str | os.PathLike) -> list[Path]:
    """All files below a folder in a run's, [] if there is none; they may then be opened by their names, as libraries do."""
    found: list[Path] = []
    folders, entries = [Path(path)] if check_folder(path) else [], 0
    while folders:
        with os.scandir(folders.pop()) as inside:
            for entry in inside:
                entries += 1
                if entries > ENTRIES:
                    raise UserError(f"{path} holds more than {ENTRIES:,} files, not what its name says; take it away")
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    found.append(Path(entry.path))
                else:
                    raise _refused(entry.path, entry.stat(follow_symlinks=False).st_mode)
    return found


def _refused(path: str | os.PathLike, mode: int, wanted: str = "a regular file") -> UserError:
    if stat.S_ISLNK(mode):
        return UserError(f"{path} is a link; put what it leads to in its place, or link the whole folder that it is in")
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return UserError(f"{path} is {kinds.get(stat.S_IFMT(mode), 'a device')}, not {wanted}; take it away")
