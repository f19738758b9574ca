"""Whatever a data file holds, it is read, or refused in one line: no other error, and no end that does not come."""

import contextlib
import functools
import gzip
import io
import json
import shutil
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from endurance.spoil import INSERTED, spoilt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bam_jax.data import inspect, prepare
from bam_jax.data.prepared import shards
from bam_jax.data.prepared.manifest import MANIFEST, SPLITS, Manifest, read_manifest
from bam_jax.data.sources.corpus import read_texts
from bam_jax.data.tokenizers import tokenizer
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.system.errors import UserError

TEXTS = [f"Document {number} has a few words, é and 漢字.\n" * (1 + number % 5) for number in range(40)]
LINES = "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(TEXTS)).encode()
WIKI = "".join(f" = Title {number} = \n \n {text} \n" for number, text in enumerate(TEXTS)).encode()
SUFFIXES = (".txt", ".jsonl", ".parquet", ".tokens", ".raw", ".txt.gz", ".jsonl.zst")


def parquet(table, **options):
    pq.write_table(pa.table(table), file := io.BytesIO(), **options)
    return file.getvalue()


SOURCES = {
    "a.txt": "".join(TEXTS).encode(),
    "a.jsonl": LINES,
    "a.tokens": WIKI,
    "a.parquet": parquet({"id": list(range(len(TEXTS))), "text": TEXTS}, row_group_size=15),
    "b.parquet": parquet({"text": pa.array(TEXTS).dictionary_encode()}, compression="zstd"),
    "c.parquet": parquet({"text": [1, 2]}),
}
PACKED = {".gz": gzip.compress, ".zst": lambda text: zstandard.compress(text[:500]) + zstandard.compress(text[500:])}


@functools.cache
def vocabularies():
    """Files that name a tokenizer, by its specification without the folder."""
    byte_of = [byte for byte in range(256) if chr(byte).isprintable() and byte != 32]
    symbols = [chr(byte) for byte in byte_of] + [chr(256 + number) for number in range(256 - len(byte_of))]
    ids = {symbol: number for number, symbol in enumerate([*symbols, "ab", "abc", "<|endoftext|>"])}
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"0123456789abcdefghij", "##a", "word"]
    return {
        "bpe": {"tokenizer.json": train_bpe(TEXTS, 300, progress=False).encode()},
        "bert": {"vocab.txt": "\n".join(pieces).encode()},
        "gpt2": {"vocab.bpe": b"#version\na b\nab c\n", "encoder.json": json.dumps(ids).encode()},
    }


def spoiling(contents):
    """Strategy for other bytes than a file's, or its own."""
    chance = st.randoms(use_true_random=False)
    return st.just(contents) | st.builds(spoilt, st.just(contents), chance)


@contextlib.contextmanager
def ends(seconds=60):
    """The work ends in time, well or with a line for the user."""

    def late(*_):
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    except UserError as error:
        assert "\n" not in str(error) and 10 < len(str(error)) < 2000, str(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


FUZZ = settings(suppress_health_check=[HealthCheck.too_slow])
SHOWN = ["--config.context=16", "--no-plot", "--rows=1"]


@FUZZ
@given(st.data())
def test_sources(data):
    name = data.draw(st.sampled_from(sorted(SOURCES)))
    contents = data.draw(spoiling(SOURCES[name]) | st.sampled_from(INSERTED))
    if not name.endswith(".parquet") and data.draw(st.booleans()):
        packing = data.draw(st.sampled_from(sorted(PACKED)))
        name, contents = name + packing, PACKED[packing](contents)
        contents = data.draw(spoiling(contents))
    if data.draw(st.integers(0, 4)) == 0:
        name = f"a{data.draw(st.sampled_from(SUFFIXES))}"
    with TemporaryDirectory() as place:
        source = Path(place, "in")
        source.mkdir()
        (source / name).write_bytes(contents)
        with ends():
            list(read_texts(str(source)))
        with ends():
            prepare.main([f"--source={source}", "--tokenizer=byte", f"--out={place}/out", "--workers=0"])
        with ends():
            inspect.main([str(source), "--config.data.tokenizer=byte", *SHOWN])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A prepared folder whose tokenizer has a file, and the options that made it."""
    made = tmp_path_factory.mktemp("whole")
    (made / "bpe.json").write_bytes(vocabularies()["bpe"]["tokenizer.json"])
    (made / "in.jsonl").write_bytes(LINES)
    arguments = [f"--source={made / 'in.jsonl'}", f"--tokenizer=bpe:{made / 'bpe.json'}", "--workers=0"]
    arguments += ["--shard-tokens=900", "--holdout-tokens=300"]
    prepare.main([*arguments, f"--out={made / 'out'}"])
    return made / "out", arguments


@FUZZ
@given(data=st.data())
def test_prepared_folders(whole, data):
    made, arguments = whole
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    name = data.draw(st.just(Path(MANIFEST)) | st.sampled_from(files))
    with TemporaryDirectory() as place:
        out = shutil.copytree(made, Path(place, "out"))
        if data.draw(st.booleans()):  # unfinished
            begun = read_manifest(out)
            half = {split: finished[:1] for split, finished in begun.shards.items()}
            Manifest(**vars(begun) | {"shards": half, "next": (0, 20)}).write(out)
        (out / name).write_bytes(data.draw(spoiling((out / name).read_bytes())))
        with ends():
            shards.verify(out)
        for split in SPLITS:
            with ends():
                found = shards.open_split(out, split)
                found.read(np.arange(len(found)))
        with ends():
            inspect.main(
                [str(out), f"--config.data.packing={data.draw(st.sampled_from(('concat', 'first_fit')))}", *SHOWN]
            )
        with ends():
            prepare.main([*arguments, f"--out={out}"])


@FUZZ
@given(data=st.data())
def test_vocabularies(data):
    kind = data.draw(st.sampled_from(sorted(vocabularies())))
    files = vocabularies()[kind]
    name = data.draw(st.sampled_from(sorted(files)))
    with TemporaryDirectory() as place:
        for each, text in (files | {name: data.draw(spoiling(files[name]))}).items():
            Path(place, each).write_bytes(text)
        with ends():
            made = tokenizer(f"{kind}:{place}")
            ids = made.encode_batch([TEXTS[0], "", "abc 0123 \ud800"])
            assert all(each.max(initial=0) < made.size for each in ids)
            made.decode(ids[0])
