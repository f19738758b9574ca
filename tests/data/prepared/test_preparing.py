"""Preparing gives each document once, on the right side, in the same bytes however often it is killed."""

import contextlib
import gzip
import hashlib
import json
import multiprocessing
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from bam_jax.data import prepare
from bam_jax.data.prepared import shards, tokenising
from bam_jax.data.prepared.manifest import SPLITS, Manifest, read_manifest
from bam_jax.data.prepared.sampling import draw, estimate
from bam_jax.data.prepared.tokenising import Encoder, batch_records, tokenise
from bam_jax.data.sources.fragment import Fragment
from bam_jax.data.sources.source import Source
from bam_jax.data.tokenizers import tokenizer
from bam_jax.system import lock
from bam_jax.system.errors import UserError

ROOT = Path(__file__).parents[3]


def corpus(folder, texts, files=3):
    """The texts in .jsonl files, gzipped ones among them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        piece = texts[number * len(texts) // files : (number + 1) * len(texts) // files]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in piece).encode()
        if number % 2:
            (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines))
        else:
            (folder / f"{number}.jsonl").write_bytes(lines)
    return folder


def words(count, seed=0, most=400):
    """Documents of different lengths, none twice."""
    rng = random.Random(seed)
    return [f"{number} " + "".join(rng.choices("abc de\n", k=rng.randrange(1, most))) for number in range(count)]


def run(source, out, *options, tokens="byte", workers=0):
    prepare.main([f"--source={source}", f"--tokenizer={tokens}", f"--out={out}", f"--workers={workers}", *options])


def command(source, out, *options, workers=2):
    return [
        sys.executable, "-m", "bam_jax.data.prepare", f"--source={source}", f"--out={out}", "--tokenizer=byte",
        f"--workers={workers}", *options,
    ]  # fmt: skip


def contents(folder):
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def prepared(folder, split="train"):
    """The texts of a split, their end tokens checked and taken away."""
    documents = shards.open_split(folder, split)
    ids = documents.read(np.arange(len(documents)))
    assert all(each[-1] == 256 for each in ids)
    return [bytes(each[:-1].astype(np.uint8)).decode("utf-8", "surrogatepass") for each in ids]


@settings(max_examples=15)
@given(
    texts=st.lists(st.text(max_size=30), max_size=30).filter(lambda texts: any(text.strip() for text in texts)),
    shard=st.integers(1, 300),
    batch=st.integers(1, 100),
)
def test_every_document_once_and_in_order(tmp_path_factory, texts, shard, batch):
    folder = tmp_path_factory.mktemp("prepare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenising, "BATCH", batch)
        run(corpus(folder / "in", texts), folder / "out", f"--shard-tokens={shard}")
    full = [text for text in texts if text.strip()]
    assert prepared(folder / "out") == full
    manifest = read_manifest(folder / "out")
    assert manifest.counts == {
        "records": len(texts),
        "empty": len(texts) - len(full),
        "left_out": 0,
        "bytes": sum(len(text.encode("utf-8", "surrogatepass")) for text in texts),
    }
    assert all(each.tokens >= shard for each in manifest.shards["train"][:-1])
    assert all(each.documents == 1 or each.tokens - shard < 121 for each in manifest.shards["train"])
    assert prepared(folder / "out", "held_out") == []
    shards.verify(folder / "out")


@pytest.mark.parametrize("options", [["--holdout-tokens=3000"], ["--sample-records=80", "--holdout-records=9"]])
def test_workers_change_nothing(tmp_path, monkeypatch, options):
    monkeypatch.setattr(tokenising, "BATCH", 1000)
    source = corpus(tmp_path / "in", words(150))
    for workers in (0, 2):
        run(source, tmp_path / str(workers), "--shard-tokens=3000", *options, workers=workers)
    assert contents(tmp_path / "0") == contents(tmp_path / "2")
    assert len(read_manifest(tmp_path / "0").shards["train"]) > 3


class Stopped(Exception):
    pass


@pytest.mark.parametrize("place", ["append", "close", "write", "replace"])
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(tmp_path, monkeypatch, place):
    """Stopped before every n-th call of what changes the folder, again and again until it comes through."""
    monkeypatch.setattr(tokenising, "BATCH", 500)
    source = corpus(tmp_path / "in", words(60))
    drawn = ("--sample-records=40", "--holdout-records=9")
    options = ("--shard-tokens=2000", *(drawn if place in ("close", "write") else ["--holdout-tokens=1500"]))
    run(source, tmp_path / "whole", *options)
    owner = {"append": shards.ShardWriter, "close": shards.ShardWriter, "write": Manifest, "replace": Path}[place]
    real, calls, left = getattr(owner, place), 0, 0

    def stopping(*arguments):
        nonlocal calls, left
        calls, left = calls + 1, left - 1
        if left == 0:
            raise Stopped
        return real(*arguments)

    monkeypatch.setattr(owner, place, stopping)
    stops = 0
    for every in (1, 2, 3, 5, 7, 11, 13, 10**9):
        for _ in range(8):
            left = every
            try:
                run(source, tmp_path / "stopped", *options)
                break
            except Stopped:
                stops += 1
        else:
            continue
        break
    assert stops > 8
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def kill(source, tmp_path, times, options, seed):
    """Kills a preparing process and all it started so often, at random moments; compares whenever it came through."""
    started = time.monotonic()
    subprocess.run(command(source, tmp_path / "whole", *options), check=True, cwd=ROOT)
    longest = time.monotonic() - started
    rng, killed, rounds = random.Random(seed), 0, 0
    while killed < times or (tmp_path / f"killed{rounds}").exists():
        out = tmp_path / f"killed{rounds}"
        process = subprocess.Popen(command(source, out, *options), cwd=ROOT, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, longest) if killed < times else None)
        if process.poll() is None:
            process.kill()  # SIGKILL, of the parent alone
            process.wait()
            killed += 1
            until = time.monotonic() + 20
            with contextlib.suppress(ProcessLookupError):
                while time.monotonic() < until:
                    os.killpg(process.pid, 0)
                    time.sleep(0.01)
                pytest.fail("workers outlive the process that started them")
        else:
            assert process.returncode == 0
            assert contents(out) == contents(tmp_path / "whole")
            rounds += 1
    return killed, rounds


KILLED = ("--shard-tokens=20000", "--holdout-tokens=50000")


@pytest.mark.endurance
def test_killed_twenty_times(tmp_path):
    source = corpus(tmp_path / "in", words(8000))
    assert kill(source, tmp_path, 20, KILLED, seed=2) >= (20, 1)


@pytest.mark.skipif(signal.getsignal(signal.SIGINT) == signal.SIG_IGN, reason="a shell's background jobs ignore Ctrl-C")
def test_interrupted_and_terminated(tmp_path):
    source = corpus(tmp_path / "in", words(3000))
    for number, (signum, status) in enumerate([(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]):
        process = subprocess.Popen(
            command(source, tmp_path / "out", "--shard-tokens=3000"),
            cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        while process.poll() is None and len(list(tmp_path.glob("out/train-*"))) < 2 + 2 * number:
            time.sleep(0.005)
        os.killpg(process.pid, signum)  # as a terminal does
        _, said = process.communicate()
        assert process.returncode == status
        assert "Traceback" not in said
    run(source, tmp_path / "out", "--shard-tokens=3000")
    assert prepared(tmp_path / "out") == [text for text in words(3000) if text.strip()]


def test_a_complete_folder_is_left_alone_wherever_its_source_lies_and_another_source_is_refused(tmp_path, capsys):
    source = corpus(tmp_path / "in", words(20))
    run(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    capsys.readouterr()
    source.rename(tmp_path / "moved")
    run(tmp_path / "moved", tmp_path / "out")
    assert "is complete already: train" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    (tmp_path / "moved" / "new.txt").write_text("more")
    with pytest.raises(UserError, match="another value of the files of the source"):
        run(tmp_path / "moved", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tokenizer=char"], "was begun with another value of --tokenizer"),
        (["--text-field=body"], "of --text-field (text, not body)"),
        (["--holdout-tokens=10"], "of --holdout-tokens (0, not 10)"),
        (["--errors=replace"], "of --errors (strict, not replace)"),
        (["--seed=3"], "of --seed (0, not 3)"),
    ],
)
def test_another_recipe_is_refused(tmp_path, options, says):
    source = corpus(tmp_path / "in", words(20))
    run(source, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(UserError, match=re.escape(says)):
        run(source, tmp_path / "out", *options)
    assert contents(tmp_path / "out") == before


def test_before_the_first_shard_a_mistake_costs_nothing(tmp_path):
    """The command that is put right begins anew, whatever the mistake was."""
    source = corpus(tmp_path / "in", words(20))
    for wrong in ("--text-field=body", "--tokenizer=char"):
        with pytest.raises(UserError, match="no text in the field 'body'"):
            run(source, tmp_path / "out", "--text-field=body", wrong)
    run(source, tmp_path / "out")
    run(source, tmp_path / "straight")
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")


def test_folders_of_other_things_and_in_the_source_are_refused(tmp_path):
    source = corpus(tmp_path / "in", words(3))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="out holds other files; name a folder that is empty"):
        run(source, tmp_path / "out")
    assert contents(tmp_path / "out").keys() == {"thesis.tex"}
    # The copy of its tokenizer would be text of the source when it is gone on with.
    with pytest.raises(UserError, match="--out=.*in/out lies in the data source .*in, where it would be read as data"):
        run(source, source / "out")
    assert not (source / "out").exists()


def test_two_processes_do_not_write_into_one_folder(tmp_path):
    (tmp_path / "out").mkdir()
    with lock.hold(tmp_path / "out" / lock.NAME), pytest.raises(UserError, match="another process is preparing"):
        run(corpus(tmp_path / "in", words(3)), tmp_path / "out")
    run(tmp_path / "in", tmp_path / "out")


# The hold-out


def test_the_estimate_of_long_documents(tmp_path):
    """The first batch reads two records that each fill one: nothing behind them is read yet."""
    corpus(tmp_path, ["x" * tokenising.BATCH] * 12, files=1)
    found = estimate(Source(str(tmp_path)).fragments(), Encoder(tokenizer("byte"), 0))
    assert abs(found.tokens / (12 * (tokenising.BATCH + 1)) - 1) < 0.01 and found.documents == 12


def test_the_holdout_is_of_whole_documents_and_of_the_size_asked_for(tmp_path):
    texts = words(800)
    run(corpus(tmp_path / "in", texts), tmp_path / "out", "--holdout-tokens=20000", "--shard-tokens=30000")
    train, held_out = prepared(tmp_path / "out"), prepared(tmp_path / "out", "held_out")
    manifest = read_manifest(tmp_path / "out")
    assert 20_000 <= manifest.tokens("held_out") < 20_000 + 410
    assert not set(train) & set(held_out) and set(train) | set(held_out) < set(texts)
    assert len(train) + len(held_out) + manifest.counts["left_out"] == len(texts)
    assert 0 < manifest.counts["left_out"] < 1.2 * len(held_out), "at most about half as many again are reserved"
    assert [text for text in texts if text in set(train)] == train
    thirds = [sum(text in set(held_out) for text in texts[place : place + 133]) for place in (0, 133, 266)]
    assert min(thirds) > 0.5 * max(thirds), "spread over the source, not its beginning"


def test_the_split_goes_by_text_and_seed(tmp_path):
    """Not by the tokenizer's ids, nor by the place: the reserved documents are the same ones."""
    texts = words(400)
    run(corpus(tmp_path / "in", texts), tmp_path / "a", "--holdout-tokens=9000")
    run(corpus(tmp_path / "back", texts[::-1]), tmp_path / "b", "--holdout-tokens=9000")
    run(tmp_path / "in", tmp_path / "c", "--holdout-tokens=9000", "--seed=1")
    run(tmp_path / "in", tmp_path / "d", "--holdout-tokens=9000", tokens="char")
    a, b, c = ((set(prepared(tmp_path / name)), set(prepared(tmp_path / name, "held_out"))) for name in "abc")
    assert a[0] == b[0] and not b[1] & a[0], "what is trained on does not depend on the order"
    assert len(a[1] & c[1]) < 0.5 * len(a[1])
    lengths = [len(shards.open_split(tmp_path / name, "train")) for name in "ad"]
    assert abs(lengths[0] - lengths[1]) < 20


