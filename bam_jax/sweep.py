"""Experiments' rows trained and evaluated, one process a core or accelerator; again, it does what is missing.

python -m bam_jax.sweep experiments/quickstart.py --runs=runs/quickstart [--source=PATH] [--jobs=2] [--only=RUN]
python -m bam_jax.sweep experiments/bam_*.py experiments/cable_*.py        # one queue: equal runs are trained once
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --print      # a command for each row
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --dry-run --chip=h100
"""

import argparse
import dataclasses
import importlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bam_jax import budget, errors, experiment, log, records
from bam_jax.board import Board
from bam_jax.comparisons import Comparison, comparisons
from bam_jax.errors import UserError, nearest
from bam_jax.experiment import Experiment, Step
from bam_jax.jobs import Job, jobs
from bam_jax.places import Place, places

POLL = 0.5
"""Seconds between two looks at the running rows."""


def manifest(experiment: Experiment, given: Sequence[str], folder: Path) -> dict[str, Any]:
    """What a report needs beside the runs' own files; written to `experiment.json`.

    Args:
        experiment: what is done.
        given: the arguments that name it: its file, and the corpus if there is one.
        folder: of the runs.
    """
    order = [row.label for row in experiment.rows]
    return {
        "title": experiment.title,
        "command": shlex.join(["python", "-m", "bam_jax.sweep", *given, f"--runs={folder}"]),
        "folder": str(folder),
        "claims": [dataclasses.asdict(claim) for claim in experiment.claims],
        "notes": list(experiment.notes),
        "runs": [
            {
                "name": job.name,
                "label": job.row.label,
                "seed": job.seed,
                "labels": [[list(each.overrides), each.label] for each in job.row.evaluations if each.label],
                "commands": [shlex.join(["python", "-m", *command]) for command in job.commands(folder)],
                "evaluations": [dataclasses.asdict(each) for each in job.row.evaluations],
            }
            for job in sorted(jobs(experiment), key=lambda job: (order.index(job.row.label), job.seed))
        ],
    }


def work(job: Job | Comparison, folder: Path) -> None:
    """Train and evaluate one row in this process, which thus imports and compiles everything once."""
    for module, *arguments in job.commands(folder):
        importlib.import_module(module).main(arguments)


def prepare(steps: Sequence[Step]) -> None:
    """Do an experiment's steps, each in a process of its own.

    Args:
        steps: in their order.

    Raises:
        UserError: one failed; it said why.
    """
    for step in steps:
        command = [sys.executable, "-m", step.module, *step.arguments]
        if not (step.makes and Path(step.makes).exists()) and subprocess.run(command).returncode:
            raise UserError(f"this failed: {shlex.join(['python', '-m', *command[2:]])}; mend it and start again")


def run(
    waiting: Sequence[Job | Comparison], given: Sequence[str], folder: Path, where: Sequence[Place], platform: str
) -> list[Job | Comparison]:
    """Work through the jobs, each in a process of its own at a place of its own; a comparison has the machine to itself.

    Args:
        waiting: the jobs in their order, comparisons last.
        given: the arguments that name the experiments, which every process loads again.
        folder: where the runs stand; logs go to its `logs`.
        where: as many jobs run at a time.
        platform: JAX_PLATFORMS, where the environment does not set it.

    Returns:
        the jobs that failed.
    """
    compiled = tempfile.TemporaryDirectory()  # of this sweep only: another machine's may not suit this one
    cache = {"JAX_COMPILATION_CACHE_DIR": compiled.name, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
    environment = ({"JAX_PLATFORMS": platform} if platform else {}) | cache | os.environ
    board = Board(waiting, folder)
    queue, free, failed = list(waiting), list(where), []
    running: list[tuple[Job | Comparison, Place, subprocess.Popen[bytes]]] = []
    try:
        while queue or running:
            while queue and free and not (running and isinstance(queue[0], Comparison)):
                job, place = queue.pop(0), free.pop(0)
                command = [
                    sys.executable,
                    "-m",
                    "bam_jax.sweep",
                    *given,
                    f"--runs={folder}",
                    f"--only={job.name}",
                    f"--parent={os.getpid()}",
                ]
                command += [] if place.core is None or isinstance(job, Comparison) else [f"--core={place.core}"]
                alone = {**environment, **place.environment}
                with _log(job, folder).open("ab") as file:
                    process = subprocess.Popen(command, env=alone, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
                running.append((job, place, process))
            time.sleep(POLL)
            for job, place, process in [each for each in running if each[2].poll() is not None]:
                running.remove((job, place, process))
                free.append(place)
                if process.returncode:
                    failed.append(job)
                board.ended(job, _ending(job, folder, process.returncode))
            board.show([job for job, _, _ in running])
    finally:
        for _, _, process in running:
            process.terminate()
        for _, _, process in running:  # all of them save at a time, and Ctrl-C has come to them as well
            process.wait()
        compiled.cleanup()
    board.close(len(failed))
    return failed


def _log(job: Job | Comparison, folder: Path) -> Path:
    return folder / "logs" / f"{job.name}.log"


def _ending(job: Job | Comparison, folder: Path, status: int) -> str:
    if status == 0:
        return "done"
    lines = [line for line in _log(job, folder).read_text(errors="replace").splitlines() if line.strip()]
    return f"FAILED: {lines[-1] if lines else 'it said nothing'} (exit status {status}; {_log(job, folder)})"


def _end_with(parent: int) -> None:
    """Ends this process when the sweep that started it has ended, even by SIGKILL."""

    def watch():
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
    chips = ", ".join(budget.CHIPS)
    parser.add_argument("--chip", help=f"of --dry-run: {chips} (default: cpu for what is meant for one, else h100)")
    parser.add_argument("--utilisation", type=float, default=budget.UTILISATION, help="share of the chip's peak (0.4)")
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
            _end_with(given.parent)
        work(todo[names.index(given.only)], folder)
        return 0
    if given.jobs is not None and given.jobs < 1:
        raise UserError(f"--jobs={given.jobs} must be 1 or more")
    if given.dry_run:
        chip = given.chip or ("cpu" if platform == "cpu" else "h100")
        title = plans[0].title if len(plans) == 1 else f"{len(plans)} experiments"
        print(budget.table(title, rows, chip, given.utilisation))
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
        log.replace(folder / records.MANIFEST, json.dumps(described, indent=2) + "\n")
    prepare(steps)
    found = places(os.environ["JAX_PLATFORMS"] if "JAX_PLATFORMS" in os.environ else platform)
    count = given.jobs or len(found)
    failed = run(todo, named, folder, [found[k % len(found)] for k in range(count)], platform)
    if failed:
        print(f"{len(failed)} of {len(todo)} rows failed: {', '.join(job.name for job in failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    errors.run(main)
