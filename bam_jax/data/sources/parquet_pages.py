"""The sizes of a parquet file's pages, from their headers: pyarrow inflates a page whole, and does not tell its size before.

A header is a struct of Thrift's compact protocol. Its fields 2 and 3 are the bytes of the page as inflated and as stored; it has
no length of its own, so that all of its fields are walked over.

Source: the format's parquet.thrift, and thrift-compact-protocol.md of Apache Thrift.
"""

import contextlib
from collections.abc import Iterator
from typing import IO

_HEADERS = (
    2**12,
    2**22,
)  # bytes that nearly each header takes at most, and that any does; it may hold a text for statistics
_INFLATED, _STORED = 2, 3
_BOOLEANS, _BYTE, _VARINTS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


def inflated_sizes(raw: IO[bytes], start: int, stop: int) -> Iterator[int]:
    """Yields the bytes that each page of a column chunk inflates to, as its header says."""
    while start < stop:
        for size in _HEADERS:
            raw.seek(start)
            with contextlib.suppress(IndexError, KeyError):
                sizes, length = _fields(raw.read(min(size, stop - start)), 0)
                inflated, stored = sizes[_INFLATED], sizes[_STORED]
                break
        else:
            raise ValueError(f"no page at byte {start}")
        if inflated < 0 or stored < 0:
            raise ValueError(f"a page of {min(inflated, stored)} bytes at byte {start}")
        yield inflated
        start += length + stored


def _fields(data: bytes, at: int) -> tuple[dict[int, int], int]:
    """The integers of a struct by their fields' numbers, and the place after it."""
    found, number = {}, 0
    while data[at]:
        head, at = data[at], at + 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        if head & 15 in _VARINTS:
            found[number], at = _integer(data, at)
        else:
            at = _skipped(data, at, head & 15)
    return found, at + 1


def _skipped(data: bytes, at: int, kind: int) -> int:
    """The place after a value of a kind."""
    if kind in _BOOLEANS:
        return at
    if kind in (_BYTE, _DOUBLE):
        return at + (1 if kind == _BYTE else 8)
    if kind in _VARINTS:
        return _varint(data, at)[1]
    if kind == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind in _LISTS:
        count, inner, at = data[at] >> 4, data[at] & 15, at + 1
        if count == 15:
            count, at = _varint(data, at)
        for _ in range(count):
            at = _skipped(data, at, _BYTE if inner in _BOOLEANS else inner)
        return at
    if kind == _STRUCT:
        return _fields(data, at)[1]
    raise ValueError(f"a field of the unknown kind {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and the place after it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """A number with a sign, which is its lowest bit."""
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at