def test_hashes_are_of_the_texts_their_division_and_the_seed():
    first, again, divided, other = (
        Encoder(tokenizer("byte"), seed)((record,)).hashes[0]
        for record, seed in ((("ab", "c"), 0), (("ab", "c"), 0), (("a", "bc"), 0), (("ab", "c"), 1))
    )
    assert first == again and len({first, divided, other}) == 3


# Samples


def test_a_sample_is_of_the_very_size_and_no_text_is_on_both_sides(tmp_path):
    """However often the source repeats a text: of those on the edge the first are taken."""
    texts = [text for text in words(60) for _ in range(5)]
    random.Random(1).shuffle(texts)
    source = corpus(tmp_path / "in", [*texts, "", " "])
    for held_out, train in ((9, 102), (0, 3), (50, None), (100, 1000)):
        out = tmp_path / f"{held_out} {train}"
        run(source, out, f"--holdout-records={held_out}", *([f"--sample-records={train}"] if train else []))
        split = [prepared(out, name) for name in ("train", "held_out")]
        assert len(split[1]) == held_out and not set(split[0]) & set(split[1])
        assert len(split[0]) == min(train or 1000, 300 - -(-held_out // 5) * 5)
        places = [[texts.index(text) for text in dict.fromkeys(each)] for each in split]
        assert all(each == sorted(each) for each in places), "in the order of the source"
        counts = read_manifest(out).counts
        assert counts["records"] == 302 and counts["left_out"] + counts["empty"] == 302 - sum(map(len, split))


def test_every_place_of_the_source_is_as_likely_as_any_other():
    places, seeds = 200, 150
    records = [(f"record {number}",) for number in range(places)]
    part = Fragment("x", places, lambda: iter((record, 1) for record in records))
    taken = np.zeros((2, places))
    for seed in range(seeds):
        encoder = Encoder(tokenizer("byte"), seed)
        first, last = draw([part], encoder, 20, 50)
        hashes = [encoder.hash(record) for record in records]
        chosen = np.array([[digest < first for digest in hashes], [first <= digest < last for digest in hashes]])
        assert chosen.sum(1).tolist() == [20, 50]
        taken += chosen
    for times, size in zip(taken, (20, 50), strict=True):
        share = size / places  # of a place: binomial; of all: a hypergeometric draw, of a little less variance
        square = ((times - seeds * share) ** 2 / (seeds * share * (1 - share))).sum()
        assert 0.001 < scipy.stats.chi2.sf(square, places - 1) < 0.999
        halves = times.reshape(2, -1).sum(1) / (seeds * size)
        assert abs(halves[0] - 0.5) < 0.05


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--sample-records=5", "--max-records=9"],
            "--sample-records=5 draws from the whole source and --max-records=9",
        ),
        (
            ["--holdout-records=5", "--max-tokens=9"],
            "--holdout-records=5 draws from the whole source and --max-tokens=9",
        ),
        (["--holdout-records=7"], "--holdout-records=7 is more than a third of the source's 20 records"),
        (["--holdout-tokens=3000"], "--holdout-tokens=3000 is more than a third of the source's tokens (about "),
    ],
)
def test_samples_that_cannot_be_drawn(tmp_path, options, says):
    source = corpus(tmp_path / "in", words(20))
    with pytest.raises(UserError, match=re.escape(says)):
        run(source, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


# Limits


def test_limits(tmp_path):
    texts = words(200)
    run(corpus(tmp_path / "in", texts), tmp_path / "tokens", "--max-tokens=5_000", "--shard-tokens=2000")
    manifest = read_manifest(tmp_path / "tokens")
    assert 5000 <= manifest.tokens("train") < 5410
    assert prepared(tmp_path / "tokens") == texts[: manifest.documents("train")]
    run(tmp_path / "in", tmp_path / "records", "--max-records=7")
    assert prepared(tmp_path / "records") == texts[:7]
    with pytest.raises(UserError, match=r"jsonl line \d+ has more than 100 bytes; .* --max-record-bytes"):
        run(tmp_path / "in", tmp_path / "small", "--max-record-bytes=100")
    run(tmp_path / "in", tmp_path / "small")
    run(tmp_path / "in", tmp_path / "both", "--max-tokens=5000", "--holdout-tokens=1000")
    both = read_manifest(tmp_path / "both")
    assert 5000 <= both.tokens("train") < 5410 and 1000 <= both.tokens("held_out") < 1410


def test_triplets_stay_together(tmp_path):
    (tmp_path / "in").mkdir()
    rows = [{"query": f"q{n}", "positive": f"p{n} " * (n % 7 + 1), "negative": f"n{n}"} for n in range(300)]
    rows[11]["negative"] = " "  # as good as nothing: the triplet is left out
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run(
        tmp_path / "in", tmp_path / "out",
        "--text-field=query,positive,negative", "--shard-tokens=500", "--holdout-tokens=700", "--max-records=250",
    )  # fmt: skip
    manifest = read_manifest(tmp_path / "out")
    assert manifest.fields == ("query", "positive", "negative") and manifest.counts["empty"] == 1
    assert all(each.documents % 3 == 0 for split in SPLITS for each in manifest.shards[split])
    found = []
    for split in SPLITS:
        texts = prepared(tmp_path / "out", split)
        assert texts
        found += list(zip(*[iter(texts)] * 3, strict=True))
    wanted = [tuple(row.values()) for number, row in enumerate(rows[:250]) if number != 11]
    assert set(found) <= set(wanted) and len(found) + manifest.counts["left_out"] == len(wanted)


# What goes wrong


@pytest.mark.parametrize("texts", [[], [" ", "\n"]])
def test_no_text(tmp_path, texts):
    with pytest.raises(UserError, match="holds no text"):
        run(corpus(tmp_path / "in", texts), tmp_path / "out")
    with pytest.raises(UserError, match="holds? no text"):
        run(tmp_path / "in", tmp_path / "other", "--holdout-tokens=5")


def test_a_full_disk(tmp_path):
    """Files may not grow beyond 300 KiB: the error that writing then gives stands for that of a full disk."""
    source = corpus(tmp_path / "in", words(3000))
    options = ("--shard-tokens=400000",)
    line = command(source, tmp_path / "out", *options)

    limited = ["bash", "-c", f"ulimit -f 300; exec {shlex.join(line)}"]
    full = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True)
    assert full.returncode == 2
    assert re.fullmatch(
        r"error: cannot write .*train-00000.array_record: .*File too large.*make room, then run the same .*\n",
        full.stderr,
    )
    run(source, tmp_path / "out", *options)
    run(source, tmp_path / "whole", *options)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_source_that_breaks_off_can_be_mended(tmp_path):
    texts = words(60)
    source = corpus(tmp_path / "in", texts)
    good = (source / "2.jsonl").read_bytes()
    (source / "2.jsonl").write_bytes(good[:3000] + b"\xff" + good[3001:])
    with pytest.raises(UserError, match=r"2.jsonl is not UTF-8 \(invalid start byte at byte 3000\).*--errors=replace"):
        run(source, tmp_path / "out", "--shard-tokens=1000")
    (source / "2.jsonl").write_bytes(good)
    run(source, tmp_path / "out", "--shard-tokens=1000")
    assert prepared(tmp_path / "out") == texts


