"""Preparing gives each document once, on the right side, in the same bytes however often it is killed."""

import gzip
import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bam_jax.config import Config, DataConfig
from bam_jax.data import loader, prepare
from bam_jax.data.prepared import sampling, shards, tokenising
from bam_jax.data.prepared.manifest import SPLITS, Manifest, read_manifest
from bam_jax.data.prepared.tokenising import Encoder, batch_records, tokenise
from bam_jax.data.sources.fragment import Fragment
from bam_jax.data.sources.source import Source
from bam_jax.data.tokenizers import tokenizer
from bam_jax.system import lock
from bam_jax.system.errors import UserError

BYTE, CHAR = tokenizer("byte"), tokenizer("char")
LATIN, CYRILLIC = "a tale of some length, 1 of 2. ", "Это ДЛИННАЯ повесть. "
MIXED = 3 * LATIN + CYRILLIC
LINE = f"{17 / len(MIXED):.0%} are unknown to the tokenizer 'char'"


def corpus(folder, texts, files=3):
    """The texts in .jsonl files, gzipped ones among them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        piece = texts[number * len(texts) // files : (number + 1) * len(texts) // files]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in piece).encode()
        path, packed = (".gz", gzip.compress(lines)) if number % 2 else ("", lines)
        (folder / f"{number}.jsonl{path}").write_bytes(packed)
    return folder


def words(count):
    """Documents of up to 407 characters, none twice."""
    rng = random.Random(0)
    return [f"{number} " + "".join(rng.choices("abc de\n", k=rng.randrange(1, 400))) for number in range(count)]


@pytest.fixture
def source(tmp_path):
    return corpus(tmp_path / "in", words(20))


def run(source, out, *options, tokens="byte", workers=0):
    prepare.main([f"--source={source}", f"--tokenizer={tokens}", f"--out={out}", f"--workers={workers}", *options])


def divided(decoded, out, records):
    """The texts to train on and those held out: disjoint, in the order of the source, none lost; and the manifest."""
    manifest, split = read_manifest(out), [decoded(out, name) for name in SPLITS]
    counts = manifest.counts
    assert not set(split[0]) & set(split[1])
    places = [[records.index(text) for text in dict.fromkeys(each)] for each in split]
    assert all(each == sorted(each) for each in places)
    assert counts["records"] == len(records) == counts["left_out"] + counts["empty"] + sum(map(len, split))
    return *split, manifest


def contents(folder):
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@settings(max_examples=15)
@given(
    texts=st.lists(st.text(max_size=30), max_size=30).filter(lambda texts: any(text.strip() for text in texts)),
    shard=st.integers(1, 300),
    batch=st.integers(1, 100),
)
def test_every_document_once_and_in_order(tmp_path_factory, decoded, texts, shard, batch):
    folder = tmp_path_factory.mktemp("prepare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenising, "BATCH", batch)
        run(corpus(folder / "in", texts), folder / "out", f"--shard-tokens={shard}")
    full = [text for text in texts if text.strip()]
    assert decoded(folder / "out") == full and decoded(folder / "out", "held_out") == []
    manifest = read_manifest(folder / "out")
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    counts = {"records": len(texts), "empty": len(texts) - len(full), "left_out": 0, "bytes": size}
    assert manifest.counts == counts
    assert all(each.tokens >= shard for each in manifest.shards["train"][:-1])
    assert all(each.documents == 1 or each.tokens - shard < 121 for each in manifest.shards["train"])
    shards.verify(folder / "out")


@pytest.mark.parametrize("place", ["append", "close", "write", "replace"])
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(tmp_path, monkeypatch, place):
    """Stopped before every n-th call of what changes the folder, again and again until it comes through."""
    monkeypatch.setattr(tokenising, "BATCH", 500)
    source = corpus(tmp_path / "in", words(60))
    drawn = ("--sample-records=40", "--holdout-records=9")
    options = ("--shard-tokens=2000", *(drawn if place in ("close", "write") else ["--holdout-tokens=1500"]))
    run(source, tmp_path / "whole", *options)
    owner = {"append": shards.ShardWriter, "close": shards.ShardWriter, "write": Manifest, "replace": Path}[place]
    real, left, stops = getattr(owner, place), 0, 0

    def stopping(*arguments):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(owner, place, stopping)
    for every in (*np.repeat((1, 2, 3, 5, 7, 11, 13), 8).tolist(), 10**9):
        left = every
        try:
            run(source, tmp_path / "stopped", *options)
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops > 8
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


@pytest.mark.skipif(signal.getsignal(signal.SIGINT) == signal.SIG_IGN, reason="a shell's background jobs ignore Ctrl-C")
def test_processes_end_with_a_signal_and_workers_change_nothing(tmp_path):
    """Ctrl-C reaches all processes of a terminal; workers end with a parent that is killed."""
    source, out = corpus(tmp_path / "in", words(3000)), tmp_path / "out"
    options = ["--sample-records=2500", "--holdout-records=90", "--shard-tokens=3000"]
    line = [sys.executable, "-m", "bam_jax.data.prepare", f"--source={source}", f"--out={out}", "--tokenizer=byte"]
    line += ["--workers=2", *options]
    for number, (signum, status) in enumerate([(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]):
        process = subprocess.Popen(line, start_new_session=True, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and len(list(out.glob("train-*"))) < 2 + 2 * number:
            time.sleep(0.005)
        (os.kill if signum == signal.SIGKILL else os.killpg)(process.pid, signum)
        _, said = process.communicate()
        assert process.returncode == status and "Traceback" not in said
        with pytest.raises(ProcessLookupError):
            for _ in range(2000):
                os.killpg(process.pid, 0)
                time.sleep(0.01)
    run(source, out, *options, workers=2)
    run(source, tmp_path / "whole", *options)
    assert contents(out) == contents(tmp_path / "whole") and len(read_manifest(out).shards["train"]) > 8


def test_a_complete_folder_is_left_alone_and_another_recipe_refused(source, tmp_path, capsys):
    out = tmp_path / "out"
    run(source, out)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    for option, says in (
        ("--tokenizer=char", "was begun with another value of --tokenizer"),
        ("--text-field=body", "of --text-field (text, not body)"),
        ("--seed=3", "of --seed (0, not 3)"),
    ):
        with pytest.raises(UserError, match=re.escape(says)):
            run(source, out, option)
    source.rename(tmp_path / "moved")
    capsys.readouterr()
    run(tmp_path / "moved", out)
    assert "is complete already: train" in capsys.readouterr().out
    (tmp_path / "moved" / "new.txt").write_text("more")
    with pytest.raises(UserError, match="another value of the files of the source"):
        run(tmp_path / "moved", out)
    assert before == {path: path.stat().st_mtime_ns for path in out.iterdir()}


def test_before_the_first_shard_a_mistake_costs_nothing(source, tmp_path):
    for wrong in ("--text-field=body", "--tokenizer=char"):
        with pytest.raises(UserError, match="no text in the field 'body'"):
            run(source, tmp_path / "out", "--text-field=body", wrong)
    run(source, tmp_path / "out")
    run(source, tmp_path / "straight")
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")


def test_folders_of_other_things_in_the_source_or_in_use_are_refused(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="out holds other files; name a folder that is empty"):
        run(source, tmp_path / "out")
    assert contents(tmp_path / "out").keys() == {"thesis.tex"}
    # The copy of its tokenizer would be text of the source when it is gone on with.
    with pytest.raises(UserError, match="--out=.*in/out lies in the data source .*in, where it would be read as data"):
        run(source, source / "out")
    assert not (source / "out").exists()
    (tmp_path / "used").mkdir()
    with lock.hold(tmp_path / "used" / lock.NAME), pytest.raises(UserError, match="another process is preparing"):
        run(source, tmp_path / "used")


def test_the_holdout_is_of_whole_documents_spread_over_the_source_and_of_the_size_asked_for(tmp_path, decoded):
    texts, out = words(800), tmp_path / "out"
    run(corpus(tmp_path / "in", texts), out, "--holdout-tokens=20000", "--shard-tokens=30000")
    _, held_out, manifest = divided(decoded, out, texts)
    assert 20_000 <= manifest.tokens("held_out") < 20_000 + 410
    assert 0 < manifest.counts["left_out"] < 1.2 * len(held_out), "at most about half as many again are reserved"
    thirds = [sum(text in set(held_out) for text in texts[place : place + 133]) for place in (0, 133, 266)]
    assert min(thirds) > 0.5 * max(thirds)


def test_the_split_goes_by_text_and_seed(tmp_path, decoded):
    """Not by the tokenizer's ids, nor by the place: the reserved documents are the same ones."""
    texts, holdout = words(400), "--holdout-tokens=9000"
    run(corpus(tmp_path / "in", texts), tmp_path / "a", holdout)
    run(corpus(tmp_path / "back", texts[::-1]), tmp_path / "b", holdout)
    run(tmp_path / "in", tmp_path / "c", holdout, "--seed=1")
    run(tmp_path / "in", tmp_path / "d", holdout, tokens="char")
    a, b, c = ([set(decoded(tmp_path / name, split)) for split in SPLITS] for name in "abc")
    assert a[0] == b[0] and not b[1] & a[0] and len(a[1] & c[1]) < 0.5 * len(a[1])
    assert abs(len(a[0]) - len(shards.open_split(tmp_path / "d", "train"))) < 20
    hashes = Encoder(BYTE, 0)((("ab", "c"), ("a", "bc"))).hashes
    assert hashes[0] != hashes[1], "the division of a record counts"


