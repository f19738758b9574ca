"""Text columns of parquet files, read a row group at a time."""

import contextlib
from collections.abc import Iterator
from typing import Any

from bam_jax.data.files import File, need
from bam_jax.errors import UserError

_ROWS = 256  # decoded at a time


class Columns:
    """The text columns of one parquet file.

    Args:
        file: where it is.
        fields: the columns' names.

    Raises:
        UserError: pyarrow is not installed, the file is not whole, or it lacks a column, or one is not of text.
    """

    def __init__(self, file: File, fields: tuple[str, ...]) -> None:
        self._file, self._fields = file, fields
        self._metadata = None
        arrow = need("pyarrow", file.path)
        text = (arrow.string(), arrow.large_string(), arrow.binary(), arrow.large_binary())
        with self._open() as opened:
            self._metadata, schema = opened.metadata, opened.schema_arrow
        for field in fields:
            if field not in schema.names or schema.field(field).type not in text:
                kind = f"is of {schema.field(field).type}, not text" if field in schema.names else "is not there"
                raise UserError(
                    f"{file.path}: the column '{field}' {kind} (its columns: {', '.join(schema.names)}); "
                    "name another with --text-field"
                )

    def groups(self) -> list[tuple[int, int]]:
        """Of each row group, the bytes that its text columns take in the file, and its rows."""
        assert self._metadata is not None
        found = []
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            columns = [group.column(column) for column in range(group.num_columns)]
            size = sum(column.total_compressed_size for column in columns if column.path_in_schema in self._fields)
            found.append((size, group.num_rows))
        return found

    def rows(self, group: int) -> Iterator[tuple[bytes, ...]]:
        """The rows of a group, undecoded; a null is nothing.

        Args:
            group: its number.
        """
        import pyarrow

        binary = pyarrow.large_binary()  # bytes that are not UTF-8 are found where they are decoded
        with self._open() as opened:
            batches = opened.iter_batches(batch_size=_ROWS, row_groups=[group], columns=list(self._fields))
            for batch in batches:
                columns = [batch.column(field).cast(binary).to_pylist() for field in self._fields]
                for row in zip(*columns, strict=True):
                    yield tuple(text or b"" for text in row)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        arrow, parquet = need("pyarrow", self._file.path), need("pyarrow.parquet", self._file.path)
        with self._file.blamed(arrow.ArrowException), self._file.raw() as raw:
            # Without buffers ahead: a row group may be larger than the memory.
            yield parquet.ParquetFile(raw, metadata=self._metadata, pre_buffer=False, buffer_size=2**20)