def test_a_killed_worker_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenising, "BATCH", 50)
    part = Fragment("x", 1, lambda: iter([(("text " * 20,), 1)] * 400))
    results = tokenise(batch_records([part], (0, 0)), Encoder(tokenizer("byte"), 0), 1)
    next(results)
    for child in multiprocessing.active_children():
        child.kill()
    with pytest.raises(UserError, match="a worker process was killed.*fewer --workers"):
        list(results)


def test_memory_holds_few_batches(monkeypatch):
    """However long the source: it is read only as far as the workers need."""
    monkeypatch.setattr(tokenising, "BATCH", 1000)
    read = 0

    def endless():
        nonlocal read
        for read in range(1, 10**9):
            yield ("x" * (100 if read % 50 else 5000),), 0

    results = tokenise(batch_records([Fragment("x", 1, endless)], (0, 0)), Encoder(tokenizer("byte"), 0), 2)
    taken = 0
    for _ in range(60):
        batch, _ = next(results)
        taken += len(batch.records)
        assert sum(map(len, (record[0] for record in batch.records))) <= 5000
        assert read - taken < 4 * 2 * 10 + 30
    results.close()


def test_empty_records_take_room_in_a_batch():
    """A small file inflates to any number of them."""
    part = Fragment("x", 1, lambda: iter([(("",), 1)] * 10**5))
    assert max(len(batch.records) for batch in batch_records([part], (0, 0))) < 20_000


