"""The display of a running sweep: a line for each running job and one for all of them."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bam_jax.experiments.jobs import Job
from bam_jax.experiments.speed_jobs import Comparison

QUIET = 60.0
"""Seconds between two lines where stderr is no terminal."""


class Board:
    """Lines redrawn in place on a terminal; elsewhere one line a minute, and one when a job ends.

    Args:
        jobs: all of them.
        folder: of the runs, whose files show how far the jobs are.
    """

    def __init__(self, jobs: Sequence[Job | Comparison], folder: Path):
        self.jobs, self.folder = jobs, folder
        self.start = self.spoken = time.monotonic()
        self.done = self.drawn = 0
        self.spent = {job.name: self._spent(job) for job in jobs}
        self.first = (0.0, sum(self.spent.values()))  # time and cost of the first progress, see `_estimate`
        print(f"{len(jobs)} rows to train and evaluate; their output: {folder / 'logs'}", file=sys.stderr)

    def show(self, running: Sequence[Job | Comparison]) -> None:
        """Say how far the running jobs, and all of them, are."""
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if running and (terminal or now - self.spoken > QUIET):
            self.spent |= {job.name: self._spent(job) for job in running}
            total = f"{self.done} of {len(self.jobs)} rows after {_clock(now - self.start)}{self._estimate(now)}"
            self._draw([*(f"  {job.name:<28} {job.status(self.folder)}" for job in running), total], terminal)
            self.spoken = now

    def ended(self, job: Job | Comparison, said: str) -> None:
        """Say how a job ended, in a line that stays."""
        self.done += 1
        self.spent[job.name] = job.cost()  # what failed is over, too
        self._draw([], sys.stderr.isatty())
        print(f"[{self.done}/{len(self.jobs)} after {self._elapsed()}] {job.name}: {said}", file=sys.stderr)

    def close(self, failed: int) -> None:
        """Say how long all of it took."""
        rows = f"{self.done} rows" if not failed else f"{self.done} rows, of which {failed} failed,"
        print(f"{rows} in {self._elapsed()}", file=sys.stderr)

    def _estimate(self, now: float) -> str:
        """The time left by the progress since the first, before which the first rows started and compiled."""
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

    def _spent(self, job: Job | Comparison) -> float:
        return min(job.cost(), job.spent(self.folder))

    def _draw(self, lines: Sequence[str], again: bool) -> None:
        """Print lines, in the place of those before if they are to be redrawn."""
        up = "\x1b[F\x1b[2K" * self.drawn
        print(up + "".join(f"{line[:100]}\n" for line in lines), end="", file=sys.stderr, flush=True)
        self.drawn = len(lines) if again else 0


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