def test_a_sample_is_of_the_very_size_and_no_text_is_on_both_sides(tmp_path, decoded):
    """However often the source repeats a text: of those on the edge the first are taken."""
    texts = [text for text in words(60) for _ in range(5)]
    random.Random(1).shuffle(texts)
    source = corpus(tmp_path / "in", [*texts, "", " "])
    for held_out, train in ((9, 101), (0, 3), (50, None), (100, 1000)):
        out = tmp_path / f"{held_out} {train}"
        run(source, out, f"--holdout-records={held_out}", *([f"--sample-records={train}"] if train else []))
        trained, held, _ = divided(decoded, out, [*texts, "", " "])
        assert (len(trained), len(held)) == (min(train or 1000, 300 - -(-held_out // 5) * 5), held_out)
    run(corpus(tmp_path / "distinct", words(200)), tmp_path / "out", "--holdout-records=40")
    early = [int(text.split()[0]) < 100 for text in decoded(tmp_path / "out", "held_out")]
    assert 0.3 < np.mean(early) < 0.7, "from the whole source"


def test_limits(tmp_path, decoded):
    texts = words(200)
    run(corpus(tmp_path / "in", texts), tmp_path / "tokens", "--max-tokens=5_000", "--shard-tokens=2000")
    manifest = read_manifest(tmp_path / "tokens")
    assert 5000 <= manifest.tokens("train") < 5410
    assert decoded(tmp_path / "tokens") == texts[: manifest.documents("train")]
    run(tmp_path / "in", tmp_path / "records", "--max-records=7")
    assert decoded(tmp_path / "records") == texts[:7]
    with pytest.raises(UserError, match=r"jsonl line \d+ has more than 100 bytes; .* --max-record-bytes"):
        run(tmp_path / "in", tmp_path / "small", "--max-record-bytes=100")
    run(tmp_path / "in", tmp_path / "both", "--max-tokens=5000", "--holdout-tokens=1000")
    both = read_manifest(tmp_path / "both")
    assert 5000 <= both.tokens("train") < 5410 and 1000 <= both.tokens("held_out") < 1410


def test_triplets_stay_together(tmp_path, decoded):
    rows = [{"query": f"q{n}", "positive": f"p{n} " * (n % 7 + 1), "negative": f"n{n}"} for n in range(300)]
    rows[11]["negative"] = " "  # as good as nothing: the triplet is left out
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ("--shard-tokens=500", "--holdout-tokens=700", "--max-records=250")
    run(tmp_path / "a.jsonl", tmp_path / "out", "--text-field=query,positive,negative", *options)
    manifest = read_manifest(tmp_path / "out")
    assert manifest.fields == ("query", "positive", "negative") and manifest.counts["empty"] == 1
    assert all(each.documents % 3 == 0 for split in SPLITS for each in manifest.shards[split])
    found = [decoded(tmp_path / "out", split) for split in SPLITS]
    triplets = [each for texts in found for each in zip(*[iter(texts)] * 3, strict=True)]
    wanted = [tuple(row.values()) for number, row in enumerate(rows[:250]) if number != 11]
    assert all(found) and set(triplets) <= set(wanted)
    assert len(triplets) + manifest.counts["left_out"] == len(wanted)


def test_no_text(tmp_path):
    for texts in [], [" ", "\n"]:
        for options in [], ["--holdout-tokens=5"]:
            with pytest.raises(UserError, match="holds? no text"):
                run(corpus(tmp_path / "in", texts), tmp_path / "out", *options)


def test_a_full_disk(tmp_path):
    """Files may not grow beyond 300 KiB: the error that writing then gives stands for that of a full disk."""
    source, size = corpus(tmp_path / "in", words(3000)), "--shard-tokens=400000"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300 * 2**10, before[1]))
    says = r"cannot write .*train-00000.array_record: .*too large.*make room, then run"
    try:
        with pytest.raises(UserError, match=says):
            run(source, tmp_path / "out", size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run(source, tmp_path / "out", size)
    run(source, tmp_path / "whole", size)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_memory_holds_few_batches_and_a_killed_worker_is_reported(monkeypatch):
    """However long the source: it is read only as far as the workers need."""
    monkeypatch.setattr(tokenising, "BATCH", 1000)
    read = taken = 0

    def endless():
        nonlocal read
        for read in range(1, 10**9):
            yield ("x" * (100 if read % 50 else 5000),), 0

    results = tokenise(batch_records([Fragment("x", 1, endless)], (0, 0)), Encoder(BYTE, 0), 2)
    for _ in range(60):
        batch, _ = next(results)
        taken += len(batch.records)
        assert sum(len(text) for (text,) in batch.records) <= 5000
        assert read - taken < 4 * 2 * 10 + 30
    for child in multiprocessing.active_children():
        child.kill()
    with pytest.raises(UserError, match="a worker process was killed.*fewer --workers"):
        list(results)
    monkeypatch.undo()
    part = Fragment("x", 1, lambda: iter([(("",), 1)] * 10**5))  # a small file inflates to any number of empty records
    assert max(len(batch.records) for batch in batch_records([part], (0, 0))) < 20_000


def test_dry_run_foretells_and_writes_nothing(tmp_path, capsys):
    source = corpus(tmp_path / "in", words(3000), files=7)
    run(source, tmp_path / "out", "--dry-run")
    said = capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    run(source, tmp_path / "out")
    manifest = read_manifest(tmp_path / "out")
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    for pattern, truth in [
        (r"tokens +about ([\d,]+)", manifest.tokens("train")),
        (r"documents +about ([\d,]+)", manifest.documents("train")),
        (r"shards +about ([\d.]+) MB", size / 1e6),
    ]:
        assert float(re.search(pattern, said)[1].replace(",", "")) == pytest.approx(truth, rel=0.1, abs=1e-3)
    # The first batch reads two records that each fill one: nothing behind them is read yet.
    corpus(tmp_path / "long", ["x" * tokenising.BATCH] * 12, files=1)
    found = sampling.estimate(Source(str(tmp_path / "long")).fragments(), Encoder(BYTE, 0))
    assert abs(found.tokens / (12 * (tokenising.BATCH + 1)) - 1) < 0.01 and found.documents == 12


def test_verify_names_the_file_with_the_flipped_bit(tmp_path, capsys):
    out = tmp_path / "out"
    run(corpus(tmp_path / "in", words(100)), out, "--shard-tokens=4000")
    for path in (out / "train-00002.array_record", out / "train.lengths"):
        good = path.read_bytes()
        for place in np.linspace(0, len(good) - 1, 20).astype(int):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(UserError, match=f"{path.name} is damaged"):
                prepare.main(["--verify", f"--out={out}"])
        path.write_bytes(good)
    prepare.main(["--verify", f"--out={out}"])
    assert "every byte of every shard is as it was written" in capsys.readouterr().out


def test_a_sample_is_spread_over_all_documents_and_bounded():
    assert sampling.count_in_texts(["a" * 3 * sampling.SAMPLE], CHAR) == (0, sampling.SAMPLE)
    texts = [LATIN] * 2000 + [CYRILLIC] * 2000
    assert sampling.count_in_texts(texts, CHAR).share == pytest.approx(17 / len(LATIN + CYRILLIC), rel=0.01)
    assert sampling.count_in_texts([], CHAR) == (0, 0)


def test_training_and_preparing_report_it_and_refuse_what_is_mostly_unknown(tmp_path, capsys):
    path, out, said = tmp_path / "text.txt", tmp_path / "out", []
    config = Config(context=16, batch=2, data=DataConfig(source=str(path), tokenizer="char"))
    train = lambda: loader.batches(config, CHAR, log=said.append)
    make = lambda: prepare.main([f"--source={path}", f"--out={out}", "--tokenizer=char", "--workers=0"])
    path.write_text(CYRILLIC * 100)
    for use, option in ((train, "--config.data.tokenizer"), (make, "--tokenizer")):
        with pytest.raises(UserError, match=rf"81% are unknown .*; give {option}=byte, which knows every character"):
            use()
    assert not (out / "manifest.json").exists()
    path.write_text(MIXED * 100)
    train(), make()
    assert capsys.readouterr().err.count(LINE) == 1
    assert said[0].startswith(f"of {90 * len(MIXED):,} characters of {path}, {LINE}"), "of what is trained on"
    path.write_text(LATIN * 100)
    train()
    assert len(said) == 1