@pytest.mark.full
def test_a_document_of_50_megabytes(tmp_path):
    """One line without an end among small ones, in memory of a few times its size; of the ids that its parts have."""
    pytest.importorskip("mistral_common")
    text = " ".join(f"word{number % 1000} and some more" for number in range(2_400_000))
    assert len(text) > 50e6
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "a.jsonl").open("w") as file:
        file.write(json.dumps({"text": "before"}) + "\n" + json.dumps({"text": text}))
    script = (
        "import sys; from bam_jax.data import prepare; prepare.main(sys.argv[1:]);"
        "print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"  # ru_maxrss begins with the parent's
    )
    arguments = [f"--source={tmp_path / 'in'}", f"--out={tmp_path / 'out'}", "--tokenizer=mistral", "--workers=0"]
    line = [sys.executable, "-c", script, *arguments]
    peak = int(subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()[-2])
    assert peak < 500 * 2**10, f"{peak} kB"
    documents = shards.open_split(tmp_path / "out", "train")
    ids = documents.read(np.array([1]))[0]
    made = tokenizer("mistral")
    short = made.encode(text[:100_000])
    np.testing.assert_array_equal(ids[: len(short) - 5], short[:-5])
    assert made.decode(ids[-30:-1]) == text[-len(made.decode(ids[-30:-1])) :]


