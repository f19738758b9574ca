"""The checksums of a checkpoint's files, by which a damaged one is known."""

import zlib
from collections.abc import Callable, Collection
from pathlib import Path

from bam_jax.system import jsonl
from bam_jax.system.errors import UserError

SUMS = "sums.json"
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
        sums = jsonl.parse((path / SUMS).read_bytes(), f"checkpoint {path} cannot be read: its {SUMS}", REMEDY)
    except FileNotFoundError as error:
        raise UserError(f"checkpoint {path} cannot be read: it has no {SUMS}, thus is not whole; {REMEDY}") from error
    saved = {name: crc for name, crc in sums.items() if is_wanted(name)}
    present = checksums(path, is_wanted)
    wrong = sorted({name for name, _ in saved.items() ^ present.items()})
    if wrong:
        raise UserError(f"checkpoint {path} cannot be read: {wrong[0]} is not what was saved; {REMEDY}")


def checksums(path: Path, is_wanted: Callable[[str], bool] = lambda name: True) -> dict[str, int]:
    """CRC-32 of each wanted file of a checkpoint, by its name below it.

    Args:
        path: of the checkpoint, or of its draft.
        is_wanted: says of a name whether it is wanted.
    """
    sums = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        name = file.relative_to(path).as_posix()
        if name != SUMS and is_wanted(name):
            sums[name] = 0
            with file.open("rb") as stream:
                while piece := stream.read(2**24):  # files may be larger than memory
                    sums[name] = zlib.crc32(piece, sums[name])
    return sums
