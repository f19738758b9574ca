"""Every corpus, and one of one's own, is read from a small file in its schema, and says how it is fetched."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data import prepare
from bam_jax.data.corpora.presets import CORPORA, FORMATS, Corpus
from bam_jax.data.prepared.manifest import read_manifest
from bam_jax.data.prepared.sampling import REPORTED, count_in_texts
from bam_jax.data.sources.corpus import divide, read_texts
from bam_jax.data.tokenizers import tokenizer
from bam_jax.system.errors import UserError

TEXTS = [f"Document {number} has so many words: {'word ' * (number % 13)}and ends.\n" for number in range(400)]
UNREAD = {"id": "x", "url": "x", "title": "x", "date": "x", "language_score": 0.9, "int_score": 7}
TRIPLET = ("query", "positive", "negative")
HUB = dict.fromkeys(("fineweb-10bt", "fineweb-1b", "fineweb-edu-10bt"), "sample/10BT/00{}_00000.parquet")
HUB |= {"wikipedia-en": "20231101.en/train-0000{}-of-00041.parquet"}
HUB |= {"ms-marco": "triplet-hard/train-0000{}-of-00021.parquet"}
ARTICLE = [
    "",
    " = {} = \n",
    "",
    " It is an article , with <unk> in it . \n",
    "",
    " = = Section = = \n",
    "",
    " x = y \n",
]
LINES = [line.format(title) for title in ("One", "Two", "Three") for line in ARTICLE]
FETCHED = [name for name, corpus in CORPORA.items() if corpus.make is None]


def couplets(lines):
    """A document of every two lines."""
    lines = list(lines)
    return map("".join, zip(lines[::2], lines[1::2], strict=True))


VERSES = Corpus(paper="of one's own", licence="CC0", splits={"train": ("*.txt",)}, format="couplets", tokenizer="byte")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def own(tmp_path, monkeypatch, contributed):
    """The corpus that CONTRIBUTING.md shows, and one with a format of its own: their texts."""
    monkeypatch.setitem(CORPORA, "arxiv", contributed("ARXIV").ARXIV)
    monkeypatch.setitem(CORPORA, "verses", VERSES)
    monkeypatch.setitem(FORMATS, "couplets", couplets)
    for name in ("arxiv", "verses"):
        (tmp_path / "corpora" / name).mkdir(parents=True)
    records = [{"id": n, "title": f"Title {n}", "abstract": f"Abstract {n}."} for n in range(5)]
    (tmp_path / "corpora/arxiv/a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "corpora/verses/a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "corpora/verses/b.txt").write_text("four\n")  # the second half of what the first file begins
    return {"arxiv": [f"Title {n}\n\nAbstract {n}." for n in range(5)], "verses": ["one\ntwo\n", "three\nfour\n"]}


def run(name, *options):
    prepare.main([f"--preset={name}", "--tokenizer=byte", "--out=out", "--workers=0", *options])


@pytest.mark.parametrize("name", HUB)
def test_files_of_the_hub(decoded, name):
    fields = TRIPLET if name == "ms-marco" else ("text",)
    for number in (0, 1):
        file = Path("corpora") / name / HUB[name].format(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [UNREAD | {field: f"{field} {text}" for field in fields} for text in TEXTS[200 * number :][:200]]
        pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=60)
    (Path("corpora") / name / "README.md").write_text("no text of the corpus")
    holdout = ["--holdout-tokens=2000"] if CORPORA[name].holdout_tokens else []
    holdout += ["--holdout-records=40"] if CORPORA[name].holdout_records else []
    run(name, *holdout)
    train, held_out, manifest = decoded("out"), decoded("out", "held_out"), read_manifest("out")
    texts = [f"{field} {text}" for text in TEXTS for field in fields]
    assert manifest.recipe["preset"] == name and manifest.fields == fields
    assert manifest.recipe["sample_records"] == (1_250_000 if name == "ms-marco" else None)
    assert train == [text for text in texts if text in set(train)]
    assert not set(train) & set(held_out) and set(held_out) <= set(texts)
    if name == "ms-marco":
        assert (len(train), len(held_out)) == (3 * 360, 3 * 40)
    else:
        assert manifest.tokens("held_out") >= 2000 if holdout else train == texts


@pytest.mark.parametrize("form", ["parquet", "raw", "tokens"])
def test_wikitext(decoded, form):
    folder = Path("corpora/wikitext-2") / ("wikitext-2-raw-v1" if form == "parquet" else "")
    folder.mkdir(parents=True)
    for split, short in (("train", "train"), ("validation", "valid"), ("test", "test")):
        lines = [line.replace("One", split) for line in LINES]
        if form == "parquet":
            for number, part in enumerate((lines[:11], lines[11:])):
                pq.write_table(pa.table({"text": part}), folder / f"{split}-0000{number}-of-00002.parquet")
        else:
            (folder / f"wiki.{short}.{form}").write_text("".join(line or " \n" for line in lines))
    for split in ("train", "validation", "test"):
        run("wikitext-2", f"--split={split}")
        texts = decoded("out")
        assert "".join(texts) == "".join(line.replace("One", split) or " \n" for line in LINES)
        assert [re.search("= (.*) =", text)[1] for text in texts] == [split, "Two", "Three"]
        Path("out").rename(split)


@pytest.mark.parametrize("name", FETCHED)
def test_what_is_not_there_is_fetched_by_the_command_that_is_named(folder, name):
    with pytest.raises(UserError) as error:
        run(name)
    corpus, command = CORPORA[name], re.search(r"(hf download .*)  \(or name", str(error.value))[1]
    where = ["--repo-type", "dataset", "--include", corpus.include, "--local-dir", f"corpora/{name}"]
    assert shlex.split(command) == ["hf", "download", corpus.repository, *where]
    assert not list(folder.iterdir())
    for patterns in corpus.splits.values():  # what is fetched is what is read
        assert patterns[0].split("/")[:-1] == corpus.include.split("/")[:-1]


def test_one_of_ones_own_is_prepared_and_read_by_its_name(own, decoded, tmp_path):
    for name, wanted in own.items():
        prepare.main([f"--preset={name}", f"--out={name}-out", "--workers=0"])
        assert decoded(f"{name}-out") == wanted == list(read_texts(name))
    assert read_manifest("arxiv-out").fields == ("title+abstract",)
    with pytest.raises(UserError, match=r"--text-field \(title\+abstract, not title\)"):  # it replaces the schema
        prepare.main(["--preset=arxiv", "--out=arxiv-out", "--workers=0", "--text-field=title"])
    prepare.main(["--source=corpora/verses", "--format=couplets", "--tokenizer=byte", "--out=out", "--workers=0"])
    assert decoded("out") == own["verses"], "a format serves other files"
    (tmp_path / "arxiv").mkdir()
    (tmp_path / "arxiv" / "a.txt").write_text("mine")
    assert list(read_texts("arxiv")) == ["mine"], "a folder goes before a corpus of its name"


def test_a_corpus_that_is_made_and_splits_that_are_held_out_already(own, monkeypatch, decoded):
    small = dataclasses.replace(CORPORA["stdlib"], make=lambda: iter(["some text", " ", "more"]))
    monkeypatch.setitem(CORPORA, "stdlib", small)
    monkeypatch.setitem(CORPORA, "verses", dataclasses.replace(VERSES, splits={"test": ("*",)}, holdout_records=1))
    run("stdlib")
    assert decoded("out") == ["some text", "more"]
    prepare.main(["--preset=verses", "--split=test", "--out=test", "--workers=0"])
    assert decoded("test") == own["verses"]


def test_texts_that_are_none(tmp_path):
    (tmp_path / "corpora/ms-marco").mkdir(parents=True)
    (tmp_path / "corpora/ms-marco/a.jsonl").write_text(json.dumps(dict.fromkeys(TRIPLET, "x")))
    with pytest.raises(UserError, match="query, positive, negative, which only a prepared folder keeps together"):
        list(read_texts("ms-marco"))
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(UserError, match="holds no text"):
        list(read_texts(str(tmp_path / "a.txt")))


def test_no_paragraph_of_stdlib_is_trained_on_and_held_out():
    stdlib = list(read_texts("stdlib"))
    assert sum(map(len, stdlib)) > 1_500_000
    assert count_in_texts(stdlib, tokenizer("char")).share < REPORTED
    train, held_out = (
        {" ".join(p.split()) for text in part for p in re.split(r"\n\s*\n", text)} - {""}
        for part in divide(stdlib, 0.1)
    )
    # The one document that is cut may be cut within a paragraph; that too shares no text.
    assert len(held_out) > 1000 and not train & held_out


@given(st.lists(st.text(min_size=1)), st.floats(0, 0.99))
def test_divide_keeps_every_character_once_at_the_very_fraction(texts, holdout):
    unique = list(dict.fromkeys(texts))
    train, held_out = divide(texts, holdout)
    assert sorted("".join(train + held_out)) == sorted("".join(unique))
    assert sum(map(len, held_out)) == round(holdout * sum(map(len, unique)))
    assert len(train) + len(held_out) <= len(unique) + 1  # one document is cut, at most


def test_divide_goes_by_hash_and_within_a_document_by_place():
    assert divide(["abcdefghij"], 0.2) == (["abcdefgh"], ["ij"])
    texts = [f"document {number:03}" for number in range(200)]
    assert set(divide(texts, 0.1)[1]) == set(divide(texts[::-1], 0.1)[1]) != set(texts[-20:])
