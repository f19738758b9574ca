"""Every corpus is read from a small file in exactly its schema, and says how it is fetched."""

import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bam_jax.data import prepare
from bam_jax.data.corpora.presets import CORPORA
from bam_jax.data.prepared import shards
from bam_jax.data.prepared.manifest import SPLITS, read_manifest
from bam_jax.system.errors import UserError

TEXTS = [f"Document {number} has so many words: {'word ' * (number % 13)}and ends.\n" for number in range(400)]
FINEWEB = {
    "text": pa.string(),
    "id": pa.string(),
    "dump": pa.string(),
    "url": pa.string(),
    "date": pa.string(),
    "file_path": pa.string(),
    "language": pa.string(),
    "language_score": pa.float64(),
    "token_count": pa.int64(),
}
EDU = {name: kind for name, kind in FINEWEB.items() if name != "date"} | {
    "score": pa.float64(),
    "int_score": pa.int64(),
}
WIKIPEDIA = {"id": pa.string(), "url": pa.string(), "title": pa.string(), "text": pa.string()}
TRIPLETS = {"query": pa.string(), "positive": pa.string(), "negative": pa.string()}
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


def table(schema, texts):
    """Rows in the schema; other columns hold what such a column may."""
    others = {pa.string(): "x", pa.float64(): 0.9, pa.int64(): 7}
    rows = []
    for text in texts:
        row = {name: others[kind] for name, kind in schema.items()}
        row |= {name: f"{name} {text}" for name in TRIPLETS} if schema is TRIPLETS else {"text": text}
        rows.append(row)
    return pa.Table.from_pylist(rows, pa.schema(list(schema.items())))


HUB = {
    "fineweb-10bt": ("sample/10BT/00{}_00000.parquet", FINEWEB),
    "fineweb-1b": ("sample/10BT/00{}_00000.parquet", FINEWEB),
    "fineweb-edu-10bt": ("sample/10BT/00{}_00000.parquet", EDU),
    "wikipedia-en": ("20231101.en/train-0000{}-of-00041.parquet", WIKIPEDIA),
    "ms-marco": ("triplet-hard/train-0000{}-of-00021.parquet", TRIPLETS),
}


FETCHED = [name for name, corpus in CORPORA.items() if corpus.make is None]


def run(name, *options):
    prepare.main([f"--preset={name}", "--tokenizer=byte", "--out=out", "--workers=0", *options])
    texts = {}
    for split in SPLITS:
        documents = shards.open_split("out", split)
        ids = documents.read(np.arange(len(documents)))
        texts[split] = [bytes(each[:-1].astype(np.uint8)).decode() for each in ids]
    return texts, read_manifest("out")


@pytest.mark.parametrize("name", HUB)
def test_files_of_the_hub(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path, schema = HUB[name]
    for number in (0, 1):
        file = Path("corpora") / name / path.format(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(schema, TEXTS[200 * number :][:200]), file, row_group_size=60)
        readme = Path("corpora") / name / "README.md"
        readme.write_text("no text of the corpus")
    holdout = ["--holdout-tokens=2000"] if CORPORA[name].holdout_tokens else []
    holdout += ["--holdout-records=40"] if CORPORA[name].holdout_records else []
    texts, manifest = run(name, *holdout)
    assert manifest.recipe["preset"] == name
    if schema is TRIPLETS:
        assert manifest.fields == ("query", "positive", "negative")
        triplets = [f"{field} {text}" for text in TEXTS for field in TRIPLETS]
        assert len(texts["held_out"]) == 3 * 40
        assert texts["train"] == [text for text in triplets if text not in set(texts["held_out"])]
        assert manifest.recipe["sample_records"] == 1_250_000
    elif holdout:
        assert texts["held_out"] and set(texts["train"]) | set(texts["held_out"]) < set(TEXTS)
        assert manifest.tokens("held_out") >= 2000
    else:
        assert texts["train"] == TEXTS


@pytest.mark.parametrize("name", ["wikitext-2", "wikitext-103"])
@pytest.mark.parametrize("form", ["parquet", "raw", "tokens"])
def test_wikitext(tmp_path, monkeypatch, name, form):
    monkeypatch.chdir(tmp_path)
    folder = Path("corpora") / name
    whole = "".join(line or " \n" for line in LINES)
    if form == "parquet":
        folder /= f"{name}-raw-v1"
    folder.mkdir(parents=True)
    for split, short in (("train", "train"), ("validation", "valid"), ("test", "test")):
        if form == "parquet":
            lines = [line.replace("One", split) for line in LINES]
            for number, part in enumerate((lines[:11], lines[11:])):
                file = folder / f"{split}-0000{number}-of-00002.parquet"
                pq.write_table(pa.table({"text": part}), file)
        else:
            (folder / f"wiki.{short}.{form}").write_text(whole.replace("One", split))
    for split in ("train", "validation", "test"):
        texts, _ = run(name, f"--split={split}")
        assert "".join(texts["train"]) == whole.replace("One", split)
        titles = [re.search("= (.*) =", text)[1] for text in texts["train"]]
        assert titles == [split, "Two", "Three"]
        Path("out").rename(split)


@pytest.mark.parametrize("name", FETCHED)
def test_what_is_not_there_is_fetched_by_the_command_that_is_said(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        run(name)
    assert "\n" not in str(error.value)
    command = re.search(r"(hf download .*)  \(or name", str(error.value))[1]
    hf, download, repository, *options = shlex.split(command)
    assert (hf, download, repository) == ("hf", "download", CORPORA[name].repository)
    assert options == ["--repo-type", "dataset", "--include", CORPORA[name].include, "--local-dir", f"corpora/{name}"]
    assert not list(tmp_path.iterdir())


def test_what_is_fetched_is_what_is_read():
    """The first pattern of each split lies in what the command fetches."""
    for name in FETCHED:
        for patterns in CORPORA[name].splits.values():
            assert patterns[0].split("/")[:-1] == CORPORA[name].include.split("/")[:-1], name


def test_broken_files_are_not_taken_for_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
def test_options(options, says, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(UserError, match=says):
        prepare.main([*options, "--out=out"])
