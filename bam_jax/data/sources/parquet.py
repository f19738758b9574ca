"""Text columns of parquet files, read a row group at a time."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from bam_jax.system.errors import UserError
from bam_jax.system.files import File, need, shortened, too_large

_ROWS = 256  # decoded at a time
_BYTES = 2**26  # that these may have, if a row has no more


class Columns:
    """The text columns of one parquet file.

    Args:
        file: where it is.
        fields: the columns' names.
        largest: bytes of a text, at most.

    Raises:
        UserError: pyarrow is not installed, the file is not whole, or it lacks a column, or one is not of text.
    """

    def __init__(self, file: File, fields: tuple[str, ...], largest: int) -> None:
        self._file, self._fields, self._largest = file, fields, largest
        self._metadata = None
        arrow = need("pyarrow", file.path)
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
        """Of each row group, the bytes that its text columns take in the file, and its rows."""
        assert self._metadata is not None
        found = []
        for number in range(self._metadata.num_row_groups):
            size = sum(column.total_compressed_size for column in self._chunks(number))
            found.append((size, self._metadata.row_group(number).num_rows))
        return found

    def rows(self, group: int) -> Iterator[tuple[bytes, ...]]:
        """The rows of a group, undecoded; a null is nothing.

        Args:
            group: its number.

        Raises:
            UserError: it cannot be read, or a text is too large.
        """
        import pyarrow

        binary = pyarrow.large_binary()  # bytes that are not UTF-8 are found where they are decoded
        size = self._at_a_time(group)
        with self._open() as opened:
            batches = opened.iter_batches(batch_size=size, row_groups=[group], columns=list(self._fields))
            columns = ([batch.column(field).cast(binary).to_pylist() for field in self._fields] for batch in batches)
            rows = itertools.chain.from_iterable(zip(*each, strict=True) for each in columns)
            for number, row in enumerate(rows, 1):
                texts = tuple(text or b"" for text in row)
                if max(map(len, texts)) > self._largest:
                    raise too_large(f"{self._file.path} row {number} of group {group}", self._largest)
                yield texts

    def _at_a_time(self, group: int) -> int:
        """Rows of a group that are decoded together: a dictionary has a long text once, and each of them may be that one."""
        assert self._metadata is not None
        chunks, rows = self._chunks(group), max(self._metadata.row_group(group).num_rows, 1)
        stored = sum(chunk.total_uncompressed_size for chunk in chunks)
        if stored > rows * len(chunks) * (self._largest + 2**10):  # a page's header takes a little
            raise too_large(f"each row of group {group} of {self._file.path}, on average,", self._largest)
        longest = stored // rows
        if _ROWS * stored > _BYTES and any("DICTIONARY" in name for chunk in chunks for name in chunk.encodings):
            with self._open(read_dictionary=list(self._fields)) as opened:
                first: Any = next(opened.iter_batches(batch_size=1, row_groups=[group], columns=list(self._fields)), [])
                longest = max([longest, *(_longest(column) for column in first)])
        return max(1, min(_ROWS, _BYTES // max(longest, 1)))

    def _chunks(self, group: int) -> list[Any]:
        """The metadata of the text columns in a group."""
        assert self._metadata is not None
        found = self._metadata.row_group(group)
        columns = [found.column(column) for column in range(found.num_columns)]
        return [column for column in columns if column.path_in_schema in self._fields]

    @contextlib.contextmanager
    def _open(self, **options: Any) -> Iterator[Any]:
        arrow, parquet = need("pyarrow", self._file.path), need("pyarrow.parquet", self._file.path)
        with self._file.blamed(arrow.ArrowException), self._file.raw() as raw:
            # Without buffers ahead: a row group may be larger than the memory.
            yield parquet.ParquetFile(raw, metadata=self._metadata, pre_buffer=False, buffer_size=2**20, **options)


def _longest(column: Any) -> int:
    """Bytes of the longest text in a column's dictionary."""
    import pyarrow.compute

    if not pyarrow.types.is_dictionary(column.type):
        return 0
    return pyarrow.compute.max(pyarrow.compute.binary_length(column.dictionary)).as_py() or 0
