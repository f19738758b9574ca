"""Try a chip for the first time: is attention right on it, how fast is it, does a training run and go on after a kill.

    python -m benchmarks.accelerator --out=runs/chip                     # all of it; a stopped one goes on
    python -m benchmarks.accelerator --out=runs/chip --minutes=9         # stops between two cases, with exit code 75
    python -m benchmarks.accelerator --out=runs/chip --stages=parity,times --cases='causal|2048 tokens'
    python -m benchmarks.accelerator --out=runs/chip --workers=8         # of a GPU's stages that time nothing, at once
    python -m benchmarks.accelerator --out=runs/short --short            # tiny sizes, about a minute, on any machine

Stages, in this order:

    ceilings      the rate of a large matrix product and of a large copy; always there, since shares are of them
    parity        every bias with every mask, in bfloat16 and float32: output and all gradients beside the reference in float64
    determinism   the same program three times, with other work in the same memory between: the same bits
    times         attention from 512 to 524,288 tokens and decoding, beside what is installed, as shares of the ceilings
    tiles         a search of the fastest size of tiles
    steps         training steps of the model of --config with each of several encodings
    training      that model trained for some minutes: first losses beside a CPU's, a kill, a resume

Every case's outcome is a line of OUT/records.jsonl as soon as it is known, so that a kill loses one case. OUT/accelerator.json
holds everything, OUT/accelerator.md is a page of tables; both are written at the end of each call. Exit code 1: a case failed.
A case that failed is not run again unless --again=failed says so. docs/accelerator.md says how to read the page.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
import dataclasses
import functools
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bam_jax import config as configs
from bam_jax.system import files, lock
from bam_jax.system.errors import Stopped, UserError
from bam_jax.system.machine import machine
from bam_jax.system.parent import end_with_parent
from benchmarks import chip_cases, chip_page, chip_peaks, chip_plan, chip_scales
from benchmarks.chip_plan import CEILINGS, STAGES, TRAINING, UNTIMED, Plan

COMMAND = "benchmarks.accelerator"


def main(argv: Sequence[str]) -> int:
    """Run the command line; see the module's docstring.

    Returns:
        The exit code: 1 where a case failed.

    Raises:
        UserError: bad arguments, or a folder with records of another device.
        Stopped: the time is over; the same command goes on.
    """
    given = _parse(argv)
    if given.out == Path():
        raise UserError("--out= names this folder itself; give a folder for the records")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.worker is not None:
        end_with_parent(given.worker)
        return _work(given)
    with lock.hold(
        given.out / ".accelerator.lock", f"--out={given.out} is being written by another process; wait for it"
    ):
        if given.again:
            chip_cases.forget(given.out, given.stages, only_failed=given.again == "failed")
        return _drive(given, argv)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = errors.Parser(prog=f"python -m {COMMAND}", description=__doc__)
    parser.add_argument(
        "--out", type=files.local_path, required=True, help="the folder of records and page; it is made"
    )
    parser.add_argument("--stages", default="", help=f"with commas, of {', '.join(STAGES)} (all)")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop between two cases after so many (never)"
    )
    parser.add_argument(
        "--cases", type=_pattern, help="only those with a name that this regular expression finds (all)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help=f"processes that share the cases of {' and '.join(UNTIMED)}, most of which a compiler takes; "
        "not on a TPU, which belongs to one (1)",
    )
    parser.add_argument(
        "--seconds", type=float, help="that a model trains before it is killed (what the chip's scale says)"
    )
    parser.add_argument("--short", action="store_true", help="tiny sizes, which show that all of it runs")
    parser.add_argument("--again", choices=("failed", "all"), help="run failed cases, or all of the stages, once more")
    parser.add_argument(
        "--config", type=configs.located, default="configs/lm_120m.py", help="of the model (configs/lm_120m.py)"
    )
    own = "; the command gives this itself"
    parser.add_argument("--worker", type=int, metavar="PARENT", help=f"run what needs the device here{own}")
    parser.add_argument("--part", type=int, default=0, help=f"of the cases, which this worker runs{own}")
    given = parser.parse_args(argv)
    if not given.minutes > 0:
        raise UserError(f"--minutes={given.minutes:g} must be above 0")
    if given.workers < 1:
        raise UserError(f"--workers={given.workers} must be at least 1")
    if given.seconds is not None and not given.seconds >= 0:
        raise UserError(f"--seconds={given.seconds:g} must be at least 0")
    given.stages = chip_plan.chosen(given.stages)
    if {"steps", TRAINING} & set(given.stages) and not given.config.is_file():
        raise UserError(f"--config={given.config} is no file; give the path of a config")
    given.deadline = time.monotonic() + 60 * given.minutes
    return given


def _pattern(text: str) -> re.Pattern:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def _cases(given: argparse.Namespace, machine: Mapping[str, Any], stages: Sequence[str]) -> list[chip_cases.Case]:
    """The cases for a machine that are wanted; nothing of them touches the device before it runs."""
    cases = _plan(given, machine).cases(stages)
    return [x for x in cases if x.stage == CEILINGS or given.cases is None or given.cases.search(x.name)]


def _part(cases: Sequence[chip_cases.Case], part: int, workers: int) -> list[chip_cases.Case]:
    """The cases of one of several workers: in pairs, since both types of a problem share the reference's results."""
    return [
        x for number, x in enumerate(cases, start=1) if number // 2 % workers == part
    ]  # the ceilings are before them


