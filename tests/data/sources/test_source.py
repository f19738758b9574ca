"""Every kind of source gives its records, in order, in parts that can be read by themselves; what is broken is named."""

import gzip
import io
import itertools
import json
import re
import shutil
import sys
import tracemalloc
import warnings

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.corpora.presets import articles
from bam_jax.data.sources import parquet, source
from bam_jax.data.sources.source import Source
from bam_jax.system import files
from bam_jax.system.errors import UserError

TEXTS = ["one\ntwo", "é漢字 \U0001f600", "", " \n", "no end of line", "x" * 70_000]


def read(path, *fields, **options):
    parts = Source(str(path), fields or ("text",), **options).fragments()
    return [record for part in parts for record, _ in part.read()]


def lines(texts, field="text"):
    return "".join(json.dumps({"id": number, field: text}) + "\n" for number, text in enumerate(texts)).encode()


COMPRESS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_lines_and_texts_compressed_or_not(tmp_path, suffix):
    pack = COMPRESS[suffix]  # a file may have several members or frames
    (tmp_path / f"b.jsonl{suffix}").write_bytes(pack(lines(TEXTS[:2])) + pack(lines(TEXTS[2:]) + b"\n"))
    (tmp_path / f"a.txt{suffix}").write_bytes(pack("whole\r\n é".encode()))
    assert read(tmp_path) == [("whole\n é",), *((text,) for text in TEXTS)]


def write_parquet(path, texts, kind=None):
    table = pa.table({"id": list(range(len(texts))), "text": pa.array(texts, kind or pa.string())})
    pq.write_table(table, path, row_group_size=2)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_parquet(tmp_path, kind):
    texts = [text.encode() for text in TEXTS] if kind == pa.binary() else TEXTS
    write_parquet(tmp_path / "a.parquet", texts, kind=kind)
    write_parquet(tmp_path / "b.parquet", [None, "last"])
    assert read(tmp_path) == [*((text,) for text in TEXTS), ("",), ("last",)]


def test_parts_say_how_much_of_them_is_read(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS)))
    (tmp_path / "c.txt").write_text("text")
    (tmp_path / "w.tokens").write_text(" = A = \n\n text\n\n = B = \n\n text\n")
    write_parquet(tmp_path / "b.parquet", TEXTS)
    parts = Source(str(tmp_path)).fragments()
    assert [part.name for part in parts] == ["a.jsonl.gz", *(f"b.parquet#{n}" for n in range(3)), "c.txt", "w.tokens"]
    for part in parts:
        done = [size for _, size in part.read()]
        assert done == sorted(done) and done[-1] == part.size > 0


