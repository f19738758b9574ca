"""Time attention with a bias, compared with other implementations.

    python -m benchmarks.attention_speed --bias=ggd --lengths=512,2048,8192 --out=speed.json

Every contender runs once in each repetition, one after another, each after an untimed call. So a machine that slows down slows
all of them. Times are medians. Ratios are to this package's attention, "ours", on the first backend that runs here: 3.0 takes
three times as long. Contenders that cannot run are in the table with the reason. Queries and keys have unit-variance elements;
rows are causal. `--decode` lengths are the numbers of keys for one query at the end. Contenders:

    ours BACKEND, SKIP     `bam_jax.attention` on every backend of this machine, with every mode of skipping tiles
    ours ..., cache        a whole decoding step: the last token is written into a cache, whose summary shows which keys matter
    dense                  all biases and logits in memory, as the papers' authors compute it
    dense, cache           a decoding step in plain JAX, with keys stored head by head: every key is read
    jax.nn, + bias         `jax.nn.dot_product_attention` without a bias (not the same function), and with a bias table
    tokamax, + bias        the same for `tokamax.dot_product_attention`; needs the extra `bench`
    FlexAttention          PyTorch's, with the same generalised Gaussian and gradients to its parameters; needs torch and a GPU

Measured on two CPU cores: benchmarks/records/attention_speed_cpu.json, attention_speed_cpu_skip.json and
attention_speed_cpu_decode.json, made with the commands below. In the last one, a decoding step after 131,072 tokens takes 1 ms
if the cache's summary is used to skip keys, and 36 ms if every key is read; plain JAX takes 39 ms.

    python -m benchmarks.attention_speed --lengths=4096,8192 --decode= --skip=exact --only=ours,dense --repetitions=3 \\
        --memory=14
    python -m benchmarks.attention_speed --bias=alibi --slope=0.0625 --heads=1 --lengths=32768 --decode= --only=ours \\
        --repetitions=3 --memory=14
    python -m benchmarks.attention_speed --bias=alibi --slope=0.0625 --lengths= --decode=131072 --only=ours,dense \\
        --repetitions=9
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
import dataclasses
import itertools
import math
import shlex
import statistics
import time
from collections.abc import Iterator, Sequence

import jax

from bam_jax.attention import Tiling
from bam_jax.system import files, jsonl
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.machine import machine
from benchmarks.attention_shapes import BIASES, AttentionShape
from benchmarks.contenders import PASSES, PreparedRun, preparers

# Minimum duration in seconds of the calls of one repetition, because clocks and dispatch are noisy.
_SHORTEST = 0.02

REFUSALS = (ImportError, NotImplementedError, ValueError, RuntimeError, ExceptionGroup)
"""Errors of contenders that cannot run here; compiler errors are RuntimeErrors."""


def measure(shape: AttentionShape, which: str, entrants: dict, repetitions: int, memory: float) -> list[dict]:
    """Measure one pass of every contender."""
    ready, records = {}, []
    for name, prepare in entrants.items():
        record = {"contender": name, "pass": which, **dataclasses.asdict(shape), "reason": None}
        records.append(record)
        try:
            run = prepare(shape, which)
            record["temporary_bytes"] = run.temporary_bytes
            if run.temporary_bytes is not None and run.temporary_bytes > memory:
                size = f"{run.temporary_bytes / 2**30:.3g} GiB of temporaries"
                record["reason"] = f"{size}, more than --memory={memory / 2**30:g}"
                continue
            calls = _warm_up(run)
            record["peak_bytes"] = run.peak()
        except REFUSALS as error:
            record["reason"] = first_line(error)
            continue
        ready[name] = (run, calls)
    seconds = _take_turns(ready, repetitions)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ours = next((median for name, median in medians.items() if name.startswith("ours")), None)
    for record in records:
        name = record["contender"]
        if name in ready:
            record |= {"seconds": medians[name], "fastest": min(seconds[name]), "repetitions": repetitions}
            record["ratio"] = medians[name] / ours if ours else None
    return records


def _warm_up(run: PreparedRun) -> int:
    """Call it once to fill caches and once timed; returns the number of calls that fill a repetition."""
    run.wait(run.call())
    started = time.perf_counter()
    run.wait(run.call())
    return max(1, math.ceil(_SHORTEST / (time.perf_counter() - started)))


def _take_turns(ready: dict[str, tuple[PreparedRun, int]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of a call of each contender in every repetition."""
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(repetitions):
        for name, (run, calls) in ready.items():
            run.wait(run.call())  # untimed: the system may still be clearing gigabytes that a previous contender freed
            started = time.perf_counter()
            for _ in range(calls):
                result = run.call()
            run.wait(result)
            seconds[name].append((time.perf_counter() - started) / calls)
            del result  # before the next contender needs the memory
    return seconds


