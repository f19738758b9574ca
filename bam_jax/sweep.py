"""Experiments' rows trained and evaluated, one process a core or accelerator; again, it does what is missing.

python -m bam_jax.sweep experiments/quickstart.py --runs=runs/quickstart [--source=PATH] [--jobs=2] [--only=RUN]
python -m bam_jax.sweep experiments/bam_*.py experiments/cable_*.py        # one queue: equal runs are trained once
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --print      # a command for each row
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --dry-run --chip=h100
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bam_jax.experiments import costs, experiment
from bam_jax.experiments.experiment import Experiment
from bam_jax.experiments.jobs import Job, jobs
from bam_jax.experiments.manifest import MANIFEST
from bam_jax.experiments.queue import end_with, manifest, prepare, run, work
from bam_jax.experiments.slots import places
from bam_jax.experiments.speed_jobs import Comparison, comparisons
from bam_jax.models import counts
from bam_jax.system import errors, files
from bam_jax.system.errors import UserError, nearest


def _plans(given: argparse.Namespace) -> tuple[list[Experiment], Path]:
    """The experiments that are asked for, and the folder of their runs."""
    folder = given.runs or Path("runs") / Path(given.experiments[0]).stem
    plans = [experiment.load(path, source=given.source, runs=folder, scale=given.scale) for path in given.experiments]
    for path, plan in zip(given.experiments, plans, strict=True):
        if len(plans) > 1 and not plan.shared:
            raise UserError(f"{path} has a folder of runs and a report of its own; give it alone")
        if plan.platform != plans[0].platform:
            raise UserError(f"{path} and {given.experiments[0]} are for different platforms; give them one by one")
    return plans, given.runs or (Path("runs") if plans[0].shared else folder)


def _parser() -> argparse.ArgumentParser:
    parser = errors.Parser(prog="python -m bam_jax.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="+", metavar="experiment", help="Python files with get_experiment()")
    parser.add_argument("--runs", type=Path, help="folder of the runs (default: runs/NAME; runs for a paper's tables)")
    parser.add_argument("--scale", help="toy (the default) or paper, for experiments that have both")
    parser.add_argument("--source", help="where the corpus is, for an experiment about one")
    parser.add_argument("--jobs", type=int, help="rows at a time (default: one a core, or one an accelerator)")
    parser.add_argument("--only", metavar="RUN", help="only this run, in this process, such as cable-seed0")
    parser.add_argument("--core", type=int, help="pin the process of --only to this core")
    parser.add_argument("--parent", type=int, help="end the process of --only with that one, which started it")
    parser.add_argument("--print", action="store_true", help="only print a command for each row, to be run anywhere")
    parser.add_argument("--dry-run", action="store_true", help="only say runs, tokens, operations and hours")
    chips = ", ".join(counts.CHIPS)
    parser.add_argument("--chip", help=f"of --dry-run: {chips} (default: cpu for what is meant for one, else h100)")
    parser.add_argument("--utilisation", type=float, default=counts.UTILISATION, help="share of the chip's peak (0.4)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs experiments; 1 when a row failed.

    Raises:
        UserError: bad arguments, experiment or configuration.
    """
    given = _parser().parse_args(argv)
    plans, folder = _plans(given)
    options = {"source": given.source, "scale": given.scale}
    named = [*given.experiments, *(f"--{name}={value}" for name, value in options.items() if value)]
    rows, compared = jobs(*plans), comparisons(*plans)
    todo: list[Job | Comparison] = [*rows, *compared]
    names = [job.name for job in todo]
    platform = plans[0].platform
    if given.only is not None:
        if given.only not in names:
            raise UserError(f"no run {given.only}; {nearest(given.only, names)}")
        if given.core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {given.core})
        if given.parent is not None:
            end_with(given.parent)
        work(todo[names.index(given.only)], folder)
        return 0
    if given.jobs is not None and given.jobs < 1:
        raise UserError(f"--jobs={given.jobs} must be 1 or more")
    if given.dry_run:
        chip = given.chip or ("cpu" if platform == "cpu" else "h100")
        title = plans[0].title if len(plans) == 1 else f"{len(plans)} experiments"
        print(costs.table(title, rows, chip, given.utilisation))
        if compared:
            print(f"besides, models are compared in speed {len(compared)} times, which trains nothing")
        return 0
    steps = list(dict.fromkeys(step for plan in plans for step in plan.steps))
    if given.print:
        for step in steps:
            print(f"first: {shlex.join(['python', '-m', step.module, *step.arguments])}", file=sys.stderr)
        for name in names:
            print(shlex.join(["python", "-m", "bam_jax.sweep", *named, f"--runs={folder}", f"--only={name}"]))
        return 0
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    if not plans[0].shared:  # a report is about a folder of its own
        described = manifest(plans[0], named, folder)
        files.write_atomically(folder / MANIFEST, json.dumps(described, indent=2) + "\n")
    prepare(steps)
    found = places(os.environ["JAX_PLATFORMS"] if "JAX_PLATFORMS" in os.environ else platform)
    count = given.jobs or len(found)
    failed = run(todo, named, folder, [found[k % len(found)] for k in range(count)], platform)
    if failed:
        print(f"{len(failed)} of {len(todo)} rows failed: {', '.join(job.name for job in failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    errors.run(main)