def test_names_are_in_the_order_of_folders(tmp_path):
    for name in ("b/a.txt", "b.txt", "a-1.txt", "other.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(tmp_path) == [("a-1.txt",), ("b/a.txt",), ("b.txt",)]
    assert read(tmp_path, patterns=("nothing*", "b*")) == [("b/a.txt",), ("b.txt",)]


def test_addresses_are_read_as_folders_are(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS)))
    (tmp_path / "sub" / "b.txt").write_text("text é")
    write_parquet(tmp_path / "sub" / "c.parquet", TEXTS)
    memory = fsspec.filesystem("memory")
    for path in tmp_path.rglob("*.*"):
        memory.pipe(f"/bucket/corpus/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
    here, there = Source(str(tmp_path)), Source("memory://bucket/corpus")
    assert read(there.path) == read(here.path) == read(f"file://{tmp_path}")
    assert source.hash_fragments(there.fragments()) == source.hash_fragments(here.fragments())
    assert read("memory://bucket/corpus/sub/b.txt") == [("text é",)]
    for path, says in (
        ("memory://bucket/none", "memory://bucket/none does not exist"),
        ("abfs://bucket/corpus", "cannot read abfs://bucket/corpus: .*adlfs"),
        ("nowhere://x", "cannot read nowhere://x: .*give a local path"),
    ):
        with pytest.raises(UserError, match=says):
            read(path)


write_parquet(file := io.BytesIO(), [f"text {n}" * 9 for n in range(200)])
PARQUET = file.getvalue()
BROKEN = {
    "cut.parquet": (PARQUET[:-9], "cut.parquet: "),
    "torn.parquet": (PARQUET[:40] + bytes(200) + PARQUET[240:], "torn.parquet: "),
    "cut.jsonl.gz": (gzip.compress(lines(TEXTS))[:-20], "cut.jsonl.gz: "),
    "cut.jsonl.zst": (zstandard.compress(lines(TEXTS))[:-5], "cut.jsonl.zst: Truncated"),
    "bad.txt": (b"fine \xc3", "bad.txt is not UTF-8 (unexpected end of data at byte 5)"),
    "bad.jsonl": (b'{"text": "x"}\n{"text": "\xff"}\n', "bad.jsonl is not UTF-8 (invalid start byte at byte 24)"),
    "bad.tokens": (b" = A = \n\xff\n", "bad.tokens is not UTF-8 (invalid start byte at byte 8)"),
    "long.jsonl": (b'{"text": "x"}\n' + b"1" * 5000, "long.jsonl line 2 cannot be read"),
    "names.jsonl": (json.dumps({"a\nb" * 999: 1}).encode(), "no text in the field 'text' (its fields: a\\nb"),
    "link.txt": (None, "link.txt: it is not a file"),
    "a.json": (b"{}", "has no .txt or .jsonl or"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named(tmp_path, name):
    contents, says = BROKEN[name]
    path = tmp_path / name
    path.symlink_to("nowhere") if contents is None else path.write_bytes(contents)
    with pytest.raises(UserError, match=re.escape(says)) as error:
        read(tmp_path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 999


TEXT = "some words of a text " * 500
LARGE = {
    **{f"a.txt{end}": (len(TEXT), "") for end in COMPRESS},
    **{f"a.jsonl{end}": (len(json.dumps({"text": TEXT})) + 1, " line 2") for end in COMPRESS},
    "a.tokens": (len(TEXT) + 9, " at line 2"),
    "a.parquet": (len(TEXT), " row 2 of group 0"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_record_is_as_large_as_it_may_be_and_no_larger(tmp_path, name):
    (size, where), path = LARGE[name], tmp_path / name
    if name == "a.parquet":
        write_parquet(path, ["x", TEXT, "x"])
    else:
        texts = {".txt": TEXT, ".jsonl": "\n" + json.dumps({"text": TEXT}) + "\n", ".tokens": f" = A = \n {TEXT}"}
        path.write_bytes(COMPRESS["".join(path.suffixes[1:])](texts[path.suffixes[0]].encode()))
    assert TEXT in "".join(text for (text,) in read(path, max_bytes=size))
    says = f"{re.escape(name + where)} has more than {size - 1:,} bytes; divide it, .* --max-record-bytes"
    with pytest.raises(UserError, match=says):
        read(path, max_bytes=size - 1)


@pytest.mark.parametrize(("kind", "suffix"), [*itertools.product([".txt", ".jsonl"], [".gz", ".zst"])])
def test_what_inflates_is_refused_in_bounded_memory(tmp_path, kind, suffix):
    (tmp_path / f"a{kind}{suffix}").write_bytes(COMPRESS[suffix](bytes(2**26)))
    tracemalloc.start()
    with pytest.raises(UserError, match="has more than 1,048,576 bytes"):
        read(tmp_path, max_bytes=2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


def test_bytes_that_are_not_utf8_may_be_replaced(tmp_path):
    write_parquet(tmp_path / "a.parquet", [b"fine", b"bad \xff"], pa.binary())
    with pytest.raises(UserError, match=r"a.parquet row 2 of group 0 is not UTF-8 .* at byte 4.*--errors=replace"):
        read(tmp_path)
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "bad \xff"}')
    assert read(tmp_path, errors="replace") == [("fine",), ("bad \ufffd",), ("bad \ufffd",)]


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda path: read(path, "body"), r"a.parquet: the column 'body' is not there \(its columns: id, text\)"),
        (lambda path: read(path, "id"), "the column 'id' is of int64, not text"),
        (lambda path: read(path.with_name("c.txt"), "a", "b"), "c.txt has no fields a, b; take it away, or name"),
        (lambda path: read(path.with_name("w.raw"), "a", "b"), "w.raw has no fields a, b; take it away, or name"),
        (lambda path: Source("x", format="wiki"), "unknown format 'wiki'"),
        (lambda path: Source("x", errors="ignore"), "unknown errors 'ignore'"),
    ],
)
def test_fields_that_are_not_there_and_options_that_are_unknown(tmp_path, use, says):
    write_parquet(tmp_path / "a.parquet", ["x"])
    (tmp_path / "c.txt").write_text("about these files"), (tmp_path / "w.raw").write_text("x")
    with pytest.raises(UserError, match=says):
        use(tmp_path / "a.parquet")


@given(st.lists(st.sampled_from([" \n", " = A = \n", " = = S = = \n", " text \n"])))
def test_articles_are_the_text_in_pieces(texts):
    made = list(articles(texts))
    assert "".join(made) == "".join(texts)
    begins = lambda place: texts[place - 1 : place + 1] == [" \n", " = A = \n"] and "".join(texts[:place]).strip()
    assert len(made) == sum(bool(begins(place)) for place in range(1, len(texts))) + bool(texts)


def test_a_network_that_fails_in_its_own_way_is_one_line(monkeypatch):
    def fails(*_, **__):
        raise type("LibrarysOwn", (Exception,), {})("no route\nto host")

    path = "memory://elsewhere/a.txt"
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "exists", fails)
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "open", fails)
    with pytest.raises(UserError, match=f"^cannot read {path}: no route to host; see"):
        read(path)
    with pytest.raises(UserError, match=f"^cannot read {path}: no route to host; mend"):
        files.File(path, "a.txt", 4).read_whole(10)


def test_a_text_that_a_dictionary_holds_once_is_too_large_for_any_row(tmp_path):
    """Eight rows of one text: on average they take little of the file."""
    path = tmp_path / "a.parquet"
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 8, pa.int32()), pa.array(["x" * 2**24]))
    pq.write_table(pa.table({"text": text}), path, compression="zstd", store_schema=False)
    with pytest.raises(UserError, match="a text of group 0 of .*a.parquet has more than 4,194,304 bytes"):
        read(path, max_bytes=2**22)
    assert len(read(path, max_bytes=2**24)) == 8


