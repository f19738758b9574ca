"""Pages are as large as their headers say, and one that is too large is refused before it is inflated."""

import io
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.sources import parquet
from bam_jax.data.sources.source import Source
from bam_jax.system.errors import UserError

TEXTS = [*("".join(map(chr, np.random.default_rng(n).integers(97, 123, 40 * n))) for n in range(90)), None]


@pytest.mark.parametrize(
    ("version", "compression", "dictionary", "statistics"),
    [*itertools.product(("1.0", "2.0"), ("zstd", "none"), (True, False), (True, False))],
)
def test_sizes_add_up_to_those_of_the_file(version, compression, dictionary, statistics):
    options = {"data_page_version": version, "compression": compression, "use_dictionary": dictionary}
    options |= {"write_statistics": statistics, "data_page_size": 9000, "write_batch_size": 20, "row_group_size": 500}
    file = io.BytesIO()
    table = pa.table({"text": TEXTS * 9, "number": range(9 * len(TEXTS))})
    pq.write_table(table, file, **options)
    metadata = pq.ParquetFile(file).metadata
    for group in range(metadata.num_row_groups):
        for chunk in map(metadata.row_group(group).column, range(2)):
            start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
            sizes = [*parquet.inflated_sizes(file, start, start + chunk.total_compressed_size)]
            headers = chunk.total_uncompressed_size - sum(sizes)
            assert (len(sizes) > 1 or chunk.path_in_schema == "number") and 9 * len(sizes) < headers < 9000 * len(sizes)


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_page_that_is_too_large_is_refused_by_its_header(tmp_path, monkeypatch, dictionary):
    path, text = tmp_path / "a.parquet", "x" * 2**23
    pq.write_table(pa.table({"text": ["short"] * 99 + [text]}), path, compression="zstd", use_dictionary=dictionary)
    read = lambda max_bytes: list(Source(str(path), max_bytes=max_bytes).fragments()[0].read())
    assert read(2**23)[-1][0] == (text,)
    monkeypatch.setattr(parquet, "_PAGE", 2**21)
    with pytest.raises(UserError, match="a page of group 0 of .* has more than 2,097,152 bytes"):
        read(2**21)


@given(st.binary(max_size=200))
def test_what_is_no_header_is_said_or_ends(data):
    try:
        assert all(size >= 0 for size in parquet.inflated_sizes(io.BytesIO(data), 0, len(data)))
    except ValueError as error:
        assert "byte" in str(error) or "kind" in str(error)
