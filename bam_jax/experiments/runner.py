"""The processes of a sweep: first preparations, one after another, then as many jobs at a time as there are slots."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from bam_jax.experiments.benchmark import Benchmark
from bam_jax.experiments.experiment import Fetch, Preparation
from bam_jax.experiments.jobs import Job
from bam_jax.system import regular
from bam_jax.system.errors import Stopped, UserError

POLL = 0.5  # seconds between checks of the running jobs
QUIET = 60.0  # seconds between progress lines if stderr is not a terminal

_ONE_CHIP = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


@dataclasses.dataclass(frozen=True)
class Slot:
    """A core or an accelerator for one process at a time."""

    core: int | None = None  # the core to which the process is pinned
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)  # hides the other accelerators


def find_slots(platform: str, devices: Path = Path("/dev")) -> list[Slot]:
    """All slots of this machine, found without initialising an accelerator.

    >>> [slot.core for slot in find_slots("", Path("/nowhere"))]
    [None]
    """
    if platform == "cpu":
        can_pin = hasattr(os, "sched_getaffinity")
        return [Slot(core) for core in sorted(os.sched_getaffinity(0) if can_pin else range(os.cpu_count() or 1))]
    gpus = [path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*")]
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        gpus = [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    if gpus:
        return [Slot(environment={"CUDA_VISIBLE_DEVICES": name}) for name in sorted(gpus, key=lambda x: (len(x), x))]
    chips = [*devices.glob("accel[0-9]*"), *devices.glob("vfio/[0-9]*")]
    if chips:
        return [Slot(environment=_ONE_CHIP | {"TPU_VISIBLE_CHIPS": f"{k}"}) for k in range(len(chips))]
    return [Slot()]


def share_slots(slots: Sequence[Slot], count: int) -> list[Slot]:
    """Slots for a number of processes, which share accelerators in turn.

    >>> [slot.core for slot in share_slots([Slot(0), Slot(1)], 3)]
    [None, None, None]
    """
    if count > len(slots):  # two processes pinned to one core would halve each other while another core may be idle
        slots = [dataclasses.replace(slot, core=None) for slot in slots]
    return [slots[number % len(slots)] for number in range(count)]


def prepare(preparations: Sequence[Preparation | Fetch]) -> None:
    """Run an experiment's preparations in order, each in its own process."""
    for each in preparations:  # check first, before work that takes hours
        if isinstance(each, Fetch) and not Path(each.makes).exists():
            raise UserError(f"{each.makes} is missing; first: {each.how}")
    for each in preparations:
        if isinstance(each, Fetch) or (each.makes and Path(each.makes).exists()):
            continue
        if subprocess.run([sys.executable, "-m", each.module, *each.arguments]).returncode:
            raise UserError(f"this failed: {each.command()}; mend it and start again")


def run(
    jobs: Sequence[Job | Benchmark], named: Sequence[str], folder: Path, slots: Sequence[Slot], platform: str
) -> list[Job | Benchmark]:
    """Run the jobs in order, each in its own process and slot, and benchmarks one at a time; returns the failed ones."""
    board = Board(jobs, folder)
    waiting, free, failed = list(jobs), list(slots), []
    running: list[tuple[Job | Benchmark, Slot, subprocess.Popen[bytes]]] = []
    with _raising_on_sigterm():
        environment = ({"JAX_PLATFORMS": platform} if platform else {}) | os.environ
        try:
            while waiting or running:
                while waiting and free and not (running and isinstance(waiting[0], Benchmark)):
                    job, slot = waiting.pop(0), free.pop(0)
                    running.append((job, slot, _start(job, slot, named, folder, environment)))
                time.sleep(POLL)
                for job, slot, process in [each for each in running if each[2].poll() is not None]:
                    running.remove((job, slot, process))
                    free.append(slot)
                    if process.returncode:
                        failed.append(job)
                    board.ended(job, _ending(_log(job, folder), process.returncode))
                board.show([job for job, _, _ in running])
        finally:
            for _, _, process in running:
                process.terminate()
            for _, _, process in running:  # they save in parallel; Ctrl-C has also reached them
                process.wait()
    board.close(len(failed))
    return failed


