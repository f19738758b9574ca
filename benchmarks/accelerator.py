"""Test a GPU or TPU for the first time: is attention correct, how fast is it, and does training resume after a kill?

    python -m benchmarks.accelerator --out=runs/chip        # everything; a stopped run resumes
    python -m benchmarks.accelerator --out=runs/chip --minutes=9 --stages=parity,times --cases='ggd|2048 tokens'
    python -m benchmarks.accelerator --print=benchmarks/records/h100.json

    ceilings   the rate of a large matrix product and of a large copy; always measured
    parity     the tests of attention on this device (`pytest --device`)
    times      attention from 512 to 524,288 tokens and decoding, compared with cuDNN, tokamax and dense attention
    tiles      the fastest tile size
    steps      training steps of --config with several encodings: tokens per second, share of the peak, memory
    training   that model trained for some minutes: first losses compared with a CPU's, a kill, a resume

Each outcome is written as a line of OUT/records.jsonl immediately, so a kill loses only one case. OUT/accelerator.json and
OUT/accelerator.md are written at the end of each call; docs/accelerator.md explains them.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bam_jax import config as configs
from bam_jax.data import loader
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.models import counts
from bam_jax.system import files, git, jsonl, lock
from bam_jax.system.errors import Stopped, UserError
from bam_jax.system.machine import machine
from bam_jax.system.parent import end_with_parent
from bam_jax.training.metrics import read_metrics
from bam_jax.training.run_folder import latest_step
from benchmarks import attention_speed, speed, workloads
from benchmarks.accelerator_page import Ceilings, ceilings_of, to_page
from benchmarks.attention_shapes import BIASES, AttentionShape
from benchmarks.attention_speed import REFUSALS, first_line
from benchmarks.contenders import PASSES, own_backends, peak_bytes, preparers, tile_preparers

ROOT = Path(__file__).parents[1]
COMMAND = "benchmarks.accelerator"
STAGES = ("ceilings", "parity", "times", "tiles", "steps", "training")
RECORDS = "records.jsonl"
SLOW = 2048  # tokens above which an accelerator times only its kernels: the fallback would take most of the time
PATIENCE = 600.0  # seconds after which a training that makes no progress is ended
# Largest relative difference between two losses of a step. The losses of an untrained model are near log(vocabulary), and
# rounding to bfloat16 changes them by thousandths.
LOSS_TOLERANCE = 1e-2

# Python's documentation as bytes; the vocabulary is as large as that of Mistral's tokenizer, whose files are not needed.
TEXT = {"data.source": "stdlib", "data.tokenizer": "byte", "data.packing": "concat", "model.vocab": 32768}
TEXT |= {"optimizer.accumulate": 1}
TINY = {**TEXT, "model.layers": 1, "model.width": 32, "model.heads": 2, "model.hidden": 32, "context": 32, "batch": 4}
TILES = {
    # On a GPU: sizes of the blocks for skipping; the kernels' own tiles are fixed.
    "gpu": ((256, 128), (128, 256), (256, 256), (128, 512)),
    "tpu": tuple(itertools.product((256, 512, 1024), (256, 512, 1024))),
    "cpu": ((16, 16),),
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of all cases; the defaults are those for an accelerator."""

    product: tuple[int, int] = (8192, 2**31)  # side of the matrices, bytes of the copy
    tests: str = ""  # pytest's -k expression for the attention tests; "": all
    lengths: tuple[int, ...] = (8192, 2048, 32768, 512, 131072, 524288)  # other biases and tiles use the first
    batch_tokens: int = 16384  # total tokens of a batch of short rows
    decode: tuple[int, ...] = (32768, 524288, 4096)  # keys in the cache
    biases: tuple[str, ...] = tuple(name for name in BIASES if name != AttentionShape.bias)  # timed besides the default
    tiled: tuple[tuple[int, str], ...] = ((64, "ggd"), (128, "ggd"), (64, "cable"))  # head widths and biases
    repetitions: int = 5
    memory: float = 24 * 2**30  # bytes of temporaries above which a contender does not run
    encodings: tuple[str, ...] = ("nope", "bam", "rope", "cable", "alibi", "bam_contextual", "t5", "kerple_log", "fox")
    model: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {**TEXT, "batch": 144})
    calls: int = 5  # timed steps
    first_steps: int = 5  # steps whose losses are compared with a CPU's
    first_batch: int = 8  # rows of these steps; a CPU takes a second for every few thousand tokens
    seconds: float = 150.0  # of training before the kill
    checkpoints: int = 50  # steps between checkpoints
    more_steps: int = 20  # after the resume


