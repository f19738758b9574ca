"""Oversized inputs: small files that inflate, lines of 100 MB, and a million files in a folder.

`prepare` reads each up to its first three million tokens, in a process with limited address space. It must succeed, or end in
one line with status 2, within ten minutes, and its peak memory must stay below 1.25 GiB. The record has the ratio of text to
file. A text may have 256 MiB, the command's own limit. Empty lines contain no tokens, so `prepare` reads all of them; that input
has a 64th of the text. The rows of a column are one text, stored once.
"""

import gzip
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from endurance import commands
from endurance.figures import FIGURES, Outcome

WHAT = "decompression bombs of 1 GiB, lines of 100 MB, a million files: read or refused in 1280 MiB"
TEXT = 2**30  # bytes of text in a bomb
LIMIT = 3 * 2**30  # bytes of address space, of which libraries take a part before anything is read
HELD = 5 * 2**28  # bytes of memory at the peak, at most
BLOCK = 2**22
LINE = json.dumps({"text": "all work and no play " * 50}).encode() + b"\n"
FIELD = b'{"text": "'


def _text(line: bytes, head: bytes = b"", tail: bytes = b"", share: int = 1) -> Callable[[Path, int], int]:
    """Writes one line again and again, of a share of the text."""

    def write(path: Path, total: int) -> int:
        block = line * max(1, BLOCK // len(line))
        kinds = {
            ".gz": lambda path: gzip.open(path, "wb", compresslevel=6),
            ".zst": lambda path: zstandard.open(path, "wb"),
        }
        with kinds.get(path.suffix, lambda path: path.open("wb"))(path) as file:
            return sum(map(file.write, [head, *[block] * (total // share // len(block)), tail]))

    return write


def _files(path: Path, total: int) -> int:
    for number in range(total // 2**10):
        if number % 1000 == 0:
            (folder := path / f"{number // 1000}").mkdir(parents=True)
        (folder / f"{number}.txt").write_text("short")
    return 5 * (total // 2**10)


def _column(row: int) -> Callable[[Path, int], int]:
    def write(path: Path, total: int) -> int:
        size = min(row, total)
        rows = max(8, total // size)  # in one group
        text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
        # Without Arrow's schema the column is one of texts, as other writers have it, and no dictionary.
        pq.write_table(pa.table({"text": text}), path, compression="zstd", store_schema=False)
        return rows * size

    return write


BOMBS = {
    "lines in gzip": ("a.jsonl.gz", _text(LINE)),
    "lines in zstd": ("a.jsonl.zst", _text(LINE)),
    "one endless line in gzip": ("a.jsonl.gz", _text(b"a", FIELD)),
    "one endless line in zstd": ("a.jsonl.zst", _text(b"a", FIELD)),
    "one text in gzip": ("a.txt.gz", _text(b"a")),
    "one text in zstd": ("a.txt.zst", _text(b"a")),
    "empty lines in zstd": ("a.jsonl.zst", _text(b"\n", share=64)),
    "an article in gzip": ("a.tokens.gz", _text(b" = T = \n" + b"word " * 9 + b"\n")),
    "one line in a text": ("a.txt", _text(b"a word ", share=10)),
    "one line of JSON": ("a.jsonl", _text(b"a word ", FIELD, b'"}\n', share=10)),
    "a million files": ("many", _files),
    "parquet, rows of 1 MiB": ("a.parquet", _column(2**20)),
    "parquet, rows of 32 MiB": ("a.parquet", _column(2**25)),
    "parquet, rows of 1 GiB": ("a.parquet", _column(TEXT)),
}
"""Inputs, and what writes each and returns the bytes of text in it."""


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Reads `count` bombs, small ones unless it reads all of them."""
    total = TEXT if count == FIGURES["bombs"].wanted else TEXT // 16
    outcome, peaks, ratios, refused = Outcome(), {}, {}, 0
    # In memory, where there is such a file system: a million files take a disk longer than the command.
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else folder))
    try:
        for name in list(BOMBS)[seed * count :][:count]:
            file, write = BOMBS[name]
            source = place / name / file
            source.parent.mkdir()
            size = write(source, total)
            asked = ["--tokenizer=byte", f"--out={place / 'out'}", "--workers=0", "--max-tokens=3000000"]
            ended, peak = commands.peak(["bam_jax.data.prepare", f"--source={source}", *asked], LIMIT)
            held = f"it held {peak / 2**20:,.0f} MiB" if peak > HELD else ""
            outcome.add(name, commands.complaint(ended) or held)
            peaks[name], refused = round(peak / 2**20), refused + (ended.status == 2)
            ratios[name] = round(size / source.stat().st_size)
            for each in (source.parent, place / "out"):
                shutil.rmtree(each, ignore_errors=True)
    finally:
        shutil.rmtree(place)
    outcome.more = {"peak_mib": peaks, "ratio": ratios, "refused": refused}
    return outcome
