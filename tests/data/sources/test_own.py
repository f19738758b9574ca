"""A corpus of one's own is one object: a schema for its records or a way to cut its lines, and a line in CORPORA."""

import dataclasses
import json

import pytest

from bam_jax.data import prepare
from bam_jax.data.corpora.presets import CORPORA, FORMATS, Corpus
from bam_jax.data.prepared.manifest import read_manifest
from bam_jax.data.sources.corpus import read_texts
from bam_jax.system.errors import UserError


def couplets(lines):
    """A document of every two lines."""
    before = ""
    for line in lines:
        if before:
            yield before + line
        before = "" if before else line


VERSES = Corpus(paper="of one's own", licence="CC0", splits={"train": ("*.txt",)}, format="couplets", tokenizer="byte")


@pytest.fixture(autouse=True)
def corpora(tmp_path, monkeypatch, contributed):
    """The corpus that CONTRIBUTING.md shows, and one with a format of its own."""
    monkeypatch.setitem(CORPORA, "arxiv", contributed("ARXIV").ARXIV)
    monkeypatch.setitem(CORPORA, "verses", VERSES)
    monkeypatch.setitem(FORMATS, "couplets", couplets)
    monkeypatch.chdir(tmp_path)
    for name in ("arxiv", "verses"):
        (tmp_path / "corpora" / name).mkdir(parents=True)
    records = [{"id": n, "title": f"Title {n}", "abstract": f"Abstract {n}."} for n in range(5)]
    (tmp_path / "corpora/arxiv/a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "corpora/verses/a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "corpora/verses/b.txt").write_text("four\n")  # the second half of what the first file begins


WANTED = {"arxiv": [f"Title {n}\n\nAbstract {n}." for n in range(5)], "verses": ["one\ntwo\n", "three\nfour\n"]}


@pytest.mark.parametrize("name", WANTED)
def test_it_is_prepared_and_read_by_its_name(decoded, name):
    prepare.main([f"--preset={name}", "--out=out", "--workers=0"])
    assert decoded("out") == WANTED[name] == list(read_texts(name))
    assert read_manifest("out").fields == (("title+abstract",) if name == "arxiv" else ("text",))


def test_fields_that_are_given_take_the_place_of_its_schema():
    prepare.main(["--preset=arxiv", "--out=out", "--workers=0", "--text-field=title"])
    assert read_manifest("out").fields == ("title",)
    with pytest.raises(UserError, match=r"--text-field \(title, not title\+abstract\)"):
        prepare.main(["--preset=arxiv", "--out=out", "--workers=0"])


def test_its_format_serves_other_files():
    prepare.main(["--source=corpora/verses", "--format=couplets", "--tokenizer=byte", "--out=out", "--workers=0"])
    assert read_manifest("out").documents("train") == 2


def test_a_folder_goes_before_a_corpus_of_its_name(tmp_path):
    (tmp_path / "arxiv").mkdir()
    (tmp_path / "arxiv" / "a.txt").write_text("mine")
    assert list(read_texts("arxiv")) == ["mine"]


def test_what_cannot_be_held_in_memory_or_read_from_files_is_refused(tmp_path):
    (tmp_path / "corpora/ms-marco").mkdir()
    row = {"query": "q", "positive": "p", "negative": "n"}
    (tmp_path / "corpora/ms-marco/a.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match="query, positive, negative, which only a prepared folder keeps together"):
        list(read_texts("ms-marco"))
    with pytest.raises(UserError, match="stdlib is read from no files; leave --source"):
        prepare.main(["--preset=stdlib", "--source=x", "--out=out"])
    with pytest.raises(
        UserError, match=r"arxiv \(train\) is not at nowhere; fetch it there .licence: CC0.: .*someone/arxiv-abstracts"
    ):
        prepare.main(["--preset=arxiv", "--source=nowhere", "--out=out"])
    with pytest.raises(UserError, match="--format=couplets reads lines of one field, not of a, b"):
        prepare.main(["--source=x", "--text-field=a,b", "--format=couplets", "--tokenizer=byte", "--out=out"])


def test_the_corpus_of_python_is_prepared_too(monkeypatch, decoded):
    small = dataclasses.replace(CORPORA["stdlib"], make=lambda: iter(["some text", " ", "more"]))
    monkeypatch.setitem(CORPORA, "stdlib", small)
    prepare.main(["--preset=stdlib", "--tokenizer=byte", "--out=out", "--workers=0"])
    assert decoded("out") == ["some text", "more"]


def test_other_splits_are_held_out_already(monkeypatch, decoded):
    monkeypatch.setitem(CORPORA, "verses", dataclasses.replace(VERSES, splits={"test": ("*",)}, holdout_records=1))
    prepare.main(["--preset=verses", "--split=test", "--out=out", "--workers=0"])
    assert decoded("out") == WANTED["verses"]
