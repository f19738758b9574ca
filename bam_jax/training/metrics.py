"""The lines of a run's metrics.jsonl."""

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bam_jax.system import log, strict_json
from bam_jax.system.fields import Finite, Natural, Seconds

METRICS = "metrics.jsonl"


class Step(TypedDict):
    """A line of training."""

    step: Natural
    loss: Finite
    seconds: Seconds
    gradient_norm: NotRequired[Finite]
    rate: NotRequired[Finite]
    tokens_per_second: NotRequired[Seconds]


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl.

    Args:
        run: its folder; one without metrics has no lines.

    Raises:
        UserError: a line is not JSON, or lacks what each has.
    """
    path = run / METRICS
    return [
        strict_json.check(record, Step, f"{path}, line {number}", "remove that line")
        for number, record in enumerate(log.read(path), start=1)
    ]