LONGER = [*("".join(map(chr, np.random.default_rng(n).integers(97, 123, 40 * n))) for n in range(90)), None] * 9


@pytest.mark.parametrize(
    ("version", "compression", "dictionary", "statistics"),
    [*itertools.product(("1.0", "2.0"), ("zstd", "none"), (True, False), (True, False))],
)
def test_sizes_of_pages_add_up_to_those_of_the_file(version, compression, dictionary, statistics):
    options = {"data_page_version": version, "compression": compression, "use_dictionary": dictionary}
    options |= {"write_statistics": statistics, "data_page_size": 9000, "write_batch_size": 20, "row_group_size": 500}
    file = io.BytesIO()
    pq.write_table(pa.table({"text": LONGER, "number": range(len(LONGER))}), file, **options)
    metadata = pq.ParquetFile(file).metadata
    for group, column in itertools.product(range(metadata.num_row_groups), range(2)):
        chunk = metadata.row_group(group).column(column)
        start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
        sizes = [*parquet.inflated_sizes(file, start, start + chunk.total_compressed_size)]
        headers = chunk.total_uncompressed_size - sum(sizes)
        assert (len(sizes) > 1 or chunk.path_in_schema == "number") and 9 * len(sizes) < headers < 9000 * len(sizes)


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_page_that_is_too_large_is_refused_by_its_header(tmp_path, monkeypatch, dictionary):
    path, text = tmp_path / "a.parquet", "x" * 2**23
    pq.write_table(pa.table({"text": ["short"] * 99 + [text]}), path, compression="zstd", use_dictionary=dictionary)
    assert read(path, max_bytes=2**23)[-1] == (text,)
    monkeypatch.setattr(parquet, "_PAGE", 2**21)
    with pytest.raises(UserError, match="a page of group 0 of .* has more than 2,097,152 bytes"):
        read(path, max_bytes=2**21)