def first_line(error: BaseException) -> str:
    """An error in one line; the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]


def _line(record: dict) -> str:
    start = f"{record['queries']:7} {record['length']:7} {record['pass']:17} {record['contender']:24}"
    if record["reason"] is not None:
        return f"{start} {record['reason']}"
    temporary = record["temporary_bytes"]
    size = "" if temporary is None else f"{temporary / 2**20:.1f}"
    ratio = "" if record["ratio"] is None else f"{record['ratio']:.2f}"
    return f"{start} {record['seconds'] * 1e3:10.2f} {ratio:>8} {size:>10}"


def _numbers(option: str, text: str) -> list[int]:
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"{option}={text} must be numbers of tokens with commas, as in {option}=512,8192")
    return [int(part) for part in parts]


def _skips(text: str) -> list[float | str]:
    skips: list[float | str] = []
    for part in text.split(","):
        try:
            skip = part if part in ("exact", "off") else float(part)
            Tiling(skip=skip)  # raises if the share is invalid
        except ValueError as error:
            raise UserError(f'--skip={text}: "exact", "off" or a share between 0 and 1, with commas') from error
        skips.append(skip)
    return skips


def _parser() -> argparse.ArgumentParser:
    accelerated = jax.default_backend() != "cpu"
    lengths = ",".join(str(2**n) for n in range(9, 16 if accelerated else 14))
    parser = errors.Parser(prog="python -m benchmarks.attention_speed", description=__doc__)
    parser.add_argument("--bias", default="ggd", help="of " + ", ".join(BIASES))
    parser.add_argument("--slope", type=float, help="of ALiBi in every head, nats per token (the published ones)")
    parser.add_argument("--lengths", default=lengths, help=f"of rows, in tokens ({lengths})")
    parser.add_argument("--decode", default=str(2**19), help="of caches, in tokens; empty: none (524288)")
    parser.add_argument("--batch", type=int, default=1, help="rows (1)")
    parser.add_argument("--heads", type=int, default=8, help="(8)")
    parser.add_argument("--width", type=int, default=64, help="of a head (64)")
    parser.add_argument("--dtype", default="bfloat16" if accelerated else "float32", choices=("float32", "bfloat16"))
    parser.add_argument("--skip", default="exact,off", help="what ours leaves out: exact, off or a share of the mass")
    parser.add_argument("--passes", default=",".join(PASSES), help="of " + ", ".join(PASSES))
    parser.add_argument("--only", help="contenders whose names start with one of these, with commas (all)")
    parser.add_argument("--repetitions", type=int, default=5, help="(5)")
    parser.add_argument("--memory", type=float, default=12.0, help="GiB of temporaries above which none runs (12)")
    parser.add_argument("--out", type=files.local_path, help="a JSON file for the records")
    return parser


def _cases(given: argparse.Namespace) -> Iterator[tuple[AttentionShape, str]]:
    for name in ("batch", "heads", "width", "repetitions", "memory"):
        if getattr(given, name) <= 0:
            raise UserError(f"--{name}={getattr(given, name)} must be above 0")
    if given.bias not in BIASES:
        raise UserError(f"no bias {given.bias!r} here: {nearest(given.bias, BIASES)}")
    if given.slope is not None and given.bias != "alibi":
        raise UserError(f"--slope={given.slope} is ALiBi's: give --bias=alibi, not --bias={given.bias}")
    passes = given.passes.split(",")
    for which in passes:
        if which not in PASSES:
            raise UserError(f"no pass {which!r}: {nearest(which, PASSES)}")
    common = {name: getattr(given, name) for name in ("batch", "heads", "width", "dtype", "bias", "slope")}
    lengths, caches = _numbers("--lengths", given.lengths), _numbers("--decode", given.decode)
    for length, which in itertools.product(lengths, passes):
        yield AttentionShape(length, length, **common), which
    for length in caches:
        yield AttentionShape(length, 1, **common), PASSES[0]


def _chosen(entrants: dict, only: str | None) -> dict:
    if only is None:
        return entrants
    starts = only.split(",")
    for start in starts:
        if not any(name.startswith(start) for name in entrants):
            raise UserError(f"no contender starts with {start!r}: {nearest(start, entrants)}")
    return {name: make for name, make in entrants.items() if name.startswith(tuple(starts))}


def main(argv: Sequence[str]) -> None:
    """Run the command line; see the module's docstring."""
    given = _parser().parse_args(argv)
    cases = list(_cases(given))
    entrants = _chosen(preparers(_skips(given.skip)), given.only)
    if given.out is not None and not given.out.resolve().parent.is_dir():
        raise UserError(f"--out={given.out}: there is no folder {given.out.parent}")
    if given.out is not None:
        files.keep_other(given.out, "python -m benchmarks.attention_speed")
    about = machine()
    print(f"{about['device']}, {about['processor']}, {about['cores']} cores; {given.bias}, {given.dtype}", flush=True)
    print(f"{'queries':>7} {'keys':>7} {'pass':17} {'contender':24} {'ms':>10} {'x ours':>8} {'MiB temp.':>10}")
    records = []
    for shape, which in cases:
        for record in measure(shape, which, entrants, given.repetitions, given.memory * 2**30):
            print(_line(record), flush=True)
            records.append(record)
    if given.out is not None:
        command = f"python -m benchmarks.attention_speed {shlex.join(argv)}"
        given.out.write_text(jsonl.by_lines({"command": command, "machine": about, "records": records}))


if __name__ == "__main__":
    errors.run(main)