def _plan(given: argparse.Namespace, machine: Mapping[str, Any]) -> Plan:

    def ceilings() -> chip_peaks.Ceilings:
        (measured,) = (x for x in chip_cases.read(given.out) if x["stage"] == CEILINGS and x["status"] == "measured")
        return chip_peaks.ceilings(measured, measured["machine"]["device"])

    platform = machine["platform"]
    scale, devices = chip_scales.scale_of(platform, given.short), 1 if platform == "cpu" else machine["devices"]
    if given.seconds is not None:
        scale = dataclasses.replace(scale, trial={**scale.trial, "seconds": given.seconds})
    return Plan(platform, devices, scale, given.config, given.out, functools.cache(ceilings))


def _work(given: argparse.Namespace) -> int:
    """Run the cases that need the device in this process."""
    about: Any = {"machine": machine(), "short": given.short, "config": str(given.config)}
    chip_cases.check_same(chip_cases.read(given.out), about, given.out)
    stages = [name for name in given.stages if name != TRAINING]
    cases = _part(_cases(given, about["machine"], stages), given.part, given.workers)
    answers = lambda: jax.block_until_ready(jnp.ones(8) + 1)
    try:
        chip_cases.run_all(cases, given.out, about, given.deadline, answers)
    except Stopped:  # the command that started this says so
        return errors.AGAIN
    return 0


def _phases(given: argparse.Namespace) -> Iterator[tuple[list[str], int]]:
    """Stages that run after one another, and the processes that share each one's cases."""
    if given.workers == 1:
        yield given.stages, 1
        return
    untimed = [name for name in given.stages if name in UNTIMED]
    yield [CEILINGS], 1
    if untimed:
        yield untimed, given.workers
    timed = [name for name in given.stages if name not in UNTIMED]
    if timed:
        yield timed, 1


def _drive(given: argparse.Namespace, argv: Sequence[str]) -> int:
    """Have worker processes run what needs the device, then train, write the page and say how it ended."""
    for stages, count in _phases(given):
        phase = argparse.Namespace(**{**vars(given), "workers": count})
        shared = [*argv, f"--stages={','.join(stages)}", f"--workers={count}"]
        with ThreadPoolExecutor(count) as pool:
            parts = [pool.submit(_finish_part, phase, [*shared, f"--part={part}"]) for part in range(count)]
            status = max((part.result() for part in parts), key=abs)
        if status not in (0, errors.AGAIN):
            return status  # it said why
        if status:
            break
    records = chip_cases.read(given.out)
    ceilings = [x for (stage, _), x in chip_cases.outcomes(records).items() if stage == CEILINGS]
    if not ceilings or ceilings[0]["status"] == "started":
        raise Stopped(f"{given.out}: nothing was measured in --minutes={given.minutes:g}; give more")
    if ceilings[0]["status"] == "failed":  # no program runs here
        raise UserError(f"{ceilings[0]['case']}: {ceilings[0]['reason']}; mend that, then give --again=failed")
    about: Any = {name: records[0][name] for name in ("machine", "short", "config")}
    cases = _cases(given, about["machine"], given.stages)
    if given.cases is not None and all(case.stage == CEILINGS for case in cases):
        raise UserError(
            f"--cases={given.cases.pattern} finds no case of {', '.join(given.stages)}; give another expression"
        )
    if status == 0:
        try:
            chip_cases.run_all(cases, given.out, about, given.deadline)
        except Stopped:
            status = errors.AGAIN
    return _conclude(given, argv, cases)


def _finish_part(given: argparse.Namespace, argv: Sequence[str]) -> int:
    """Start workers, one after another, until one has finished its part of the cases or says why it cannot.

    A device's memory belongs to one process, and a kernel's fault takes its process along: another one goes on.

    Returns:
        The last one's exit code; 1 where it ended before it began a case.
    """
    while True:
        known = len(chip_cases.read(given.out))
        status = _start_worker(given, argv)
        if status in (0, 2, errors.AGAIN, errors.INTERRUPTED):
            return status
        records = chip_cases.read(given.out)
        if len(records) == known:
            print(f"a process ended with status {status} before it began a case", file=sys.stderr)
            return 1
        last = f" in {records[-1]['case']!r}" if given.workers == 1 else ""
        print(f"a process ended with status {status}{last}; another one goes on", file=sys.stderr)


def _start_worker(given: argparse.Namespace, argv: Sequence[str]) -> int:
    left = max(given.deadline - time.monotonic(), 0.001) / 60
    # Each takes what memory it needs: the first one would take most of it.
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if given.workers > 1 else {}
    # The last --minutes counts; a worker forgets nothing, whatever --again says.
    command = [sys.executable, "-m", COMMAND, *argv, f"--minutes={left}", f"--worker={os.getpid()}"]
    return subprocess.run(command, env={**os.environ, **shared}).returncode


def _conclude(given: argparse.Namespace, argv: Sequence[str], cases: Sequence[chip_cases.Case]) -> int:
    """Write JSON and page of all records in the folder, and say what failed and what is left."""
    records = chip_cases.read(given.out)
    left = Counter(case.stage for case in chip_cases.missing(cases, records))
    outcomes: list[dict[str, Any]] = [x for x in chip_cases.outcomes(records).values() if x["status"] != "started"]
    order = list(STAGES)
    outcomes.sort(key=lambda x: order.index(x["stage"]))
    chip_page.write(outcomes, left, f"python -m {COMMAND} {shlex.join(argv)}", given.out)
    failed = chip_cases.failed(cases, records)
    for x in failed:
        print(f"failed: {x['stage']}: {x['case']}: {x['reason']}", file=sys.stderr)
    counts = ", ".join(f"{count} {stage}" for stage, count in left.items())
    so_far = f"{len(failed)} of {len(outcomes)} cases failed; see {given.out / 'accelerator.md'}"
    if left:
        raise Stopped(f"{so_far}; left: {counts}; the same command goes on")
    print(so_far)
    return 1 if failed else 0


if __name__ == "__main__":
    errors.run(main)
