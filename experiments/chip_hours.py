"""The steps of docs/chip_hours.md: what to run with one GPU for half an hour.

Command:  python experiments/chip_hours.py --step=NAME --minutes=9 --out=FOLDER
          python experiments/chip_hours.py --tiny --out=FOLDER      # all steps on a CPU, in their tiny form
          python experiments/chip_hours.py --list
Hardware: a GPU of 80 GB; --tiny: a CPU, a few minutes.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bam_jax.system import errors, files
from bam_jax.system.errors import UserError

ROOT = Path(__file__).parents[1]
SPEED = ("bam_table8_inference", "cable_figure3_speed", "cable_table2_dape")
STEPS = ("parity", "speed", "emergence", "dose")


def commands(step: str, out: Path, minutes: float, *, tiny: bool) -> list[list[str]]:
    """The commands of a step, each a module and its arguments."""
    scale = "toy" if tiny else "paper"
    if step == "parity":
        short = ["--short", "--cases=ggd|causal"] if tiny else ["--stages=parity"]
        return [["benchmarks.accelerator", f"--out={out / step}", f"--minutes={minutes:g}", *short]]
    if step == "speed":
        return speeds(out / step, scale)[: 1 if tiny else None]
    records = [] if tiny else [f"--records={out / 'records' / step}"]
    return [["bam_jax.sweep", f"experiments/{step}.py", f"--scale={scale}", f"--runs={out / step}", *records]]


def speeds(runs: Path, scale: str) -> list[list[str]]:
    """The benchmarks of the papers' tables of speed, without the trainings that stand beside them."""
    from bam_jax.experiments.sweep import Sweep

    sweep = Sweep.load([f"experiments/{name}.py" for name in SPEED], scale=scale, runs=runs)
    benchmarks = sorted(sweep.benchmarks, key=lambda each: each.cost())
    return [each.command(runs) for each in benchmarks]


def main(argv: Sequence[str]) -> int:
    """Runs a step, or all of them in their tiny form; the exit status of the command that stopped it."""
    parser = errors.Parser(prog="python experiments/chip_hours.py", description=__doc__)
    parser.add_argument("--step", choices=STEPS, help="one of them; --tiny does all")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which a step is stopped (9)")
    parser.add_argument("--out", type=files.local_path, help="folder of all that is measured")
    parser.add_argument("--tiny", action="store_true", help="the smallest form, on a CPU")
    parser.add_argument("--list", action="store_true", help="only print the commands of all steps")
    given = parser.parse_args(argv)
    if given.list:
        for step in STEPS:
            for command in commands(step, Path("$OUT"), given.minutes, tiny=given.tiny):
                print(f"{step}: {shlex.join(['python', '-m', *command])}")
        return 0
    if given.out is None or not (given.step or given.tiny):
        raise UserError("give --out=FOLDER and --step=NAME, or --tiny for all steps; --list prints them")
    steps = [given.step] if given.step else STEPS
    end = time.monotonic() + 60 * given.minutes if given.step else None
    # Programs are compiled once; a second call, and the second seed of a row, reuse them.
    cache = {"JAX_COMPILATION_CACHE_DIR": str((given.out / "compiled").absolute())}
    platform = {"JAX_PLATFORMS": "cpu"} if given.tiny else {}
    for step in steps:
        for command in commands(step, given.out.absolute(), given.minutes, tiny=given.tiny):
            print(f"{step}: {shlex.join(['python', '-m', *command])}", flush=True)
            left = None if end is None else end - time.monotonic()
            try:
                status = _run(command, {**os.environ, **cache, **platform}, left)
            except subprocess.TimeoutExpired:
                print(f"{given.minutes:g} minutes are over; the same command goes on", flush=True)
                return 75
            if status:
                return status
    return 0


def _run(command: Sequence[str], env: dict[str, str], seconds: float | None) -> int:
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=env)
    try:
        return process.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.terminate()  # sweeps and trainings save before they exit
        process.wait()
        raise


if __name__ == "__main__":
    errors.run(main)