@contextlib.contextmanager
def _raising_on_sigterm() -> Iterator[None]:
    def stop(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ignore further signals while the running jobs save
        raise Stopped("the sweep was stopped by SIGTERM, after its rows had saved; the same command goes on")

    usual = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


def _start(
    job: Job | Benchmark, slot: Slot, named: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    if isinstance(job, Benchmark):
        command = job.command(folder)
    else:
        command = ["bam_jax.sweep", *named, f"--runs={folder}", f"--only={job.name}"]
        command += [] if slot.core is None else [f"--core={slot.core}"]
    command = [sys.executable, "-m", *command, f"--parent={os.getpid()}"]
    own = {**environment, **slot.environment}
    with open(_log(job, folder), "ab", opener=regular.opener) as file:
        return subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def _log(job: Job | Benchmark, folder: Path) -> Path:
    return folder / "logs" / f"{job.name}.log"


def _ending(log: Path, status: int) -> str:
    if status == 0:
        return "done"
    with open(log, "rb", opener=regular.opener) as file:
        file.seek(-min(2**16, file.seek(0, os.SEEK_END)), os.SEEK_END)  # a log may be long
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return f"FAILED: {lines[-1] if lines else 'it said nothing'} (exit status {status}; {log})"


class Board:
    """Progress on stderr: lines redrawn in place on a terminal, otherwise one line per minute, and one when a job ends."""

    def __init__(self, jobs: Sequence[Job | Benchmark], folder: Path):
        self.jobs, self.folder = jobs, folder
        self.start = self.shown = time.monotonic()
        self.done = self.drawn = 0
        self.spent = {job.name: self._spent(job) for job in jobs}
        # The remaining time is estimated from the first progress on, because the first jobs start and compile before it.
        self.first = (0.0, sum(self.spent.values()))
        print(f"{len(jobs)} rows to train and evaluate; their output: {folder / 'logs'}", file=sys.stderr)

    def show(self, running: Sequence[Job | Benchmark]) -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if running and (terminal or now - self.shown > QUIET):
            self.spent |= {job.name: self._spent(job) for job in running}
            total = f"{self.done} of {len(self.jobs)} rows after {_clock(now - self.start)}{self._time_left(now)}"
            self._draw([*(f"  {job.name:<28} {job.status(self.folder)}" for job in running), total], terminal)
            self.shown = now

    def ended(self, job: Job | Benchmark, how: str) -> None:
        self.done += 1
        self.spent[job.name] = job.cost()  # a failed job also has no work left
        self._draw([], sys.stderr.isatty())
        print(f"[{self.done}/{len(self.jobs)} after {self._elapsed()}] {job.name}: {how}", file=sys.stderr)

    def close(self, failed: int) -> None:
        rows = f"{self.done} rows" if not failed else f"{self.done} rows, of which {failed} failed,"
        print(f"{rows} in {self._elapsed()}", file=sys.stderr)

    def _time_left(self, now: float) -> str:
        spent = sum(self.spent.values())
        since, before = self.first
        if not since:
            self.first = (now if spent > before else 0.0, spent)
            return ""
        if spent <= before:
            return ""
        left = sum(job.cost() for job in self.jobs) - spent
        return f", about {_clock(left * (now - since) / (spent - before))} left"

    def _elapsed(self) -> str:
        return _clock(time.monotonic() - self.start)

    def _spent(self, job: Job | Benchmark) -> float:
        return min(job.cost(), job.spent(self.folder))

    def _draw(self, lines: Sequence[str], redrawn: bool) -> None:
        up = "\x1b[F\x1b[2K" * self.drawn
        print(up + "".join(f"{line[:100]}\n" for line in lines), end="", file=sys.stderr, flush=True)
        self.drawn = len(lines) if redrawn else 0


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
