"""An experiment's rows trained and evaluated, one process a core or accelerator; again, it does what is missing.

python -m bam_jax.sweep experiments/quickstart.py --runs=runs/quickstart [--source=PATH] [--jobs=2] [--only=RUN]
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --print      # a command for each row
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --dry-run --chip=h100
"""

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

from bam_jax import budget, errors, experiment, log
from bam_jax.board import Board
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
            }
            for job in sorted(jobs(experiment), key=lambda job: (order.index(job.row.label), job.seed))
        ],
    }


def work(job: Job, folder: Path) -> None:
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


def run(waiting: Sequence[Job], given: Sequence[str], folder: Path, where: Sequence[Place], platform: str) -> list[Job]:
    """Work through the jobs, each in a process of its own at a place of its own.

    Args:
        waiting: the jobs in their order.
        given: the arguments that name the experiment, which every process loads again.
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
    running: list[tuple[Job, Place, subprocess.Popen[bytes]]] = []
    try:
        while queue or running:
            while queue and free:
                job, place = queue.pop(0), free.pop(0)
                command = [
                    sys.executable,
                    "-m",
                    "bam_jax.sweep",
                    *given,
                    f"--runs={folder}",
                    f"--only={job.name}",
                ]
                command += [] if place.core is None else [f"--core={place.core}"]
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
            process.wait()
        compiled.cleanup()
    return failed


def _log(job: Job, folder: Path) -> Path:
    return folder / "logs" / f"{job.name}.log"


def _ending(job: Job, folder: Path, status: int) -> str:
    if status == 0:
        return "done"
    lines = [line for line in _log(job, folder).read_text(errors="replace").splitlines() if line.strip()]
    return f"FAILED: {lines[-1] if lines else 'it said nothing'} (exit status {status}; {_log(job, folder)})"


def _pin(core: int) -> None:
    """Keeps this process, and so its XLA, to one core where the system can, and ends it with its sweep."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(argv: Sequence[str]) -> int:
    """Runs an experiment; 1 when a row failed.

    Raises:
        UserError: bad arguments, experiment or configuration.
    """
    parser = errors.Parser(prog="python -m bam_jax.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("experiment", help="a Python file with get_experiment()")
    parser.add_argument("--runs", type=Path, help="folder of the runs (default: runs/NAME; runs for a paper's tables)")
    parser.add_argument("--scale", help="toy (the default) or paper, for an experiment that has both")
    parser.add_argument("--source", help="where the corpus is, for an experiment about one")
    parser.add_argument("--jobs", type=int, help="rows at a time (default: one a core, or one an accelerator)")
    parser.add_argument("--only", metavar="RUN", help="only this run, in this process, such as cable-seed0")
    parser.add_argument("--core", type=int, help="pin the process of --only to this core")
    parser.add_argument("--print", action="store_true", help="only print a command for each row, to be run anywhere")
    parser.add_argument("--dry-run", action="store_true", help="only say runs, tokens, operations and hours")
    chips = ", ".join(budget.CHIPS)
    parser.add_argument("--chip", help=f"of --dry-run: {chips} (default: cpu for what is meant for one, else h100)")
    parser.add_argument("--utilisation", type=float, default=budget.UTILISATION, help="share of the chip's peak (0.4)")
    given = parser.parse_args(argv)
    folder = given.runs or Path("runs") / Path(given.experiment).stem
    plan = experiment.load(given.experiment, source=given.source, runs=folder, scale=given.scale)
    folder = given.runs or (Path("runs") if plan.shared else folder)
    options = {"source": given.source, "scale": given.scale}
    named = [given.experiment, *(f"--{name}={value}" for name, value in options.items() if value)]
    todo = jobs(plan)
    names = [job.name for job in todo]
    if given.only is not None:
        if given.only not in names:
            raise UserError(f"no run {given.only}; {nearest(given.only, names)}")
        if given.core is not None:
            _pin(given.core)
        work(todo[names.index(given.only)], folder)
        return 0
    if given.jobs is not None and given.jobs < 1:
        raise UserError(f"--jobs={given.jobs} must be 1 or more")
    if given.dry_run:
        chip = given.chip or ("cpu" if plan.platform == "cpu" else "h100")
        print(budget.table(plan, todo, chip, given.utilisation))
        return 0
    if given.print:
        for step in plan.steps:
            print(f"first: {shlex.join(['python', '-m', step.module, *step.arguments])}", file=sys.stderr)
        for name in names:
            print(shlex.join(["python", "-m", "bam_jax.sweep", *named, f"--runs={folder}", f"--only={name}"]))
        return 0
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    if not plan.shared:  # a report is about a folder of its own
        described = manifest(plan, named, folder)
        log.replace(folder / "experiment.json", json.dumps(described, indent=2) + "\n")
    prepare(plan.steps)
    found = places(os.environ["JAX_PLATFORMS"] if "JAX_PLATFORMS" in os.environ else plan.platform)
    count = given.jobs or len(found)
    failed = run(todo, named, folder, [found[k % len(found)] for k in range(count)], plan.platform)
    if failed:
        print(f"{len(failed)} of {len(todo)} rows failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    errors.run(main)