_SHORT: dict[str, Any] = {
    **{"product": (256, 2**22), "tests": "steep", "lengths": (64,), "batch_tokens": 64, "decode": (128,), "biases": ()},
    **{"tiled": ((16, "ggd"),), "repetitions": 1, "encodings": ("bam",), "model": TINY, "calls": 1},
    **{"first_steps": 2, "first_batch": 4, "seconds": 0.0, "checkpoints": 2, "more_steps": 1},
}
SHORT = Sizes(**_SHORT)


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement or test, which is not started if less than `seconds` are left."""

    stage: str
    name: str
    run: Callable[[], dict[str, Any]]  # JSON values with a `status`: passed, failed, refused or measured
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Bench:
    """The settings that all cases share; `devices` is the number for training: every accelerator, or one CPU."""

    platform: str
    devices: int
    sizes: Sizes
    config: Path
    folder: Path
    dtype: str

    @functools.cached_property
    def ceilings(self) -> Ceilings:
        (measured,) = (x for x in read(self.folder) if x["stage"] == "ceilings" and x["status"] == "measured")
        return ceilings_of(measured, measured["machine"]["device"])


def ceilings_cases(bench: Bench) -> Iterator[Case]:
    yield Case("ceilings", "product and copy", lambda: measure_ceilings(*bench.sizes.product, bench.dtype))


def measure_ceilings(side: int, copied: int, dtype: str) -> dict[str, Any]:
    """Time a product of two square matrices, and a copy of `copied` bytes within the device's memory."""
    a, b = (jax.random.normal(jax.random.key(n), (side, side), dtype) for n in (0, 1))  # zeros would take less power
    multiply, turn = jax.jit(jnp.matmul), jax.jit(jnp.negative, donate_argnums=0)
    drawn = lambda: jax.random.normal(jax.random.key(2), (copied // 4,), jnp.float32)
    product = workloads.Workload(lambda: None, lambda _: jax.block_until_ready(multiply(a, b)), 2 * side**3)
    # In place, because allocating memory takes longer than writing it.
    copy = workloads.Workload(drawn, lambda x: jax.block_until_ready(turn(x)), 2 * copied)
    both = {"product": product, "copy": copy}
    taken = speed.race(both, rounds=1, calls=10)
    operations, bandwidth = (both[name].work / statistics.median(taken[name].tolist()) for name in both)
    found = {"operations_per_second": operations, "bytes_per_second": bandwidth, "dtype": dtype, "side": side}
    summary = f"{operations / 1e12:.3g} Tflop/s in {dtype}, {bandwidth / 1e9:.4g} GB/s"
    return {"status": "measured", **found, "copied_bytes": copied, "summary": summary}


def row_of(bench: Bench, length: int, **changes: Any) -> AttentionShape:
    """A shape of whole rows; short rows are batched to fill the chip."""
    batch = max(1, bench.sizes.batch_tokens // length)
    return AttentionShape(length, length, batch=batch, dtype=bench.dtype, **changes)


def times_cases(bench: Bench) -> Iterator[Case]:
    curve = [(row_of(bench, n), which) for n in bench.sizes.lengths for which in PASSES]
    cached = [(AttentionShape(n, 1, dtype=bench.dtype), PASSES[0]) for n in bench.sizes.decode]
    biases = [(row_of(bench, bench.sizes.lengths[0], bias=name), PASSES[1]) for name in bench.sizes.biases]
    for shape, which in (*curve[:4], *cached, *biases, *curve[4:]):  # the most common training lengths come first
        batch = f"{shape.batch} x " if shape.batch > 1 else ""
        what = f"{shape.queries} behind {shape.length}" if shape.queries < shape.length else f"{batch}{shape.length}"
        run = functools.partial(time_attention, bench, shape, which)
        yield Case("times", f"{shape.bias}, {what} tokens, {which}", run, 90.0 if shape.length >= 2**17 else 0.0)


def time_attention(bench: Bench, shape: AttentionShape, which: str) -> dict[str, Any]:
    own, entrants = own_backends(bench.platform)[0], preparers(["exact", "off"])
    if shape.bias != AttentionShape.bias:
        entrants = {name: entrants[name] for name in (f"ours {own}, exact", "dense")}
    elif shape.length > SLOW and bench.platform != "cpu":
        entrants = {name: make for name, make in entrants.items() if not name.startswith("ours") or own in name}
    return with_shares(bench, shape, which, entrants)


def with_shares(bench: Bench, shape: AttentionShape, which: str, entrants: dict) -> dict[str, Any]:
    """Time contenders and add their shares of the ceilings; the case fails if the first, which is ours, does not run."""
    records = attention_speed.measure(shape, which, entrants, bench.sizes.repetitions, bench.sizes.memory)
    operations, moved = shape.operations(which), shape.bytes(which)
    for record in records:
        if "seconds" in record:
            record["peak_share"] = operations / record["seconds"] / bench.ceilings.operations
            record["bandwidth_share"] = moved / record["seconds"] / bench.ceilings.bandwidth
    ours, outcome = records[0], {"status": "measured", "pass": which, **dataclasses.asdict(shape)}
    outcome |= {"operations": operations, "bytes": moved, "contenders": records}
    if ours["reason"] is not None:
        return outcome | {"status": "failed", "reason": f"{ours['contender']}: {ours['reason']}"}
    others = [record for record in records if "ours" not in record["contender"] and "seconds" in record]
    beside = min(others, key=lambda record: record["seconds"], default=None)
    fastest = f", {beside['contender']} {beside['seconds'] * 1e3:.3g} ms" if beside else ""
    share = max(ours["peak_share"], ours["bandwidth_share"])
    return outcome | {"summary": f"{ours['seconds'] * 1e3:.3g} ms, {share:.1%} of the ceiling{fastest}"}


def tiles_cases(bench: Bench) -> Iterator[Case]:
    if own_backends(bench.platform)[0] == "auto":  # no kernels of ours, so no tiles
        return
    for width, bias in bench.sizes.tiled:
        shape = row_of(bench, bench.sizes.lengths[0], width=width, bias=bias)
        run = functools.partial(time_tiles, bench, shape)
        yield Case("tiles", f"{bias}, heads of {width}, {shape.length} tokens", run)


def time_tiles(bench: Bench, shape: AttentionShape) -> dict[str, Any]:
    """Time our kernels with several tile sizes and the default; `gain` is the fraction of time that the best size saves."""
    sizes, own = TILES[bench.platform], own_backends(bench.platform)[0]
    outcome = with_shares(bench, shape, PASSES[1], tile_preparers(own, [None, *sizes]))
    default, *others = outcome["contenders"]
    timed = [(record["seconds"], size) for record, size in zip(others, sizes, strict=True) if "seconds" in record]
    if "seconds" in default and timed:
        seconds, best = min(timed)
        gain = 1 - seconds / default["seconds"]
        summary = f"{best[0]} x {best[1]} takes {abs(gain):.1%} {'less' if gain > 0 else 'more'} than the default"
        outcome |= {"best": list(best), "gain": gain, "backend": own, "summary": summary}
    return outcome


def steps_cases(bench: Bench) -> Iterator[Case]:
    wanted: dict[str, dict[str, Any]] = {name: {"encoding": name, "ssmax": "off"} for name in bench.sizes.encodings}
    wanted["bam, SSMax"] = {"encoding": "bam", "ssmax": "on"}
    wanted["bam, SSMax, every activation kept"] = {**wanted["bam, SSMax"], "model.remat": False}
    apart = {"model.remat": False, "model.scan": False}
    wanted["bam, SSMax, every activation kept, layers apart"] = {**wanted["bam, SSMax"], **apart}
    for name, changes in wanted.items():
        yield Case("steps", name, functools.partial(time_step, bench, {**bench.sizes.model, **changes}))


def time_step(bench: Bench, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Time optimiser steps on a batch of real text: many rows with few tokens are more work than random tokens."""
    config = configs.load(bench.config, changes)
    tokenizer = find_tokenizer(config.data.tokenizer, config.data.sources())
    with contextlib.closing(loader.batches(config, tokenizer)) as batches:
        work = workloads.training(workloads.Contender(config), config.context, next(batches))
    seconds = statistics.median(speed.race({"": work}, rounds=1, calls=bench.sizes.calls)[""].tolist())
    rate = work.work / seconds
    share = rate * operations_per_token(config) / bench.ceilings.operations
    about = {"encoding": config.encoding, "ssmax": config.ssmax, "tokens_per_step": work.work}
    about |= {"tokens_per_second": rate, "seconds_per_step": seconds, "utilisation": share, "peak_bytes": peak_bytes()}
    return {"status": "measured", **about, "summary": f"{rate:,.0f} tokens/s, {share:.1%} of the peak"}


def operations_per_token(config: configs.Config) -> float:  # without recomputation
    return counts.step_operations(config, counts.parameters(config)) / (config.sequences * config.context)


def training_cases(bench: Bench) -> Iterator[Case]:
    yield Case("training", "the first losses beside a CPU's", lambda: compare_first_steps(bench), bench.sizes.seconds)
    yield Case("training", "a kill and a resume", lambda: kill_and_resume(bench), 2 * bench.sizes.seconds)


def compare_first_steps(bench: Bench) -> dict[str, Any]:
    """Train the first steps here and on the CPU, and compare their losses."""
    if bench.platform == "cpu":
        return {"status": "refused", "reason": "this is the CPU itself"}
    changes, losses = {"batch": bench.sizes.first_batch, "steps": bench.sizes.first_steps}, {}
    environments: dict[str, dict[str, str]] = {"here": {}, "cpu": {"JAX_PLATFORMS": "cpu"}}
    for name, environment in environments.items():
        run = bench.folder / "training" / f"first_{name}"
        shutil.rmtree(run, ignore_errors=True)
        if reason := train(bench, run, changes, lambda: False, **environment):
            return {"status": "failed", "reason": reason}
        losses[name] = list(losses_of(run).values())
    largest = max(abs(a - b) / b for a, b in zip(losses["here"], losses["cpu"], strict=True))
    return close_losses(largest, {"losses": losses, "summary": f"losses within {largest:.2g} of the CPU's"})


def close_losses(largest: float, outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a comparison of losses; NaN counts as failed."""
    outcome |= {"status": "passed" if largest <= LOSS_TOLERANCE else "failed", "largest_difference": largest}
    if outcome["status"] == "failed":
        outcome["reason"] = f"a loss differs by {largest:.2%}, more than {LOSS_TOLERANCE:.0%}"
    return outcome


def kill_and_resume(bench: Bench) -> dict[str, Any]:
    """Train for some time, kill the training, restart it, and compare the steps that it repeats."""
    run = bench.folder / "training" / "killed"
    shutil.rmtree(run, ignore_errors=True)
    changes = {"steps": 1_000_000, "checkpoint_every": bench.sizes.checkpoints}  # more steps than there is time for
    end = time.monotonic() + bench.sizes.seconds
    if reason := train(bench, run, changes, lambda: time.monotonic() >= end and latest_step(run) > 0):
        return {"status": "failed", "reason": reason}
    before, saved = losses_of(run), latest_step(run)
    last = max(before) + bench.sizes.more_steps
    if reason := train(bench, run, changes, lambda: max(losses_of(run), default=0) >= last):
        return {"status": "failed", "reason": f"started again, {reason}"}
    after, repeated = losses_of(run), [step for step in before if step > saved]
    rate = statistics.median(x["tokens_per_second"] for x in read_metrics(run) if x["tokens_per_second"])
    operations = operations_per_token(configs.load(bench.config, {**bench.sizes.model, **changes}))
    share = rate * operations / (bench.devices * bench.ceilings.operations)
    outcome: dict[str, Any] = {"killed_at": max(before), "resumed_from": saved, "ended_at": max(after)}
    outcome["repeated_steps"] = len(repeated)
    # A GPU sums the parts of an embedding's gradient in no fixed order.
    outcome["same_bits"] = all(after[step] == before[step] for step in repeated)
    said = f"killed at step {max(before)}, resumed from {saved}, {rate:,.0f} tokens/s, {share:.1%} of the peak"
    outcome |= {"tokens_per_second": rate, "utilisation": share, "summary": said}
    return close_losses(max((abs(after[step] - before[step]) / before[step] for step in before), default=0.0), outcome)


def train(bench: Bench, run: Path, changes: Mapping[str, Any], enough: Callable[[], Any], **environment: str) -> str:
    """Train in another process until it ends or, once `enough()` is true, is killed; returns the reason of a failure, or ""."""
    options = configs.arguments({"log_every": 1, **bench.sizes.model, **changes})
    command = [sys.executable, "-m", "bam_jax.train", f"--config={bench.config}", *options, f"--workdir={run}"]
    run.parent.mkdir(parents=True, exist_ok=True)
    log, end = run.with_suffix(".log"), time.monotonic() + PATIENCE
    with log.open("w") as file:
        process = subprocess.Popen([*command, "--no-progress"], stdout=file, stderr=file, env=os.environ | environment)
        try:
            while process.poll() is None and time.monotonic() < end:
                if enough():
                    return ""
                time.sleep(0.5)
            status = process.poll()
        finally:
            process.kill()
            process.wait()
    said = log.read_text(errors="replace").strip().rpartition("\n")[2][:160]
    return "" if status == 0 else f"the training ended with status {status}: {said}"


def losses_of(run: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in read_metrics(run)}


def pytest_command(bench: Bench, *options: str) -> list[str]:
    select = [f"-k={bench.sizes.tests}"] if bench.sizes.tests else []
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--device={bench.platform}"]
    return [*pytest, *select, *options]


def parity_cases(bench: Bench) -> Iterator[Case]:
    """A case for each test; `run_parity` runs them together."""
    command = pytest_command(bench, "-n0", "--collect-only", "tests/attention")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        raise UserError(f"pytest collects no tests of attention: {said}; mend that")
    for line in done.stdout.splitlines():
        if "::" in line:
            yield Case("parity", line.strip(), dict)


def run_parity(bench: Bench, cases: Sequence[Case], about: Mapping[str, Any], deadline: float, workers: int) -> None:
    """Run tests in one pytest, whose workers use the device; if a kernel kills a worker, its test fails and another continues."""
    path, log = bench.folder / "tests.jsonl", bench.folder / "tests.log"
    record_tests(path, bench.folder, about)  # outcomes of a call that was killed
    todo = [case.name for case in missing(cases, read(bench.folder))]
    if not todo:
        return
    command = pytest_command(bench, f"-n{workers}", f"--outcomes={path.resolve()}", *todo)
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # each worker takes the memory that it needs
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, env=environment)
    try:
        process.wait(None if math.isinf(deadline) else max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired as error:
        raise Stopped("the time is over") from error
    finally:
        process.terminate()
        process.wait()
        known = record_tests(path, bench.folder, about)
    if not known:
        raise UserError(f"pytest ran no test; see {log}")


def record_tests(path: Path, folder: Path, about: Mapping[str, Any]) -> int:
    """Move the outcomes of tests to the records."""
    found = list(jsonl.read(path))
    for test in found:
        head = {"stage": "parity", "case": test["test"], **about, "commit": git.describe()}
        outcome = {"seconds": test["seconds"], "status": "refused" if test["outcome"] == "skipped" else test["outcome"]}
        append(folder, head | outcome | ({"reason": test["reason"]} if test["reason"] else {}))
    path.unlink(missing_ok=True)
    return len(found)


OF_STAGES = (ceilings_cases, parity_cases, times_cases, tiles_cases, steps_cases, training_cases)
CASES: dict[str, Callable[[Bench], Iterator[Case]]] = dict(zip(STAGES, OF_STAGES, strict=True))


def append(folder: Path, record: dict[str, Any]) -> None:
    if "reason" in record:  # a compiler's output may contain any characters
        record["reason"] = "".join(c if c.isprintable() else " " for c in record["reason"])
    jsonl.append(folder / RECORDS, record)


def read(folder: Path) -> list[dict[str, Any]]:
    records = list(jsonl.read(folder / RECORDS))
    if not all({"stage", "case", "status", "machine"} <= record.keys() for record in records):
        raise UserError(f"{folder / RECORDS} has lines that are no records of this command; give another folder")
    return records


def newest(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(record["stage"], record["case"]): record for record in records if record["status"] != "started"}


def missing(cases: Sequence[Case], records: Sequence[dict[str, Any]]) -> list[Case]:
    known = newest(records)
    return [case for case in cases if (case.stage, case.name) not in known]


def forget(folder: Path, stages: Sequence[str], *, only_failed: bool) -> None:
    """Remove the records of stages, so that their cases run again."""
    failed = {key for key, record in newest(read(folder)).items() if record["status"] == "failed"}
    gone = lambda x: x["stage"] in stages and (not only_failed or (x["stage"], x["case"]) in failed)
    jsonl.keep(folder / RECORDS, lambda record: not gone(record))


def run_all(cases: Sequence[Case], folder: Path, about: Mapping[str, Any], deadline: float, *, device: bool) -> None:
    """Run missing cases one after another; raises after a failure if the device no longer responds."""
    commit = git.describe()
    for case in missing(cases, read(folder)):
        if time.monotonic() + case.seconds >= deadline:
            raise Stopped("the time is over")
        head = {"stage": case.stage, "case": case.name, **about, "commit": commit}
        append(folder, {**head, "status": "started"})  # for `drive_worker`, in case a kernel kills this process
        started = time.monotonic()
        try:
            outcome = case.run()
        except REFUSALS as error:
            outcome = {"status": "failed", "reason": first_line(error)}
        seconds = round(time.monotonic() - started, 3)
        append(folder, {**head, "seconds": seconds, **outcome})
        details = "".join(f": {outcome[name]}" for name in ("summary", "reason") if name in outcome)
        print(f"{case.stage:10} {case.name:48} {outcome['status']}{details} ({seconds:.1f} s)", flush=True)
        if outcome["status"] == "failed" and device:
            jax.block_until_ready(jnp.ones(8) + 1)


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns 1 if a case failed."""
    given = parse(argv)
    if given.print is not None:
        print(to_page(json.loads(given.print.read_text())))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    if given.worker is not None:
        end_with_parent(given.worker)
        return work(given)
    with lock.hold(given.out / ".accelerator.lock", f"--out={given.out} is in use by another process; wait for it"):
        if given.again:
            forget(given.out, given.stages, only_failed=given.again == "failed")
        return drive(given, argv)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = errors.Parser(prog=f"python -m {COMMAND}", description=__doc__)
    add = parser.add_argument
    add("--out", type=files.local_path, help="folder of the records and the page")
    add("--print", type=files.local_path, metavar="JSON", help="print the page of an accelerator.json, nothing else")
    add("--stages", default=",".join(STAGES), help="with commas (all)")
    add("--cases", help="only cases whose names this regular expression finds (all)")
    add("--minutes", type=float, default=math.inf, help="stop between two cases after so many")
    add("--workers", type=int, default=1, help="processes that share the tests of parity; a TPU allows one (1)")
    add("--seconds", type=float, help="of training before the kill (150)")
    add("--short", action="store_true", help="tiny sizes, as on a CPU: does all of it run?")
    add("--again", choices=("failed", "all"), help="run failed cases, or the whole stages, once more")
    add("--config", type=configs.located, default="configs/lm_120m.py", help="(configs/lm_120m.py)")
    add("--worker", type=int, metavar="PARENT", help="run cases that need the device; set by the command")
    given = parser.parse_args(argv)
    if given.print is None and given.out in (None, Path()):
        raise UserError("--out= must name a folder for the records")
    given.stages = given.stages.split(",")
    for name in given.stages:
        if name not in STAGES:
            raise UserError(f"--stages={','.join(given.stages)}: no stage {name!r}; {errors.nearest(name, STAGES)}")
    if not given.minutes > 0 or given.workers < 1 or (given.seconds is not None and not given.seconds >= 0):
        raise UserError("--minutes and --workers must be above 0, and --seconds at least 0")
    if {"steps", "training"} & {*given.stages} and not given.config.is_file():
        raise UserError(f"--config={given.config} is no file; give the path of a config")
    try:
        re.compile(given.cases or "")
    except re.error as error:
        raise UserError(f"--cases={given.cases} is no regular expression: {error}") from error
    given.deadline = time.monotonic() + 60 * given.minutes
    return given


def bench_of(given: argparse.Namespace, machine: Mapping[str, Any]) -> Bench:
    cpu = machine["platform"] == "cpu"
    sizes = SHORT if given.short or cpu else Sizes()
    sizes = dataclasses.replace(sizes, seconds=sizes.seconds if given.seconds is None else given.seconds)
    devices, dtype = (1, "float32") if cpu else (machine["devices"], "bfloat16")
    return Bench(machine["platform"], devices, sizes, given.config, given.out, dtype)


def chosen(given: argparse.Namespace, bench: Bench, stage: str) -> list[Case]:
    wanted = lambda case: stage == "ceilings" or re.search(given.cases or "", case.name)
    return [case for case in CASES[stage](bench) if wanted(case)]


def work(given: argparse.Namespace) -> int:  # in the process that holds the device
    about = {"machine": machine(), "short": given.short, "config": str(given.config)}
    facts = lambda x: f"device {x['machine']['device']}, --config={x['config']}{' --short' if x['short'] else ''}"
    for record in read(given.out):
        if facts(record) != facts(about):
            raise UserError(f"--out={given.out} has records of {facts(record)}; give another for {facts(about)}")
    bench = bench_of(given, about["machine"])
    cases = [case for stage in given.stages for case in chosen(given, bench, stage)]
    run_all(cases, given.out, about, given.deadline, device=True)
    return 0


def drive(given: argparse.Namespace, argv: Sequence[str]) -> int:
    """Run the stages. This process never uses the device, whose memory belongs to one process at a time."""
    if status := drive_worker(given, argv, "ceilings"):
        return status
    (ceilings,) = (x for x in newest(read(given.out)).values() if x["stage"] == "ceilings")
    if ceilings["status"] == "failed":  # then no program runs here
        raise UserError(f"{ceilings['case']}: {ceilings['reason']}; mend that, then give --again=failed")
    about = {name: ceilings[name] for name in ("machine", "short", "config")}
    bench = bench_of(given, about["machine"])
    cases = {stage: chosen(given, bench, stage) for stage in STAGES[1:] if stage in given.stages}
    if cases and not any(cases.values()):
        raise UserError(f"--cases={given.cases} finds no case of {', '.join(given.stages)}; give another")
    try:
        for stage, wanted in cases.items():
            if stage == "parity":
                run_parity(bench, wanted, about, given.deadline, given.workers)
            elif stage == "training":
                run_all(wanted, given.out, about, given.deadline, device=False)
            elif status := drive_worker(given, argv, stage):
                return status
    except Stopped:
        pass  # `conclude` reports what is left
    return conclude(given, argv, [case for some in cases.values() for case in some])


def drive_worker(given: argparse.Namespace, argv: Sequence[str], stage: str) -> int:
    """Start workers until one exits normally: a fault in a kernel fails its case and kills the worker."""
    while True:
        left = max(given.deadline - time.monotonic(), 0.001) / 60
        # The last of repeated options is used. A worker never removes records, even with --again.
        options = [f"--stages={stage}", f"--minutes={left}", f"--worker={os.getpid()}"]
        status = subprocess.run([sys.executable, "-m", COMMAND, *argv, *options]).returncode
        if status == errors.AGAIN:
            raise Stopped(f"--minutes={given.minutes:g} are over; give more")
        if status in (0, 2, errors.INTERRUPTED):
            return status
        last = next(iter(read(given.out)[-1:]), {"status": ""})
        if last["status"] != "started":
            print(f"a process ended with status {status} outside a case", file=sys.stderr)
            return 1
        append(given.out, last | {"status": "failed", "reason": f"its process ended with status {status}"})


def conclude(given: argparse.Namespace, argv: Sequence[str], cases: Sequence[Case]) -> int:
    """Write the JSON and the page of all records in the folder, and print what failed and what is left."""
    records = read(given.out)
    left = Counter(case.stage for case in missing(cases, records))
    outcomes = sorted(newest(records).values(), key=lambda x: STAGES.index(x["stage"]))
    summary = {
        "command": f"python -m {COMMAND} {shlex.join(argv)}",
        "machine": outcomes[0]["machine"],
        "commits": sorted({str(x["commit"]) for x in outcomes}),
        "left": dict(left),
        "failed": [f"{x['stage']}: {x['case']}" for x in outcomes if x["status"] == "failed"],
        "results": [{name: value for name, value in x.items() if name != "machine"} for x in outcomes],
    }
    files.write_atomically(given.out / "accelerator.json", jsonl.by_lines(summary))
    files.write_atomically(given.out / "accelerator.md", to_page(summary))
    wanted = {(case.stage, case.name) for case in cases}
    failed = [x for x in outcomes if x["status"] == "failed" and (x["stage"], x["case"]) in wanted]
    for x in failed:
        print(f"failed: {x['stage']}: {x['case']}: {x['reason']}", file=sys.stderr)
    so_far = f"{len(failed)} of {len(outcomes)} cases failed; see {given.out / 'accelerator.md'}"
    if left:
        todo = ", ".join(f"{count} {stage}" for stage, count in left.items())
        raise Stopped(f"{so_far}; left: {todo}; the same command goes on")
    print(so_far)
    return 1 if failed else 0


if __name__ == "__main__":
    errors.run(main)
