"""Experiments' rows trained and evaluated, one process a core or accelerator; again, it does what is missing.

python -m bam_jax.sweep experiments/quickstart.py --runs=runs/quickstart [--source=PATH] [--jobs=2] [--only=RUN]
python -m bam_jax.sweep experiments/bam_*.py experiments/cable_*.py        # one queue: equal runs are trained once
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --print      # a command for each row
python -m bam_jax.sweep experiments/bam_table7_extension.py --scale=paper --dry-run --chip=h100
"""

import dataclasses
import importlib
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

from bam_jax.experiments.board import Board
from bam_jax.experiments.experiment import Experiment, Step
from bam_jax.experiments.jobs import Job, jobs
from bam_jax.experiments.slots import Place
from bam_jax.experiments.speed_jobs import Comparison
from bam_jax.system.errors import UserError

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


def end_with(parent: int) -> None:
    """Ends this process when the sweep that started it has ended, even by SIGKILL."""

    def watch():
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
