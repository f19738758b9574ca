"""The processes of a sweep: preparations one after another, then as many jobs at a time as there are slots."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from bam_jax.experiments.board import Board
from bam_jax.experiments.experiment import Fetch, Preparation
from bam_jax.experiments.jobs import Job
from bam_jax.experiments.recording import Recorder
from bam_jax.experiments.slots import Slot
from bam_jax.experiments.speed_jobs import Comparison
from bam_jax.system import regular
from bam_jax.system.errors import Stopped, UserError
from bam_jax.system.parent import end_with_parent

POLL = 0.5
"""Seconds between two looks at the running jobs."""


def prepare(preparations: Sequence[Preparation | Fetch]) -> None:
    """Do an experiment's preparations, each in a process of its own.

    Args:
        preparations: in their order.

    Raises:
        UserError: one failed, whose own message is on stderr; or files are missing that the user fetches.
    """
    for each in preparations:  # before what takes hours
        if isinstance(each, Fetch) and not Path(each.makes).exists():
            raise UserError(f"{each.makes} is missing; first: {each.how}")
    for each in preparations:
        if isinstance(each, Fetch) or (each.makes and Path(each.makes).exists()):
            continue
        if subprocess.run([sys.executable, "-m", each.module, *each.arguments]).returncode:
            raise UserError(f"this failed: {each.command()}; mend it and start again")


def run(
    waiting: Sequence[Job | Comparison], named: Sequence[str], folder: Path, where: Sequence[Slot], platform: str
) -> list[Job | Comparison]:
    """Work through the jobs, each in a process of its own at a place of its own; a comparison has the machine to itself.

    Args:
        waiting: the jobs in their order, comparisons last.
        named: the arguments that name the experiments, which every process loads again.
        folder: where the runs stand; logs go to its `logs`.
        where: as many jobs run at a time.
        platform: JAX_PLATFORMS, where the environment does not set it.

    Returns:
        The jobs that failed.

    Raises:
        errors.Stopped: by SIGTERM, after the rows that were trained have saved.
    """
    compiled = tempfile.TemporaryDirectory()  # of this sweep only: another machine's may not suit this one
    cache = {"JAX_COMPILATION_CACHE_DIR": compiled.name, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
    environment = ({"JAX_PLATFORMS": platform} if platform else {}) | cache | os.environ
    usual = signal.signal(signal.SIGTERM, _stop)
    board = Board(waiting, folder)
    queue, free, failed = list(waiting), list(where), []
    running: list[tuple[Job | Comparison, Slot, subprocess.Popen[bytes]]] = []
    try:
        while queue or running:
            while queue and free and not (running and isinstance(queue[0], Comparison)):
                job, place = queue.pop(0), free.pop(0)
                running.append((job, place, _start(job, place, named, folder, environment)))
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
        signal.signal(signal.SIGTERM, usual)
    board.close(len(failed))
    return failed


def _stop(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough; the rows are told to save
    raise Stopped("the sweep was stopped by SIGTERM, after its rows had saved; the same command goes on")


def _start(
    job: Job | Comparison, place: Slot, named: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts the process of a job, which loads the experiments again and finds the job by its name, or that of a benchmark."""
    if isinstance(job, Comparison):
        command = job.command(folder)
    else:
        command = ["bam_jax.sweep", *named, f"--runs={folder}", f"--only={job.name}"]
        command += [] if place.core is None else [f"--core={place.core}"]
    command = [sys.executable, "-m", *command, f"--parent={os.getpid()}"]
    alone = {**environment, **place.environment}
    with open(_log(job, folder), "ab", opener=regular.opener) as file:
        return subprocess.Popen(command, env=alone, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def _log(job: Job | Comparison, folder: Path) -> Path:
    return folder / "logs" / f"{job.name}.log"


def _ending(job: Job | Comparison, folder: Path, status: int) -> str:
    if status == 0:
        return "done"
    with open(_log(job, folder), "rb", opener=regular.opener) as file:
        file.seek(-min(2**16, file.seek(0, os.SEEK_END)), os.SEEK_END)  # a log may be long
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return f"FAILED: {lines[-1] if lines else 'it said nothing'} (exit status {status}; {_log(job, folder)})"


def work_alone(
    job: Job, folder: Path, recorder: Recorder, *, core: int | None = None, parent: int | None = None
) -> None:
    """Do one job in this process.

    Args:
        job: of a sweep.
        folder: of the runs.
        recorder: of the sweep.
        core: that this process is pinned to, where the system can.
        parent: the process that started this one and with which it ends; None: none of a sweep.

    Raises:
        UserError, errors.Stopped: see `Recorder.work`.
    """
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    if parent is not None:
        end_with_parent(parent)
    recorder.work(job, folder)