# The command


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


def test_verify_names_the_shard_with_the_flipped_byte(tmp_path, capsys):
    run(corpus(tmp_path / "in", words(300)), tmp_path / "out", "--shard-tokens=9000")
    prepare.main(["--verify", f"--out={tmp_path / 'out'}"])
    assert "every byte of every shard is as it was written" in capsys.readouterr().out
    path = tmp_path / "out" / "train-00002.array_record"
    good = path.read_bytes()
    path.write_bytes(good[:5000] + bytes([good[5000] ^ 4]) + good[5001:])
    with pytest.raises(UserError, match="train-00002.array_record is damaged"):
        prepare.main(["--verify", f"--out={tmp_path / 'out'}"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--out=x"], "--source is not given"),
        (["--verify"], "--out is not given"),
        (["--source=x", "--out=x"], "--tokenizer is not given"),
        (["--source=x", "--split=train"], "--split=train chooses among the files of a --preset; give one, or"),
        (["--source=nowhere", "--tokenizer=byte", "--out=x"], "data source nowhere does not exist"),
        (["--source=x", "--tokenizer=bite", "--out=x"], "did you mean 'byte'"),
        (["--source=x", "--tokenizer=byte", "--workers=-1"], "'-1' is not a whole number of at least 0"),
        (["--source=x", "--tokenizer=byte", "--max-tokens=0"], "'0' is not a whole number of at least 1"),
        (["--source=x", "--tokenizer=byte", "--max-tokens=many"], "--max-tokens: 'many' is not a whole number"),
        (["--preset=finweb-10bt", "--out=x"], "did you mean 'fineweb-10bt'"),
    ],
)
def test_options(tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(says)):
        prepare.main(options)
    assert not list(tmp_path.iterdir())
