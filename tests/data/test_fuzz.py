"""Whatever a data file holds, it is read, or refused in one line: no other error, and no end that does not come."""

import contextlib
import copy
import functools
import gzip
import io
import json
import operator
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
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
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
HOSTILE = (
    b"[" * 20_000,
    b'{"text":' * 20_000,
    b"9" * 5000,
    b'{"text": 1e999}\n{"text": "\\ud800"}',
    b'{"text": "x"}\n' * 9 + b"\xff\xfe",
    b"\x00" * 10**5,
    b"x" * 3 * 10**6,
    b"\n" * 10**5,
    b" = T = \n\n" * 9999,
    b"",
)


def parquet(table, **options):
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


SOURCES = {
    "a.txt": "".join(TEXTS).encode(),
    "a.jsonl": LINES,
    "a.tokens": WIKI,
    "a.parquet": parquet(pa.table({"id": list(range(len(TEXTS))), "text": TEXTS}), row_group_size=15),
    "b.parquet": parquet(pa.table({"text": pa.array(TEXTS).dictionary_encode()}), compression="zstd"),
    "c.parquet": parquet(pa.table({"text": [1, 2]})),
}
PACKED = {".gz": gzip.compress, ".zst": lambda text: zstandard.compress(text[:500]) + zstandard.compress(text[500:])}


@functools.cache
def vocabularies():
    """Files that name a tokenizer, by its specification without the folder."""
    byte_of = [byte for byte in range(256) if chr(byte).isprintable() and byte != 32]
    symbols = [chr(byte) for byte in byte_of] + [chr(256 + number) for number in range(256 - len(byte_of))]
    ids = {symbol: number for number, symbol in enumerate([*symbols, "ab", "abc", "<|endoftext|>"])}
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"0123456789abcdefghij", "##a", "word"]
    bpe = train_bpe(TEXTS, 300, progress=False)
    return {
        "bpe": {"tokenizer.json": bpe.encode()},
        "bert": {"vocab.txt": "\n".join(pieces).encode()},
        "gpt2": {"vocab.bpe": b"#version\na b\nab c\n", "encoder.json": json.dumps(ids).encode()},
    }


@st.composite
def spoilt(draw, contents):
    """The bytes of a file with some of them flipped, cut away, inserted or repeated; or other ones."""
    made = bytearray(contents)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(made)))
        match draw(st.sampled_from(["flip", "cut", "end", "insert", "repeat", "all"])):
            case "flip" if place < len(made):
                made[place] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del made[place : place + draw(st.integers(1, 99))]
            case "end":
                del made[place:]
            case "insert":
                made[place:place] = draw(st.binary(max_size=20) | st.sampled_from(HOSTILE))
            case "repeat":
                made[place:place] = made[: draw(st.integers(0, 9999))]
            case "all":
                made = bytearray(draw(st.binary(max_size=200) | st.sampled_from(HOSTILE)))
    return bytes(made)


@st.composite
def retyped(draw, contents):
    """A JSON file in which fields are missing, or hold what they should not; or spoilt like any other."""
    if draw(st.booleans()):
        return draw(spoilt(contents))
    record = copy.deepcopy(json.loads(contents))
    for _ in range(draw(st.integers(1, 2))):
        path = list(_walk(draw, record))
        if not path:
            return json.dumps(draw(VALUES)).encode()
        inner = functools.reduce(operator.getitem, path[:-1], record)
        if draw(st.booleans()):
            del inner[path[-1]]
        else:
            inner[path[-1]] = draw(VALUES | st.integers(-2, 400) | st.sampled_from(["<u4", "train-00000.array_record"]))
        if draw(st.integers(0, 9)) == 0:
            return json.dumps(record).encode().replace(b"null", draw(st.sampled_from(HOSTILE)))
    return json.dumps(record).encode()


def _walk(draw, value):
    while isinstance(value, dict | list) and len(value):
        key = draw(st.sampled_from(sorted(value)) if isinstance(value, dict) else st.integers(0, len(value) - 1))
        yield key
        value = value[key]
        if draw(st.booleans()):
            return


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


def use(source, spec, out):
    """All that reads a source, or a prepared folder."""
    with ends():
        list(read_texts(str(source)))
    with ends():
        prepare.main([f"--source={source}", f"--tokenizer={spec}", f"--out={out}", "--workers=0", "--shard-tokens=900"])
    with ends():
        inspect.main([str(source), f"--config.data.tokenizer={spec}", "--config.context=16", "--no-plot", "--rows=1"])


FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def folder(tmp_path):
    """An empty folder, for each example."""

    @contextlib.contextmanager
    def made():
        place = tmp_path / "example"
        place.mkdir()
        try:
            yield place
        finally:
            shutil.rmtree(place)

    return made


@FUZZ
@given(st.data())
def test_sources(folder, data):
    name = data.draw(st.sampled_from(sorted(SOURCES)))
    contents = data.draw(spoilt(SOURCES[name]) | st.sampled_from(HOSTILE))
    if not name.endswith(".parquet") and data.draw(st.booleans()):
        packing = data.draw(st.sampled_from(sorted(PACKED)))
        name, contents = name + packing, PACKED[packing](contents)
        contents = data.draw(st.just(contents) | spoilt(contents))
    if data.draw(st.integers(0, 4)) == 0:
        name = f"a{data.draw(st.sampled_from(SUFFIXES))}"
    with folder() as place:
        (place / "in").mkdir()
        (place / "in" / name).write_bytes(contents)
        use(place / "in", "byte", place / "out")


@FUZZ
@given(st.data())
def test_fields_of_records(folder, data):
    records = data.draw(st.lists(st.fixed_dictionaries({"text": VALUES | st.text(min_size=1)}) | VALUES, max_size=5))
    with folder() as place:
        (place / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
        use(place / "a.jsonl", "byte", place / "out")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A prepared folder whose tokenizer has a file, finished and not."""
    made = tmp_path_factory.mktemp("whole")
    (made / "bpe.json").write_bytes(vocabularies()["bpe"]["tokenizer.json"])
    (made / "in.jsonl").write_bytes(LINES)
    arguments = [f"--source={made / 'in.jsonl'}", f"--tokenizer=bpe:{made / 'bpe.json'}", f"--out={made / 'out'}"]
    prepare.main([*arguments, "--workers=0", "--shard-tokens=900", "--holdout-tokens=300"])
    return made, arguments


@FUZZ
@given(data=st.data())
def test_prepared_folders(folder, whole, data):
    made, arguments = whole
    files = sorted(path.relative_to(made / "out") for path in (made / "out").rglob("*") if path.is_file())
    manifest = Path(MANIFEST)
    name = data.draw(st.just(manifest) | st.sampled_from(files))
    contents = (made / "out" / name).read_bytes()
    unfinished = data.draw(st.booleans())
    with folder() as place:
        shutil.copytree(made / "out", place / "out")
        if unfinished:
            begun = read_manifest(place / "out")
            half = {split: finished[:1] for split, finished in begun.shards.items()}
            Manifest(**vars(begun) | {"shards": half, "next": (0, 20)}).write(place / "out")
            if name == manifest:
                contents = (place / "out" / name).read_bytes()
        changed = retyped(contents) if name.suffix == ".json" else spoilt(contents)
        (place / "out" / name).write_bytes(data.draw(changed))
        with ends():
            shards.verify(place / "out")
        for split in SPLITS:
            with ends():
                found = shards.open_split(place / "out", split)
                found.read(np.arange(len(found)))
        for packing in ("concat", "first_fit"):
            options = [f"--config.data.packing={packing}", "--config.context=16", "--no-plot", "--rows=2"]
            with ends():
                inspect.main([str(place / "out"), *options])
        with ends():
            prepare.main(
                [*arguments[:2], f"--out={place / 'out'}", "--workers=0", "--shard-tokens=900", "--holdout-tokens=300"]
            )


@FUZZ
@given(data=st.data())
def test_vocabularies(folder, data):
    kinds = vocabularies()
    kind = data.draw(st.sampled_from(sorted(kinds)))
    name = data.draw(st.sampled_from(sorted(kinds[kind])))
    contents = kinds[kind][name]
    changed = data.draw(retyped(contents) if name.endswith(".json") else spoilt(contents))
    with folder() as place:
        for each, text in kinds[kind].items():
            Path(place / each).write_bytes(changed if each == name else text)
        with ends():
            made = tokenizer(f"{kind}:{place}")
            ids = made.encode_batch([TEXTS[0], "", "abc 0123 \ud800"])
            assert all(each.max(initial=0) < made.size for each in ids)
            made.decode(ids[0])
