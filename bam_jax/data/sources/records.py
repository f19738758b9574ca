"""Records of a corpus, and the parts of it that they are read from."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from bam_jax.system.errors import UserError
from bam_jax.system.files import shortened

Record = tuple[str, ...]
"""The text of a document, or texts that belong together: a query, a passage that answers it, one that does not."""
Read = Iterator[tuple[Record, int]]
"""Records, each with the bytes of the part, as stored, that have been read when it comes."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a source that can be read by itself: a file, a row group of it, or some files end to end.

    Args:
        name: below the source.
        size: bytes, as stored.
        read: opens it and yields its records.
    """

    name: str
    size: int
    read: Callable[[], Read]


def chosen(record: Any, fields: tuple[str, ...], where: str) -> Record:
    """The texts of a record's fields.

    Args:
        record: from JSON or a column store: names to values.
        fields: their names.
        where: what an error names.

    Raises:
        UserError: a field is missing or holds no text.
    """
    found = record if isinstance(record, dict) else {}
    for field in fields:
        if field not in found or not isinstance(found[field], str):
            raise UserError(
                f"{where} has no text in the field '{field}' (its fields: {shortened(found)}); name another "
                "with --config.data.text_field or, of prepare, --text-field"
            )
    return tuple(found[field] for field in fields)


def decoded(text: bytes | bytearray, errors: str, where: str, start: int = 0) -> str:
    """A text's characters.

    Args:
        text: bytes of UTF-8.
        errors: "strict", or "replace": bytes that are not UTF-8 become the replacement character.
        where: what an error names.
        start: the place of the first byte in what an error names.

    Raises:
        UserError: not UTF-8, and errors is strict.
    """
    try:
        return text.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} is not UTF-8 ({error.reason} at byte {start + error.start}); "
            "convert it, or give prepare --errors=replace"
        ) from error
