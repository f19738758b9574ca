"""Fragments: pieces of a source that can be read independently, and their records."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from bam_jax.system.errors import UserError
from bam_jax.system.files import shortened

Record = tuple[str, ...]  # the text of a document; or a query, a passage that answers it, and one that does not
Reading = Iterator[tuple[Record, int]]  # records, each with the number of stored bytes of the fragment read so far


@dataclasses.dataclass(frozen=True)
class Fragment:
    """A piece of a source that can be read independently: a file, a row group of a file, or several files in sequence."""

    name: str  # relative to the source
    size: int  # bytes, as stored
    read: Callable[[], Reading]


def pick_texts(record: Any, fields: tuple[str, ...], where: str) -> Record:
    values = record if isinstance(record, dict) else {}
    for field in fields:
        if field not in values or not isinstance(values[field], str):
            raise UserError(
                f"{where} has no text in the field '{field}' (its fields: {shortened(values)}); name another "
                "with --config.data.text_field or, of prepare, --text-field"
            )
    return tuple(values[field] for field in fields)


def decode(text: bytes | bytearray, errors: str, where: str, start: int = 0) -> str:
    try:
        return text.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} is not UTF-8 ({error.reason} at byte {start + error.start}); "
            "convert it, or give prepare --errors=replace"
        ) from error
