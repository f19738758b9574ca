"""Oversized inputs: small files that inflate, lines of 100 MB, and a million files in a folder.

`prepare` reads each up to its first three million tokens, in a process with limited address space. It must succeed, or end in
one line with status 2, within ten minutes, and its peak memory must stay below 1.25 GiB. The record has the ratio of text to
file. A text may have 256 MiB, the command's own limit. Empty lines contain no tokens, so `prepare` reads all of them; that input
has a 64th of the text. The rows of a column are one text, stored once.
"""

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from endurance import commands
from endurance.figures import Figure, Outcome

TEXT = 2**30
"""Bytes of text in a bomb."""
LIMIT = 3 * 2**30
"""Bytes of address space, of which libraries take a part before anything is read."""
HELD = 5 * 2**28
"""Bytes of memory at the peak, at most."""
BLOCK = 2**22


def _pieces(line: bytes, total: int) -> list[bytes]:
    """One line again and again, as blocks that are the same object."""
    block = line * max(1, BLOCK // len(line))
    return [block] * (total // len(block))


def _gz(path: Path, pieces: list[bytes]) -> int:
    with gzip.open(path, "wb", compresslevel=6) as file:
        return sum(map(file.write, pieces))


def _zst(path: Path, pieces: list[bytes]) -> int:
    with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as writer:
        return sum(map(writer.write, pieces))


LINE = json.dumps({"text": "all work and no play " * 50}).encode() + b"\n"


def _plain(path: Path, pieces: list[bytes]) -> int:
    with path.open("wb") as file:
        return sum(map(file.write, pieces))


def _files(path: Path, total: int) -> int:
    for number in range(total // 2**10):
        if number % 1000 == 0:
            (folder := path / f"{number // 1000}").mkdir(parents=True)
        (folder / f"{number}.txt").write_text("short")
    return 5 * (total // 2**10)


def _column(path: Path, total: int, row: int) -> int:
    # Eight rows at least, in one group.
    rows = max(8, total // row)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * row]))
    # Without Arrow's schema the column is one of texts, as other writers have it, and no dictionary.
    pq.write_table(pa.table({"text": text}), path, compression="zstd", store_schema=False)
    return rows * row


# Each writes an input and returns the bytes of text in it.
BOMBS: dict[str, tuple[str, Callable[[Path, int], int]]] = {
    "lines in gzip": ("a.jsonl.gz", lambda path, total: _gz(path, _pieces(LINE, total))),
    "lines in zstd": ("a.jsonl.zst", lambda path, total: _zst(path, _pieces(LINE, total))),
    "one endless line in gzip": ("a.jsonl.gz", lambda path, total: _gz(path, [b'{"text": "', *_pieces(b"a", total)])),
    "one endless line in zstd": ("a.jsonl.zst", lambda path, total: _zst(path, [b'{"text": "', *_pieces(b"a", total)])),
    "one text in gzip": ("a.txt.gz", lambda path, total: _gz(path, _pieces(b"a", total))),
    "one text in zstd": ("a.txt.zst", lambda path, total: _zst(path, _pieces(b"a", total))),
    "empty lines in zstd": ("a.jsonl.zst", lambda path, total: _zst(path, _pieces(b"\n", total // 64))),
    "an article in gzip": (
        "a.tokens.gz",
        lambda path, total: _gz(path, _pieces(b" = T = \n" + b"word " * 9 + b"\n", total)),
    ),
    "one line in a text": ("a.txt", lambda path, total: _plain(path, _pieces(b"a word ", total // 10))),
    "one line of JSON": (
        "a.jsonl",
        lambda path, total: _plain(path, [b'{"text": "', *_pieces(b"a word ", total // 10), b'"}\n']),
    ),
    "a million files": ("many", _files),
    "parquet, rows of 1 MiB": ("a.parquet", lambda path, total: _column(path, total, 2**20)),
    "parquet, rows of 32 MiB": ("a.parquet", lambda path, total: _column(path, total, 2**25)),
    "parquet, rows of 1 GiB": ("a.parquet", lambda path, total: _column(path, total, total)),
}


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Reads `count` bombs, small ones unless it reads all of them."""
    total = TEXT if count == len(BOMBS) else TEXT // 16
    failures, peaks, ratios, refused = [], {}, {}, 0
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
            ended, peak = _limited([f"--source={source}", *asked])
            wrong = commands.complaint(ended)
            if not wrong and peak > HELD:
                wrong = f"it held {peak / 2**20:,.0f} MiB"
            if wrong:
                failures.append(f"{name}: {wrong}")
            peaks[name], refused = round(peak / 2**20), refused + (ended.status == 2)
            ratios[name] = round(size / source.stat().st_size)
            for folder in (source.parent, place / "out"):
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(place)
    return Outcome(len(peaks), failures, {"peak_mib": peaks, "ratio": ratios, "refused": refused})


def _limited(argv: list[str]) -> tuple[commands.Ended, int]:
    """The end of `prepare` with a limit on its address space, and its memory at the peak in bytes."""
    # Linux counts what a process holds when it starts another to that one's peak: a small process stands between.
    command = [sys.executable, "-S", "-c", _BETWEEN, *commands.limited(["bam_jax.data.prepare", *argv], LIMIT)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=commands.PATIENCE)
    err, _, peak = ended.stderr.rstrip("\n").rpartition("\n")
    return commands.Ended(ended.returncode, ended.stdout, f"{err}\n" if err else ""), int(peak) * 1024


_BETWEEN = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status if status >= 0 else 128 - status)
"""


FIGURE = Figure(
    what=f"decompression bombs of {TEXT // 2**30} GiB, lines of 100 MB, a million files: read or refused in {HELD // 2**20} MiB",
    unit="inputs",
    wanted=len(BOMBS),
    part=len(BOMBS),
    short=1,
    minutes=10,
    measure=measure,
)
