"""Little memory, much input, and a training that goes on for long."""

import ctypes
import functools
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from endurance import commands, made
from endurance.figures import FIGURES, ROOT, Outcome

from bam_jax import config as configs
from bam_jax.training import loop

GIB = 2**30
LIMIT = 3 * GIB  # bytes of address space of `prepare`, of which libraries take a part before anything is read
HELD = GIB * 5 // 4  # bytes of its memory at the peak, at most
LINE = json.dumps({"text": "all work and no play " * 50}).encode() + b"\n"
FIELD = b'{"text": "'
OPEN = {
    ".gz": functools.partial(gzip.open, mode="wb", compresslevel=6),
    ".zst": functools.partial(zstandard.open, mode="wb"),
}


def _text(line, head=b"", tail=b"", share=1):
    """Writes one line again and again, of a share of the text."""

    def write(path, total):
        block = line * max(1, 2**22 // len(line))
        with OPEN.get(path.suffix, functools.partial(open, mode="wb"))(path) as file:
            return sum(map(file.write, [head, *[block] * (total // share // len(block)), tail]))

    return write


def _files(path, total):
    for number in range(total // 2**10):
        if number % 1000 == 0:
            (folder := path / f"{number // 1000}").mkdir(parents=True)
        (folder / f"{number}.txt").write_text("short")
    return 5 * (total // 2**10)


def _column(row):
    def write(path, total):
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
    "parquet, rows of 1 GiB": ("a.parquet", _column(GIB)),
}
"""Inputs, and what writes each and returns the bytes of text in it."""


def bombs(seed, count, folder):
    """Decompression bombs of 1 GiB, lines of 100 MB, a million files: read or refused in 1280 MiB."""
    total = GIB if count == FIGURES["bombs"].wanted else GIB // 16
    outcome, peaks, ratios, refused = Outcome(), {}, {}, 0
    # In memory, where there is such a file system: a million files take a disk longer than the command.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else folder) as place:
        for name in list(BOMBS)[seed * count :][:count]:
            file, write = BOMBS[name]
            source, out = Path(place) / name / file, Path(place) / "out"
            source.parent.mkdir()
            size = write(source, total)
            asked = [f"--source={source}", f"--out={out}", "--tokenizer=byte", "--workers=0", "--max-tokens=3000000"]
            ended, peak = commands.peak(["bam_jax.data.prepare", *asked], LIMIT)
            held = f"it held {peak / 2**20:,.0f} MiB" if peak > HELD else ""
            outcome.add(name, commands.complaint(ended) or held)
            peaks[name], refused = round(peak / 2**20), refused + (ended.status == 2)
            ratios[name] = round(size / source.stat().st_size)
            for each in (source.parent, out):
                shutil.rmtree(each, ignore_errors=True)
    outcome.more = {"peak_mib": peaks, "ratio": ratios, "refused": refused}
    return outcome


LIMITS = (1024, 3072, 4096, 6144)  # MiB of address space of a command that needs little
LACK = "error: not enough memory ("  # the beginning of the line
NEW = "bam_jax.train --config={folder}/small.py --workdir={out}/new --no-progress "
LARGE = {
    "a batch that is too large": f"{NEW} --config.batch={2**22}",
    "a model that is too large": f"{NEW} --config.model.layers=2 --config.model.width={2**15} --config.model.hidden={2**15}",
    "a text that is too long": "bam_jax.evaluate --run={folder}/run --eval=passkey --depths=1 --memory=1e9 --no-progress "
    f"--lengths={2**30}",
    "more tokens to write than fit": f"bam_jax.generate --run={{folder}}/run --prompt=a --tokens={2**28}",
    "heads of too many keys": f"bam_jax.heads --run={{folder}}/run --keys={2**30} --tokens=16",
}
CASES = [*LARGE, *((name, limit) for name in made.WRITERS for limit in LIMITS)]


def out_of_memory(seed, count, folder):
    """Commands short of memory: success, or one line that says so."""
    outcome, said, well = Outcome(), {}, {}
    for number, case in enumerate(CASES[seed * FIGURES["out_of_memory"].part :][:count]):
        out = folder / f"{number}"
        if case in LARGE:
            out.mkdir()
            # Threads and libraries take some 3 GiB.
            ended = commands.start(commands.fill(LARGE[case], folder=made.common(), out=out), 8 * GIB)
            wrong = commands.complaint(ended, (2,))
            if not wrong and LACK not in ended.err:
                wrong = f"refused for something else: {ended.err[:300]!r}"
            said[case] = ended.err.strip()
        else:
            name, limit = case
            writer = made.WRITERS[name]
            writer.begin(out)
            ended = commands.start(writer.command(out), limit * 2**20)
            wrong = commands.complaint(ended, (0, 1, 2) if name == "sweep" else (0, 2))
            well[f"{name}, {limit} MiB"] = "yes" if ended.status == 0 else "no"
        outcome.add(f"{case}", wrong)
    outcome.more = {name: group for name, group in (("said", said), ("ended_well", well)) if group}
    return outcome


ALLOWED = {"mib": 32, "descriptors": 4, "threads": 4}  # more in the last tenth of the steps than in the second
ENTRY = (
    f"import sys; sys.path[0] = {str(ROOT / 'tests')!r}; from endurance import limited; limited.train(*sys.argv[1:])"
)


def train(config, folder, count):
    """Trains `count` steps, and writes what this process held at 500 of them to `held.json`."""
    held = []

    def look(step):
        if step % max(1, int(count) // 500) == 0:
            ctypes.CDLL(None).malloc_trim(0)
            resident = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
            counts = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
            held.append([int(resident[1]) / 1024, *counts])
        return False

    loop.fit(configs.load(config), Path(folder) / "run", progress=False, stop=look)
    (Path(folder) / "held.json").write_text(json.dumps(held))


def memory(seed, count, folder):
    """Steps of one training with 50 checkpoints: memory within 32 MiB, descriptors and threads within 4."""
    # Of fewer than 100 steps between two checkpoints a loaded machine is still writing one when the next begins.
    changes = {"steps": count, "log_every": 100, "checkpoint_every": max(100, count // 50)}
    config = folder / "small.py"
    config.write_text(made.to_file({**made.values(folder), **changes}))
    subprocess.run([sys.executable, "-c", ENTRY, config, folder, str(count)], check=True)
    held = json.loads((folder / "held.json").read_text())
    parts = [held[len(held) * n // 10 : len(held) * (n + 1) // 10] for n in range(10)]
    tenths = [[*map(min, zip(*part, strict=True))] for part in parts]  # between two checkpoints
    second, last = (dict(zip(ALLOWED, map(int, tenths[n]), strict=True)) for n in (1, -1))
    slope = statistics.linear_regression(range(9), [mib for mib, *_ in tenths[1:]]).slope * 10 / count  # of a tenth
    more = {"second_tenth": second, "last_tenth": last, "mib_per_10000_steps": round(slope * 1e4, 2)}
    grown = [name for name, allowed in ALLOWED.items() if last[name] > second[name] + allowed]
    wrong = [f"{name}: {second[name]:,} in the second tenth, {last[name]:,} in the last" for name in grown]
    return Outcome(count, wrong, more)
