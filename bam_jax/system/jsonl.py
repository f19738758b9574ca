"""JSON-lines files that survive a process killed while it writes, and JSON documents with a checksum."""

import contextlib
import itertools
import json
import os
import reprlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bam_jax.system import files, lock, regular, typed_json
from bam_jax.system.errors import UserError

CRC = "crc32"  # the name of a document's checksum
_REMEDY = "put it back from a copy or remove that line"


def by_lines(content: Mapping[str, Any]) -> str:
    """A JSON document with one line per key, and one per element or entry of a key's value.

    >>> print(by_lines({"command": "count", "records": [{"n": 1}, {"n": 2}]}), end="")
    {
     "command": "count",
     "records": [
      {"n": 1},
      {"n": 2}
     ]
    }
    """

    def lines(value: Any) -> str:
        if not value or not isinstance(value, (dict, list)):
            return json.dumps(value)
        if isinstance(value, dict):
            return (
                "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()) + "\n }"
            )
        return "[\n" + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]"

    return "{\n" + ",\n".join(f" {json.dumps(key)}: {lines(value)}" for key, value in content.items()) + "\n}\n"


class Writer(contextlib.AbstractContextManager["Writer"]):
    """Appends records to a JSON-lines file, one flushed line each; the file is created if it is missing."""

    def __init__(self, path: str | os.PathLike):
        self._file = open(path, "a", encoding="utf-8", opener=regular.opener)

    def write(self, record: Mapping[str, Any]) -> None:
        try:
            self._file.write(line(record) + "\n")
            self._file.flush()  # the record outlives this process, and others read it at once
        except OSError as error:
            raise files.named(error, self._file.name) from None

    def close(self) -> None:
        try:
            self._file.close()  # writes what is left
        except OSError as error:
            raise files.named(error, self._file.name) from None

    def __exit__(self, *error: object) -> None:
        self.close()


def line(record: Mapping[str, Any]) -> str:
    """A record as JSON."""
    return json.dumps(record)


def parse(text: bytes, where: str, remedy: str = _REMEDY, *, edited: str | None = None) -> dict[str, Any]:
    """The object in a JSON text, a line or a document, whose CRC-32 is checked if it has one."""
    record = typed_json.parse(text, where, remedy)
    if not isinstance(record, dict):
        raise UserError(f"{where} is no record but {reprlib.repr(record)}; {remedy}")
    return verified(record, where, edited or remedy)


def document(record: Mapping[str, Any], indent: int, *, sort: bool = False) -> str:
    """The text of a file with one record, indented for people, with the CRC-32 of the record."""
    text = json.dumps(record, sort_keys=sort)
    return json.dumps({**json.loads(text), CRC: zlib.crc32(text.encode())}, indent=indent) + "\n"


def verified(record: dict[str, Any], where: str, remedy: str) -> dict[str, Any]:
    """Check a record's CRC-32, and return the record without it. A record that has none is returned as it is."""
    # If the name of the checksum itself was changed, the checksum is the last field.
    name = CRC if CRC in record else next(reversed(record), CRC)
    rest = {each: value for each, value in record.items() if each != name}
    crc = record.pop(CRC, None)
    if crc not in (None, _checksum(record)) or (name != CRC and record[name] == _checksum(rest)):
        raise UserError(f"{where} was changed after it was written (its {CRC} is that of another); {remedy}")
    return record


def _checksum(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record).encode())


def read(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The records of a JSON-lines file. A torn last line is skipped; a complete one that only lacks its newline is not."""
    for _, record in _lines(Path(path)):
        yield record


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each complete line as stored, and its record."""
    try:  # without checking first: a run that starts anew removes the file while others read it
        file = open(path, "rb", opener=regular.opener)
    except (FileNotFoundError, NotADirectoryError):
        return
    with file:
        regular.check_size(file, regular.RECORDS)
        for number in itertools.count(1):
            last, where = file.readline(regular.DOCUMENT), f"{path}, line {number}"
            if not last.endswith(b"\n"):
                break
            yield last[:-1], parse(last[:-1], where)
    if len(last) == regular.DOCUMENT:
        raise UserError(f"{where} has {regular.DOCUMENT:,} bytes or more; {_REMEDY}")
    if _object(last) is not None:  # a part of an object is not an object
        yield last, parse(last, where)


def _object(text: bytes) -> dict[str, Any] | None:
    """The object in a JSON text; None if it is not an object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrite a JSON-lines file with only the wanted records, all at once or not at all."""
    if path.exists():
        files.write_atomically(path, "".join(text.decode() + "\n" for text, record in _lines(path) if wanted(record)))


def mend(path: Path) -> None:
    """End the last line, or remove it if a killed process left it torn. Otherwise the next line would be appended to it."""
    if path.exists() and is_torn(path):
        keep(path, lambda record: True)


def is_torn(path: Path) -> bool:
    """Whether a file's last line has no newline. Only the last byte is read, because files grow and are checked often."""
    with open(path, "rb", opener=regular.opener) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read() not in (b"\n", b"")


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one record to a JSON-lines file that several processes may add to."""
    with appending(path) as writer:
        writer.write(record)


@contextlib.contextmanager
def appending(path: Path) -> Iterator[Writer]:
    """A writer of a JSON-lines file that several processes may append to; the others wait until the block ends."""
    # The lock is a separate file, because `mend` replaces the file itself.
    with lock.hold(path.with_name(f".{path.name}.lock")):
        mend(path)
        with Writer(path) as writer:
            yield writer
