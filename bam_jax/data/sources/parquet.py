"""Text columns of parquet files, read a row group at a time."""

import contextlib
from collections.abc import Iterator
from typing import IO, Any

from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra
from bam_jax.system.files import File, is_remote, shortened, too_large

_ROWS = 256  # rows decoded at a time, at most
_PAGE = 2**28  # largest page in bytes, even if texts must be smaller: writers end pages at about a megabyte
_BYTES = 2**26  # bytes of the texts decoded at a time, unless a single row has more
# Bytes that suffice for nearly every page header, and for any. A header may contain a text in its statistics.
_HEADERS = (2**12, 2**22)
_INFLATED, _STORED = 2, 3
_BOOLEANS, _BYTE, _VARINTS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


class Columns:
    """The text columns of one parquet file."""

    def __init__(self, file: File, fields: tuple[str, ...], max_bytes: int) -> None:
        self._file, self._fields, self._max_bytes = file, fields, max_bytes
        self._metadata: Any = None
        arrow = import_extra("pyarrow", file.path, "data")
        text = (arrow.string(), arrow.large_string(), arrow.binary(), arrow.large_binary())
        with self._open() as opened:
            self._metadata, schema = opened.metadata, opened.schema_arrow
        for field in fields:
            if field not in schema.names or schema.field(field).type not in text:
                kind = f"is of {schema.field(field).type}, not text" if field in schema.names else "is not there"
                raise UserError(
                    f"{file.path}: the column '{field}' {kind} (its columns: {shortened(schema.names)}); "
                    "name another with --text-field"
                )

    def groups(self) -> list[tuple[int, int]]:
        """The bytes that the text columns of each row group take in the file, and its number of rows."""
        sizes = lambda number: sum(chunk.total_compressed_size for chunk in self._chunks(number))
        numbers = range(self._metadata.num_row_groups)
        return [(sizes(number), self._metadata.row_group(number).num_rows) for number in numbers]

    def rows(self, group: int) -> Iterator[tuple[bytes, ...]]:
        """Yield the rows of a group, undecoded; a null becomes an empty text."""
        import pyarrow

        self._refuse_large_pages(group)
        binary = pyarrow.large_binary()  # invalid UTF-8 is detected when it is decoded
        size = self._rows_at_a_time(group)
        with self._open() as opened:
            number = 0
            for batch in opened.iter_batches(batch_size=size, row_groups=[group], columns=list(self._fields)):
                columns = [batch.column(field).cast(binary).to_pylist() for field in self._fields]
                for row in zip(*columns, strict=True):
                    number += 1
                    texts = tuple(text or b"" for text in row)
                    if max(map(len, texts)) > self._max_bytes:
                        raise too_large(f"{self._file.path} row {number} of group {group}", self._max_bytes)
                    yield texts

    def _refuse_large_pages(self, group: int) -> None:
        """Raise an error for a page larger than the largest text and `_PAGE` before it is decompressed."""
        max_bytes = max(self._max_bytes, _PAGE)
        for chunk in self._chunks(group):
            if is_remote(self._file.path) and chunk.total_uncompressed_size <= max_bytes:
                continue  # checking each page would fetch most of them; the sizes in a remote file are trusted
            start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)), default=0)
            with self._file.named_in_errors(ValueError), self._file.open_raw() as raw:
                for size in inflated_sizes(raw, start, start + chunk.total_compressed_size):
                    if size > max_bytes + 2**20:  # a page also contains lengths and levels
                        raise too_large(f"a page of group {group} of {self._file.path}", max_bytes)

    def _rows_at_a_time(self, group: int) -> int:
        """The number of rows of a group to decode together, so that the bytes of their texts are bounded."""
        chunks, rows = self._chunks(group), max(self._metadata.row_group(group).num_rows, 1)
        stored = sum(chunk.total_uncompressed_size for chunk in chunks)
        if stored > rows * len(chunks) * (self._max_bytes + 2**10):  # a page's header takes a little
            raise too_large(f"each row of group {group} of {self._file.path}, on average,", self._max_bytes)
        longest = stored // rows
        # A dictionary may contain a long text once, and every row may refer to it.
        in_dictionary = any("DICTIONARY" in name for chunk in chunks for name in chunk.encodings)
        if _ROWS * stored > _BYTES and in_dictionary:
            from pyarrow import compute, types

            with self._open(read_dictionary=list(self._fields)) as opened:
                first: Any = next(opened.iter_batches(batch_size=1, row_groups=[group], columns=list(self._fields)), [])
                held = [column.dictionary for column in first if types.is_dictionary(column.type)]
                in_one = max((compute.max(compute.binary_length(texts)).as_py() or 0 for texts in held), default=0)
            if in_one > self._max_bytes:
                raise too_large(f"a text of group {group} of {self._file.path}", self._max_bytes)
            longest = max(longest, in_one)
        return max(1, min(_ROWS, _BYTES // max(longest, 1)))

    def _chunks(self, group: int) -> list[Any]:
        row_group = self._metadata.row_group(group)
        columns = [row_group.column(column) for column in range(row_group.num_columns)]
        return [column for column in columns if column.path_in_schema in self._fields]

    @contextlib.contextmanager
    def _open(self, **options: Any) -> Iterator[Any]:
        arrow = import_extra("pyarrow", self._file.path, "data")
        parquet = import_extra("pyarrow.parquet", self._file.path, "data")
        with self._file.named_in_errors(arrow.ArrowException), self._file.open_raw() as raw:
            # Without reading ahead: a row group may be larger than the memory.
            yield parquet.ParquetFile(raw, metadata=self._metadata, pre_buffer=False, buffer_size=2**20, **options)


def inflated_sizes(raw: IO[bytes], start: int, stop: int) -> Iterator[int]:
    """Yield the decompressed bytes of each page of a column chunk: pyarrow decompresses whole pages, whatever their size.

    A page header is a struct in Thrift's compact protocol, without a length. Its fields 2 and 3 are the decompressed and the
    stored bytes of the page.

    Source: the format's parquet.thrift, and thrift-compact-protocol.md of Apache Thrift.
    """
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
    """The integers of a struct by field number, and the offset after the struct."""
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
    """The offset after a value of a kind."""
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
    """A number with seven bits per byte, the lowest first, and the offset after it."""
    value = shift = 0
    while data[at] > 127:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | data[at] << shift, at + 1


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """A signed number, whose sign is the lowest bit, and the offset after it."""
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at