@given(st.binary(max_size=200))
def test_what_is_no_header_is_said_or_ends(data):
    try:
        assert all(size >= 0 for size in parquet.inflated_sizes(io.BytesIO(data), 0, len(data)))
    except ValueError as error:
        assert "byte" in str(error) or "kind" in str(error)


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    """Datasets prepared by TensorFlow Datasets, which are read without TensorFlow and without their code."""
    folder = tmp_path_factory.mktemp("tensorflow_datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds

        class Small(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.0.0")
            BUILDER_CONFIGS = tuple(tfds.core.BuilderConfig(name=n, version="1.0.0") for n in ("en", "de_1"))

            def _info(self):
                texts = {"text": tfds.features.Text(), "title": tfds.features.Text()}
                return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(texts))

            def _split_generators(self, download):
                return {"train": self._generate_examples(300), "validation": self._generate_examples(2)}

            def _generate_examples(self, count):
                for number in range(count):
                    yield number, {"text": f"text {number} é", "title": f"{self.builder_config.name} {number}"}

        Small.name = "small__texts"
        for name in ("en", "de_1"):
            Small(config=name, data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


@pytest.fixture
def there(tfds_folder, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.utils.file_utils, "_REGISTERED_DATA_DIRS", {tfds_folder})
    return tfds_folder


def test_splits_and_configurations(there, monkeypatch):
    monkeypatch.setattr("bam_jax.data.sources.tfds._RECORDS", 128)
    records = read("tfds:small__texts/en", "text", "title")
    assert sorted(records) == sorted((f"text {n} é", f"en {n}") for n in range(300))
    assert records == read("tfds:small__texts/en:train", "text", "title")
    parts = Source("tfds:small__texts/en").fragments()
    ranges = ("0:128", "128:256", "256:300")
    assert [part.name for part in parts] == [f"small__texts/en/1.0.0:train[{each}]" for each in ranges]
    for part in parts:
        done = [size for _, size in part.read()]
        assert done == sorted(done) and done[-1] == part.size
    assert len(read("tfds:small__texts/de_1:1.0.0:validation")) == 2
    assert len(read("tfds:huggingface:Small__Texts/de-1:validation")) == 2
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("tfds:lm1b", r"is not among the prepared datasets .*tfds.data_source\('lm1b'\)"),
        ("tfds:huggingface:a/b:test", r"is not among the prepared .*tfds.data_source\('huggingface:a/b'\)"),
        ("tfds:a:b:c", r"is not tfds:NAME\[:VERSION\]\[:SPLIT\]"),
        ("tfds:small__texts/en:test", "has no split 'test'; its splits: train, validation"),
        ("tfds:small__texts/en", r"has no feature 'body' \(its features: text, title\)"),
        ("tfds:small__texts/de_1", "is prepared as tfrecord, .*prepare it as array_record: python -c"),
    ],
)
def test_what_is_not_there_or_needs_tensorflow(there, tmp_path, monkeypatch, path, says):
    import tensorflow_datasets as tfds

    shutil.copytree(there, tmp_path / "data")
    info = tmp_path / "data" / "small__texts" / "de_1" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    monkeypatch.setattr(tfds.core.utils.file_utils, "_REGISTERED_DATA_DIRS", {tmp_path / "data"})
    with pytest.raises(UserError, match=says):
        read(path, "body")
