"""A real training in small, by the train command: its first losses beside a CPU's, its rate, a kill and a resume."""

import contextlib
import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax import config as configs
from bam_jax.training.metrics import read_metrics
from bam_jax.training.run_folder import latest_step
from benchmarks.chip_peaks import Ceilings
from benchmarks.chip_times import operations_per_token

LOSS_TOLERANCE = 1e-2
"""The largest difference of two losses of one step, as a share: products in bfloat16 beside some in float32.

Losses of an untrained model are near the logarithm of its vocabulary, and rounding moves them by thousandths."""

POLL = 0.5
"""Seconds between two looks at a training's metrics."""

PATIENCE = 600.0
"""Seconds after which a training that does not get where it should is ended."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A training that is tried.

    Args:
        file: the configuration.
        changes: of it.
        folder: in which its runs lie.
        platform: on which it trains.
        devices: that share its steps.
        first_steps: whose losses are compared with a CPU's.
        first_batch: rows of these steps: a CPU takes a second for every few thousand tokens.
        seconds: that it trains before it is killed.
        more_steps: that it trains after its resume.
    """

    file: Path
    changes: Mapping[str, Any]
    folder: Path
    platform: str
    devices: int
    first_steps: int
    first_batch: int
    seconds: float
    more_steps: int

    def compare_first_steps(self) -> dict[str, Any]:
        """Train the first steps here and on the CPU, and compare their losses."""
        if self.platform == "cpu":
            return {"status": "refused", "reason": "this is the CPU itself"}
        changes = {**self.changes, "batch": self.first_batch, "optimizer.accumulate": 1, "steps": self.first_steps}
        losses = {}
        environments: dict[str, dict[str, str]] = {"here": {}, "cpu": {"JAX_PLATFORMS": "cpu"}}
        for name, environment in environments.items():
            run = self.folder / f"first_{name}"
            shutil.rmtree(run, ignore_errors=True)
            with self._training(run, changes, environment) as process:
                if process.wait() != 0:
                    return _failure(f"training on {name} ended with status {process.returncode}", run)
            losses[name] = [record["loss"] for record in read_metrics(run)]
        largest = max(abs(a - b) / b for a, b in zip(losses["here"], losses["cpu"], strict=True))
        passed = largest <= LOSS_TOLERANCE
        outcome = {"status": "passed" if passed else "failed", "losses": losses, "largest_difference": largest}
        if not passed:
            outcome["reason"] = f"a loss differs from the CPU's by {largest:.2%}, more than {LOSS_TOLERANCE:.0%}"
        return outcome | {"summary": f"{self.first_steps} losses within {largest:.2g} of the CPU's"}

    def kill_and_resume(self, ceilings: Ceilings) -> dict[str, Any]:
        """Train for some time, kill the training, start it again, and compare the steps that it repeats.

        Args:
            ceilings: of the chip.
        """
        run = self.folder / "killed"
        shutil.rmtree(run, ignore_errors=True)
        steps = 1_000_000  # more than there is time for
        changes = {**self.changes, "steps": steps}
        began = time.monotonic()
        with self._training(run, changes, {}) as process:
            enough = lambda: time.monotonic() - began >= self.seconds and latest_step(run) > 0
            if not _wait(process, enough):
                return _failure(f"the training ended with status {process.poll()} before it was killed", run)
            process.kill()
            process.wait()
        before, saved = _losses(run), latest_step(run)
        with self._training(run, changes, {}) as process:
            if not _wait(process, lambda: max(_losses(run), default=0) >= max(before) + self.more_steps):
                return _failure(f"the training ended with status {process.poll()} when it was started again", run)
        return self._judge(run, before, saved, ceilings)

    def _judge(self, run: Path, before: dict[int, float], saved: int, ceilings: Ceilings) -> dict[str, Any]:
        """The outcome: losses of the steps before the kill, and of the same steps after it."""
        after, config = _losses(run), configs.load(self.file, self.changes)
        repeated = [step for step in before if step > saved]
        largest = max((abs(after[step] - before[step]) / before[step] for step in before), default=0.0)
        rates = [record["tokens_per_second"] for record in read_metrics(run) if record["tokens_per_second"]]
        rate = statistics.median(rates)
        share = rate * operations_per_token(config) / (self.devices * ceilings.operations)
        outcome = {
            "status": "passed" if largest <= LOSS_TOLERANCE else "failed",
            "killed_at": max(before),
            "resumed_from": saved,
            "ended_at": max(after),
            "repeated_steps": len(repeated),
            "largest_difference": largest,
            # A GPU adds up the parts of an embedding's gradient in the order in which its threads end.
            "same_bits": all(after[step] == before[step] for step in repeated),
            "tokens_per_second": rate,
            "utilisation": share,
            "losses": [[step, after[step]] for step in _some(sorted(after))],
            "summary": f"killed at step {max(before)}, resumed from {saved}, {rate:,.0f} tokens/s, {share:.1%} of the peak",
        }
        if largest > LOSS_TOLERANCE:
            outcome["reason"] = f"a loss after the resume differs from that before the kill by {largest:.2%}"
        return outcome

    @contextlib.contextmanager
    def _training(
        self, run: Path, changes: Mapping[str, Any], environment: Mapping[str, str]
    ) -> Iterator[subprocess.Popen]:
        """A training in a process of its own, which is killed where the block ends before it."""
        options = [f"--config={self.file}", *configs.arguments({"log_every": 1, **changes}), f"--workdir={run}"]
        run.parent.mkdir(parents=True, exist_ok=True)
        with run.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "bam_jax.train", *options, "--no-progress"],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen, enough: Callable[[], bool]) -> bool:
    """Wait until it is enough; False where the process ends before, or all patience is gone."""
    end = time.monotonic() + PATIENCE
    while not enough():
        if process.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(POLL)
    return True


def _losses(run: Path) -> dict[int, float]:
    """The loss of each step so far."""
    return {record["step"]: record["loss"] for record in read_metrics(run)}


def _some(steps: Sequence[int]) -> list[int]:
    """About ten steps, the first and the last among them."""
    return sorted({*steps[:: max(1, len(steps) // 10)], steps[-1]})


def _failure(reason: str, run: Path) -> dict[str, Any]:
    """The outcome of a training that ended by itself, with the last line that it said."""
    lines = run.with_suffix(".log").read_text(errors="replace").strip().splitlines()
    said = f": {lines[-1][:160]}" if lines else ""
    return {"status": "failed", "reason": f"{reason}{said}"}
