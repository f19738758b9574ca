"""Mistakes on the command lines of data end in one line, and change no file."""

import re

import pytest

from bam_jax.data import inspect, make_retrieval, prepare, train_tokenizer

TALE = "it was the best of times, it was the worst of times, in 1984 and 1985, it was <eos> the age of wisdom. "
PREPARE = [
    ("--tokenizer=byte", "--source is not given"),
    ("--source=in --split=train", "--split=train chooses among the files of a --preset; give one, or"),
    ("--source=in --max-tokens=0", "'0' is not a whole number of at least 1"),
    (f"--source=in --seed={2**63}", "is not a whole number of 64 bits"),
    ("--source=in --sample-records=5 --max-records=9", "draws from the whole source and --max-records=9"),
    ("--source=in --tokenizer=byte --holdout-records=7", "=7 is more than a third of the source's 20 records"),
    ("--source=in --tokenizer=byte --holdout-tokens=900", "=900 is more than a third of the source's tokens"),
    (
        "--source=in --text-field=a,b --format=wikitext --tokenizer=byte",
        "reads lines of one field, not of a, b; give one",
    ),
    ("--preset=finweb-10bt", "did you mean 'fineweb-10bt'"),
    ("--preset=fineweb-10bt --split=test", "has no split 'test'"),
    ("--preset=fineweb-10bt --tokenizer=byte", "cannot read .*000_00000.parquet"),  # it is not missing
    ("--preset=ms-marco", "--tokenizer=bert:PATH .*vocab.txt"),
    ("--preset=wikitext-103", "--tokenizer=gpt2:PATH .*vocab.bpe and encoder.json"),
    ("--preset=stdlib --source=x", "stdlib is read from no files; leave --source"),
    (
        "--preset=wikipedia-en --source=nowhere --tokenizer=byte",
        r"wikipedia-en \(train\) is not at nowhere; fetch it there",
    ),
]
TRAIN = [
    ("--vocab=257", "give 258 or more"),
    ("--vocab=400 --out=there.json", "there.json exists"),
    ("--vocab=400 --characters=0", "must be more than 0"),
    ("--vocab=400 --source=. --out=vocab.txt", "vocab.txt lies in the data source ., where it would be"),
    ("--kind=bert --vocab=20", "a vocabulary of 20 pieces has no room for the text's characters; give [0-9]+"),
    ("--kind=brt --vocab=400", "--kind=brt is unknown; did you mean 'bert'"),
]
RETRIEVAL = [
    ("--passage=0", "--passage=0 must be 1 or more"),
    ("--test=1.0", "--test=1.0 must be above 0 and below 1"),
    ("--document=1000000", "0 documents and 0 queries, too few"),
]
INSPECT = [
    ("", "give a prepared folder or a data source, or --config=FILE"),
    ("text.txt --rows=-1", "--rows=-1 must be 0 or more"),
    ("text.txt --plot=x.pdf", "--plot=x.pdf must end with .png"),
    ("text.txt --config.data.tokenizer=bpe:none", "finds no file at none"),
]
MISTAKES = [
    *((prepare, f"--out=out {line}", says) for line, says in PREPARE),
    *((train_tokenizer, f"--source=text.txt --out=bpe.json {line}", says) for line, says in TRAIN),
    *((make_retrieval, f"--source=text.txt --out=out {line}", says) for line, says in RETRIEVAL),
    *((inspect, line, says) for line, says in INSPECT),
]


@pytest.mark.parametrize(("module", "line", "says"), MISTAKES)
def test_a_mistake_is_one_line_and_changes_nothing(tmp_path, monkeypatch, refused, module, line, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    (tmp_path / "in").mkdir(), (tmp_path / "corpora/fineweb-10bt").mkdir(parents=True)
    for n in range(20):
        (tmp_path / "in" / f"{n}.txt").write_text(TALE)
    (tmp_path / "corpora/fineweb-10bt/000_00000.parquet").write_bytes(b"PAR1 cut")
    (tmp_path / "there.json").write_text("precious"), (tmp_path / "text.txt").write_text(TALE)
    files = lambda: {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    before = files()
    assert re.search(says, refused(module.main, *line.split()))
    assert files() == before
