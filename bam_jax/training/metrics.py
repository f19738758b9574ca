"""The metrics of a run: read from the device after every step, shown, and kept in metrics.jsonl."""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, NotRequired, TypedDict

import jax

from bam_jax.config import Config
from bam_jax.parallel import processes
from bam_jax.system import console, files, jsonl, typed_json
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Finite, Natural, Seconds, Share
from bam_jax.training import loggers, optimizer
from bam_jax.training.run_folder import CHECKPOINTS, DIVERGED, METRICS, latest_checkpoint


class StepMetrics(TypedDict):
    """A line of training: the mean loss in nats; the gradient's norm before clipping; the learning rate.

    The loss is the weighted loss per token, or that of a query among the candidates of its batch. `accuracy` is the share of
    queries whose own positive is the nearest candidate. `seconds` is the training time so far, `tokens_per_second` the speed
    since the previous line, and `mfu` its share of the devices' peak, if that is known. Only the fields that every version has
    written are required.
    """

    step: Natural
    loss: Finite
    seconds: Seconds
    gradient_norm: NotRequired[Finite]
    accuracy: NotRequired[Share]
    held_out_loss: NotRequired[Finite]
    rate: NotRequired[Finite]
    tokens_per_second: NotRequired[Seconds]
    mfu: NotRequired[Share]


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, or of its copy in the newest checkpoint if the file has lost its end since."""
    records, step = _read(run / METRICS), latest_checkpoint(run)
    if step <= (records[-1]["step"] if records else 0):
        return records
    return max(records, _read(run / CHECKPOINTS / str(step) / METRICS), key=len)


def _read(path: Path) -> list[dict[str, Any]]:
    return [
        typed_json.check(record, StepMetrics, f"{path}, line {number}", "remove that line")
        for number, record in enumerate(jsonl.read(path), start=1)
    ]


class Meter:
    """Takes the metrics of every step, stops at numbers that are not finite, and writes and shows the others.

    Reading a step's metrics waits for the device. They are read one step late, when the next step has been dispatched, so that
    the device works on that one meanwhile and never waits for Python.

    Args:
        seconds: training time before this start.
        full_speed: tokens per second at the devices' peak; None: unknown.
    """

    def __init__(
        self,
        config: Config,
        run: Path,
        writers: Sequence[loggers.Logger],
        bar: console.Bar,
        seconds: float,
        full_speed: float | None,
    ):
        self._config, self._run, self._writers, self._bar = config, run, writers, bar
        self._rate = optimizer.schedule(config.optimizer, config.steps)
        self._names = "loss", "gradient_norm", *(["accuracy"] if config.data.contrastive else [])  # of a step's metrics
        self._tokens = config.sequences * config.context
        self._full_speed = full_speed
        self._start = time.perf_counter() - seconds
        self._read_at: float | None = None
        self._durations: list[float] = []
        self._late: tuple[int, jax.Array] | None = None
        self._mark: tuple[int, float] | None = None  # step and time of the previous line
        self._speed = 0.0
        self._held_out: float | None = None
        self._said = ""

    def take(self, step: int, metrics: jax.Array) -> None:
        """Take the metrics of a step that was dispatched, and read those of the step before."""
        self.flush()
        self._late = step, metrics

    def measure(self, held_out: Callable[[], float]) -> None:
        """Measure the held-out loss after the last step taken; it is written in that step's line."""
        start = time.perf_counter()
        self._held_out = held_out()
        self._said = f", held out {self._held_out:.4f}"
        spent = time.perf_counter() - start
        self._start += spent
        if self._mark is not None:
            self._mark = self._mark[0], self._mark[1] + spent
        self.flush()

    def flush(self) -> None:
        """Read the metrics of the last step taken."""
        if self._late is not None:
            (step, metrics), self._late = self._late, None
            self._read(step, dict(zip(self._names, metrics.tolist(), strict=True)))

    def _read(self, step: int, values: dict[str, float]) -> None:
        loss, norm = values["loss"], values["gradient_norm"]
        if not math.isfinite(loss + norm):
            self.diverge(f"step {step}: the loss is {loss}, the norm of its gradient {norm}")
        held_out, self._held_out = self._held_out, None
        if held_out is not None and not math.isfinite(held_out):
            self.diverge(f"step {step}: the loss on held-out text is {held_out}")
        now = time.perf_counter()
        if self._read_at is not None:
            self._durations.append(now - self._read_at)
        self._read_at = now
        if self._mark is None:  # the first step includes compilation, so its time is not used
            self._mark = step, now
        before, then = self._mark
        speed = (step - before) * self._tokens / (now - then) if step > before else 0.0
        shown = self._speed or speed
        rate = f", {shown:,.0f} tokens/s" if shown else ""
        if shown and self._full_speed is not None:
            rate += f", MFU {shown / self._full_speed:.1%}"
        self._bar.set_postfix_str(f"loss {loss:.4f}{self._said}{rate}", refresh=False)
        self._bar.update()
        if step % self._config.log_every == 0 or step == self._config.steps or held_out is not None:
            record = {
                "step": step,
                **values,
                **({} if held_out is None else {"held_out_loss": held_out}),
                "rate": float(self._rate(step - 1)),
                "tokens": step * self._tokens,
                "seconds": round(now - self._start, 3),
                "tokens_per_second": round(speed),
                **({} if self._full_speed is None else {"mfu": round(speed / self._full_speed, 4)}),
            }
            for writer in self._writers:
                writer.write(record)
            self._mark, self._speed = (step, now), speed

    @property
    def productive(self) -> float:
        """Seconds that all steps would have taken without pauses, each as long as the median step."""
        return (len(self._durations) + 1) * statistics.median(self._durations) if self._durations else 0.0

    def diverge(self, what: str) -> NoReturn:
        """End a training whose numbers are not finite."""
        if processes.is_first():
            files.write_atomically(self._run / DIVERGED, f"{what}\n")
        remedy = "lower config.optimizer.rate, in another --workdir, or look at the data"
        raise UserError(f"{what}; {remedy} (the last checkpoint is from before)")


@contextlib.contextmanager
def metering(
    config: Config, run: Path, *, done: int, progress: bool | None = None, full_speed: float | None = None
) -> Iterator[Meter]:
    """A `Meter` with its files and its bar, which are closed at the end; only process 0 writes and shows."""
    first, writers, seconds = processes.is_first(), list[loggers.Logger](), 0.0
    with contextlib.ExitStack() as stack:
        if first:
            before = read_metrics(run)
            seconds = before[-1]["seconds"] if before else 0.0
            writers.append(stack.enter_context(jsonl.Writer(run / METRICS)))
        if first and config.logger:
            writers.append(stack.enter_context(contextlib.closing(loggers.LOGGERS[config.logger](config, run))))
        show = progress if first else False
        bar = stack.enter_context(console.progress(config.steps, done=done, label=run.name, show=show))
        yield Meter(config, run, writers, bar, seconds, full_speed)
