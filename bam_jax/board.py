"""What a sweep shows while it runs: a line for each running job and one for all of them."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bam_jax.jobs import Job

QUIET = 60.0
"""Seconds between two lines where stderr is no terminal."""


class Board:
    """Lines redrawn in place on a terminal; elsewhere one line a minute, and one when a job ends.

    Args:
        jobs: all of them.
        folder: of the runs, whose files show how far the jobs are.
    """

    def __init__(self, jobs: Sequence[Job], folder: Path):
        self.jobs, self.folder = jobs, folder
        self.start = self.spoken = time.monotonic()
        self.done = self.drawn = 0
        self.before = self._spent()
        print(f"{len(jobs)} rows to train and evaluate; their output: {folder / 'logs'}", file=sys.stderr)

    def show(self, running: Sequence[Job]) -> None:
        """Say how far the running jobs, and all of them, are."""
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if running and (terminal or now - self.spoken > QUIET):
            elapsed, spent = now - self.start, self._spent()
            left = sum(job.cost() for job in self.jobs) - spent
            total = f"{self.done} of {len(self.jobs)} rows after {_clock(elapsed)}"
            if spent > self.before:
                total += f", about {_clock(left * elapsed / (spent - self.before))} left"
            self._draw([*(f"  {job.name:<28} {job.status(self.folder)}" for job in running), total], terminal)
            self.spoken = now

    def ended(self, job: Job, said: str) -> None:
        """Say how a job ended, in a line that stays."""
        self.done += 1
        clock = _clock(time.monotonic() - self.start)
        self._draw([], sys.stderr.isatty())
        print(f"[{self.done}/{len(self.jobs)} after {clock}] {job.name}: {said}", file=sys.stderr)

    def _spent(self) -> float:
        return sum(min(job.cost(), job.spent(self.folder)) for job in self.jobs)

    def _draw(self, lines: Sequence[str], again: bool) -> None:
        """Print lines, in the place of those before if they are to be redrawn."""
        up = "\x1b[F\x1b[2K" * self.drawn
        print(up + "".join(f"{line[:100]}\n" for line in lines), end="", file=sys.stderr, flush=True)
        self.drawn = len(lines) if again else 0


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
