"""The checksums of a checkpoint's files, by which a damaged one is known."""

import zlib
from collections.abc import Collection
from pathlib import Path

from bam_jax.system import jsonl, regular
from bam_jax.system.errors import UserError

SUMS = "sums.json"
ARRAYS = "d"
"""The folders of the files of arrays, which may be large; others are read whole by orbax."""
REMEDY = "remove that folder and train on from the checkpoint before it, if there is one"


def verify(path: Path, parts: Collection[str] | None = None) -> None:
    """See that the files of a checkpoint are those that were saved, no more and no fewer.

    Args:
        path: of the checkpoint.
        parts: the folders in it that are seen to, besides the files beside them; None: all.

    Raises:
        UserError: they are not.
    """
    is_wanted = lambda name: parts is None or "/" not in name or name.split("/")[0] in parts
    try:
        sums = jsonl.parse(regular.read(path / SUMS), f"checkpoint {path} cannot be read: its {SUMS}", REMEDY)
    except FileNotFoundError as error:
        raise UserError(f"checkpoint {path} cannot be read: it has no {SUMS}, thus is not whole; {REMEDY}") from error
    saved = {name: crc for name, crc in sums.items() if is_wanted(name)}
    present = {name: file for name, file in _files(path).items() if is_wanted(name)}
    # By their names first: no file is read that was not saved.
    wrong = saved.keys() ^ present.keys() or {name for name in saved if saved[name] != _checksum(present[name])}
    if wrong:
        raise UserError(f"checkpoint {path} cannot be read: {min(wrong)} is not what was saved; {REMEDY}")


def checksums(path: Path) -> dict[str, int]:
    """CRC-32 of each file of a checkpoint, by its name below it.

    Args:
        path: of the checkpoint, or of its draft.
    """
    return {name: _checksum(file) for name, file in sorted(_files(path).items())}


def _files(path: Path) -> dict[str, Path]:
    """The files of a checkpoint by their names below it."""
    found = {file.relative_to(path).as_posix(): file for file in regular.list_tree(path)}
    found.pop(SUMS, None)
    return found


def _checksum(file: Path) -> int:
    found = 0
    with open(file, "rb", opener=regular.opener) as stream:
        if file.parent.name != ARRAYS:
            regular.check_size(stream, regular.RECORDS)
        while piece := stream.read(2**24):  # files may be larger than memory
            found = zlib.crc32(piece, found)
    return found
