"""Train and evaluate the rows of experiments, one process per core or accelerator.

Running the same command again does what is missing.

python -m bam_jax.sweep experiments/quickstart.py --runs=runs/quickstart [--source=PATH] [--jobs=2] [--only=RUN]
python -m bam_jax.sweep experiments/bam_*.py experiments/cable_*.py        # one queue: equal runs are trained once
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --print      # a command for each row
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --dry-run --chip=h100
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
import os
import sys
from collections.abc import Sequence

from bam_jax.experiments.sweep import Sweep
from bam_jax.models import counts
from bam_jax.system import files, programs
from bam_jax.system.errors import UserError
from bam_jax.system.parent import end_with_parent


def _parser() -> argparse.ArgumentParser:
    parser = errors.Parser(prog="python -m bam_jax.sweep", description=__doc__)
    parser.add_argument("experiments", nargs="+", metavar="experiment", help="Python files with get_experiment()")
    parser.add_argument(
        "--runs", type=files.local_path, help="folder of the runs (default: runs/NAME; runs for a paper's tables)"
    )
    parser.add_argument("--scale", help="toy (the default), small or paper, for experiments that have several")
    parser.add_argument("--source", help="where the corpus is, for an experiment about one")
    parser.add_argument(
        "--records",
        type=files.local,
        metavar="FOLDER",
        help="where records are kept, which count as measured without the runs (default: records/SCALE/ beside the "
        "experiment, none at the toy scale; an empty name: none)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        help="rows at a time (default: one a core, or one an accelerator; with more than cores, none is pinned to one)",
    )
    parser.add_argument("--only", metavar="RUN", help="only this run, in this process, such as cable-seed0")
    parser.add_argument("--core", type=int, help="pin the process of --only to this core")
    parser.add_argument("--parent", type=int, help="end the process of --only with that one, which started it")
    parser.add_argument("--print", action="store_true", help="only print a command for each row, to be run anywhere")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say runs, tokens, operations, hours, and what the records lack"
    )
    chips = ", ".join(counts.CHIPS)
    parser.add_argument("--chip", help=f"of --dry-run: {chips} (default: cpu for what is meant for one, else h100)")
    parser.add_argument("--utilisation", type=float, default=counts.UTILISATION, help="share of the chip's peak (0.4)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs experiments; returns 1 if a row failed."""
    given = _parser().parse_args(argv)
    sweep = Sweep.load(
        given.experiments, source=given.source, scale=given.scale, runs=given.runs, records=given.records
    )
    if given.only is not None:
        job = sweep.job(given.only)
        if given.core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {given.core})
        if given.parent is not None:
            end_with_parent(given.parent)
        programs.keep()
        sweep.recorder.work(job, sweep.folder)
        return 0
    if given.jobs is not None and given.jobs < 1:
        raise UserError(f"--jobs={given.jobs} must be 1 or more")
    if given.dry_run:
        print(sweep.describe_costs(given.chip, given.utilisation))
        return 0
    if given.print:
        for preparation in sweep.preparations:
            print(f"first: {preparation.command()}", file=sys.stderr)
        for command in sweep.commands():
            print(command)
        return 0
    failed = sweep.run(given.jobs)
    if failed:
        names = ", ".join(job.name for job in failed)
        print(f"{len(failed)} of {len(sweep.jobs)} rows failed: {names}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    errors.run(main)
