"""Every kind of source gives its records, in order, in parts that can be read by themselves; what is broken is named."""

import gzip
import json
import os
import re
import sys
import tracemalloc

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bam_jax.data.corpora.presets import articles
from bam_jax.data.sources import source
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
    (tmp_path / f"b.jsonl{suffix}").write_bytes(COMPRESS[suffix](lines(TEXTS) + b"\n"))
    (tmp_path / f"a.txt{suffix}").write_bytes(COMPRESS[suffix]("whole\r\n é".encode()))
    assert read(tmp_path) == [("whole\n é",), *((text,) for text in TEXTS)]


def test_several_frames_and_members_are_one_stream(tmp_path):
    first, second = lines(TEXTS[:2]), lines(TEXTS[2:])
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(first) + zstandard.compress(second))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(first) + gzip.compress(second))
    assert read(tmp_path) == 2 * [(text,) for text in TEXTS]


def write_parquet(path, texts, *, rows=2, kind=None, **columns):
    table = pa.table({"id": list(range(len(texts))), "text": pa.array(texts, kind or pa.string())} | columns)
    pq.write_table(table, path, row_group_size=rows)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_parquet(tmp_path, kind):
    write_parquet(
        tmp_path / "a.parquet", [text.encode() for text in TEXTS] if kind == pa.binary() else TEXTS, kind=kind
    )
    write_parquet(tmp_path / "b.parquet", [None, "last"])
    assert read(tmp_path) == [*((text,) for text in TEXTS), ("",), ("last",)]
    assert [part.name for part in Source(str(tmp_path)).fragments()] == [
        *(f"a.parquet#{n}" for n in range(3)),
        "b.parquet#0",
    ]


@pytest.mark.parametrize("name", ["README.txt", "wiki.raw", "wiki.tokens"])
def test_a_file_without_fields_is_none_of_records(tmp_path, name):
    (tmp_path / "b.jsonl").write_text('{"query": "q", "positive": "p"}')
    (tmp_path / name).write_text("about these files")
    with pytest.raises(UserError, match=f"{name} has no fields query, positive; take it away, or name the files that"):
        read(tmp_path, "query", "positive")


@settings(max_examples=20)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=9), st.integers(1, 4))
def test_kinds_agree(tmp_path_factory, texts, rows):
    folder = tmp_path_factory.mktemp("source")
    write_parquet(folder / "a.parquet", texts, rows=rows)
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(lines(texts)))
    assert read(folder / "a.parquet") == read(folder / "a.jsonl.zst") == [(text,) for text in texts]


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
    for name in ("b/a.txt", "b.txt", "a/z.txt", "a-1.txt", ".hidden.txt", "other.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(tmp_path) == [("a/z.txt",), ("a-1.txt",), ("b/a.txt",), ("b.txt",)]
    assert read(tmp_path, patterns=("nothing*", "b*")) == [("b/a.txt",), ("b.txt",)]
    assert read(tmp_path / "b.txt", patterns=("nothing*",)) == [("b.txt",)]


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
    with pytest.raises(UserError, match="memory://bucket/none does not exist"):
        read("memory://bucket/none")


def test_addresses_that_need_other_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UserError, match="cannot read gs://bucket/corpus: .*gcsfs"):
        read("gs://bucket/corpus")
    with pytest.raises(UserError, match="cannot read nowhere://x: .*give a local path"):
        read("nowhere://x")


