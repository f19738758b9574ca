"""Every corpus is read from a small file in its schema, and says how it is fetched."""

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bam_jax.data import prepare
from bam_jax.data.corpora.presets import CORPORA
from bam_jax.data.prepared.manifest import read_manifest
from bam_jax.system.errors import UserError

TEXTS = [f"Document {number} has so many words: {'word ' * (number % 13)}and ends.\n" for number in range(400)]
UNREAD = {"id": "x", "url": "x", "title": "x", "date": "x", "language_score": 0.9, "int_score": 7}
TRIPLET = ("query", "positive", "negative")
HUB = {
    "fineweb-10bt": "sample/10BT/00{}_00000.parquet",
    "fineweb-1b": "sample/10BT/00{}_00000.parquet",
    "fineweb-edu-10bt": "sample/10BT/00{}_00000.parquet",
    "wikipedia-en": "20231101.en/train-0000{}-of-00041.parquet",
    "ms-marco": "triplet-hard/train-0000{}-of-00021.parquet",
}
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


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


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
    assert set(train) | set(held_out) <= set(texts)
    assert train == [text for text in texts if text in set(train)] and not set(train) & set(held_out)
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


def test_broken_files_are_not_taken_for_missing():
    Path("corpora/fineweb-10bt").mkdir(parents=True)
    Path("corpora/fineweb-10bt/000_00000.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(UserError, match="cannot read .*000_00000.parquet"):
        run("fineweb-10bt")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--preset=fineweb-10bt", "--split=test"], "has no split 'test'"),
        (["--preset=ms-marco"], "--tokenizer=bert:PATH .*vocab.txt"),
        (["--preset=wikitext-103"], "--tokenizer=gpt2:PATH .*vocab.bpe and encoder.json"),
    ],
)
def test_options(options, says):
    with pytest.raises(UserError, match=says):
        prepare.main([*options, "--out=out"])
