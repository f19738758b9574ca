"""Regular files in folders that may come from other people: runs, prepared data, records, rankings.

Links, pipes and devices in such a folder are rejected, and so are files that are too large for their purpose. Otherwise a command
could wait forever, fill the memory, or read and write outside the folder. The folder itself may be a link. All functions raise
`UserError` for what they reject.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from bam_jax.system.errors import UserError

DOCUMENT = 2**22  # maximum bytes of a run's JSON document or of a line of records; parsed, they take many times that
RECORDS = 2**28  # maximum bytes of a run's file of records
ENTRIES = 100_000  # maximum files and folders below a folder of a run


def opener(path: str | os.PathLike, flags: int) -> int:
    """The `opener` for opening a file of a run with `open`, which does not wait for the other end of a pipe."""
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        # ELOOP: links. ENXIO: pipes and sockets. EISDIR: folders opened for writing.
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
    """The size of a run's file in bytes. The file may then be opened by its name, as libraries do."""
    with open(path, "rb", opener=opener) as file:
        return os.fstat(file.fileno()).st_size


def check_size(file: BinaryIO, max_bytes: int) -> int:
    """The size of an open file in bytes, which may be at most `max_bytes`."""
    found = os.fstat(file.fileno()).st_size
    if found > max_bytes:
        raise UserError(f"{file.name} has more than {max_bytes:,} bytes, and is not what its name says; take it away")
    return found


def check_folder(path: str | os.PathLike) -> bool:
    """True if a path inside a run's folder is a folder, False if nothing is there."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(mode):
        raise _refused(path, mode, "a folder")
    return True


def list_tree(path: str | os.PathLike) -> list[Path]:
    """All files below a folder of a run, [] if it does not exist. They may then be opened by their names, as libraries do."""
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