BROKEN = {
    "cut.parquet": (lambda good: good[:-9], "cut.parquet: "),
    "torn.parquet": (lambda good: good[:40] + bytes(200) + good[240:], "torn.parquet: "),
    "no.parquet": (lambda good: b"not parquet", "no.parquet: "),
    "cut.jsonl.gz": (lambda good: gzip.compress(lines(TEXTS))[:-20], "cut.jsonl.gz: "),
    "cut.jsonl.zst": (lambda good: zstandard.compress(lines(TEXTS))[:-5], "cut.jsonl.zst: Truncated"),
    "no.jsonl.gz": (lambda good: b"not gzip", "no.jsonl.gz: "),
    "no.txt.zst": (lambda good: b"not zstandard", "no.txt.zst: ZSTD"),
    "bad.txt": (lambda good: b"fine \xc3", "bad.txt is not UTF-8 (unexpected end of data at byte 5)"),
    "bad.jsonl": (
        lambda good: b'{"text": "x"}\n{"text": "\xff"}\n',
        "bad.jsonl is not UTF-8 (invalid start byte at byte 24)",
    ),
    "bad.tokens": (lambda good: b" = A = \n\xff\n", "bad.tokens is not UTF-8 (invalid start byte at byte 8)"),
    "deep.jsonl": (lambda good: b"[" * 10**5 + b"\n", "deep.jsonl line 1 is nested too deep"),
    "long.jsonl": (lambda good: b'{"text": "x"}\n' + b"1" * 5000, "long.jsonl line 2 cannot be read"),
    "names.jsonl": (
        lambda good: json.dumps({"a\nb" * 999: 1}).encode(),
        "no text in the field 'text' (its fields: a\\nb",
    ),
    "link.txt": (None, "link.txt: it is not a file"),
    "pipe.txt": (os.mkfifo, "pipe.txt: it is not a file"),
    "a.json": (lambda good: b"{}", "has no .txt or .jsonl or"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named(tmp_path, name):
    write_parquet(tmp_path / "good", [f"text {n}" * 9 for n in range(200)])
    spoil, says = BROKEN[name]
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / name
    if spoil is None:
        path.symlink_to("nowhere")
    elif spoil is os.mkfifo:
        os.mkfifo(path)
    else:
        path.write_bytes(spoil((tmp_path / "good").read_bytes()))
    with pytest.raises(UserError, match=re.escape(says)) as error:
        read(tmp_path / "source")
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


def peak(work):
    """Bytes that Python's objects take at most meanwhile."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_what_inflates_is_read_in_bounded_memory(tmp_path, kind, suffix):
    """Sixty-four megabytes, of which a compressed file of some kilobytes gives all with its first piece."""
    path = tmp_path / f"a{kind}{suffix}"
    path.write_bytes(COMPRESS[suffix](bytes(2**26)))

    def refused():
        with pytest.raises(UserError, match="has more than 1,048,576 bytes"):
            read(path, max_bytes=2**20)

    assert peak(refused) < 4 * 2**20
    if kind == ".jsonl":
        path.write_bytes(COMPRESS[suffix]((b" " * 2**13 + b"\n") * 2**12 + b'{"text": "x"}'))
        assert peak(lambda: read(path)) < 2**21


def test_a_long_text_that_parquet_holds_once_is_decoded_few_times(tmp_path):
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 2**20]))
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", store_schema=False)
    assert (tmp_path / "a.parquet").stat().st_size < 2**20
    (part,) = Source(str(tmp_path)).fragments()
    assert peak(lambda: next(iter(part.read()))) < 2**27


def test_bytes_that_are_not_utf8_in_parquet(tmp_path):
    table = pa.table({"text": pa.array([b"fine", b"bad \xff"], pa.binary())}).cast(pa.schema([("text", pa.binary())]))
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet row 2 of group 0 is not UTF-8 .* at byte 4.*--errors=replace"):
        read(tmp_path)
    assert read(tmp_path, errors="replace") == [("fine",), ("bad \ufffd",)]
    (tmp_path / "a.parquet").unlink()
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "bad \xff"}')
    assert read(tmp_path, errors="replace") == [("bad \ufffd",)]


def test_columns_that_are_not_there_or_hold_no_text(tmp_path):
    write_parquet(tmp_path / "a.parquet", ["x"])
    with pytest.raises(UserError, match=r"a.parquet: the column 'body' is not there \(its columns: id, text\)"):
        read(tmp_path, "body")
    with pytest.raises(UserError, match="the column 'id' is of int64, not text"):
        read(tmp_path, "id")


def test_packages_of_the_extra(tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", ["x"])
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(b"x"))
    for module, name in (("pyarrow", "a.parquet"), ("pyarrow", "a.txt.zst")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(UserError, match=rf"needs the package {module}.*pip install '\.\[data\]'"):
                read(tmp_path / name)


@pytest.mark.parametrize(("option", "value"), [("format", "wiki"), ("errors", "ignore")])
def test_unknown_options(option, value):
    with pytest.raises(UserError, match=f"unknown {option} '{value}'"):
        Source("x", **{option: value})


@given(st.lists(st.sampled_from([" \n", " = A = \n", " = = S = = \n", " text \n"])))
def test_articles_are_the_text_in_pieces(texts):
    made = list(articles(texts))
    assert "".join(made) == "".join(texts)
    cuts = [
        line == " = A = \n" and any(text.strip() for text in texts[:place]) and texts[place - 1] == " \n"
        for place, line in enumerate(texts)
    ]
    assert len(made) == sum(cuts) + bool(texts)


def test_a_network_that_fails_in_its_own_way_is_one_line(monkeypatch):
    class LibrarysOwn(Exception):
        pass

    def fails(*_, **__):
        raise LibrarysOwn("no route\nto host")

    source = Source("memory://elsewhere/a.txt")
    file = files.File(source.path, "a.txt", 4)
    filesystem = type(files._filesystem(source.path)[0])
    monkeypatch.setattr(filesystem, "exists", fails)
    monkeypatch.setattr(filesystem, "open", fails)
    with pytest.raises(UserError, match="^cannot read memory://elsewhere/a.txt: no route to host; see"):
        source.fragments()
    with pytest.raises(UserError, match="^cannot read memory://elsewhere/a.txt: no route to host; mend"):
        file.read_whole(10)


def test_a_text_that_a_dictionary_holds_once_is_too_large_for_any_row(tmp_path):
    """Eight rows of one text: on average they take little of the file."""
    path = tmp_path / "a.parquet"
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 8, pa.int32()), pa.array(["x" * 2**24]))
    pq.write_table(pa.table({"text": text}), path, compression="zstd", store_schema=False)
    with pytest.raises(UserError, match="a text of group 0 of .*a.parquet has more than 4,194,304 bytes"):
        read(path, max_bytes=2**22)
    assert len(read(path, max_bytes=2**24)) == 8
