"""Where metrics are written besides metrics.jsonl. A new logger is a class here, a line in LOGGERS and a name in `config`."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.system import files, regular
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra


class Logger(Protocol):
    """A destination of the numbers in records, constructed from the run's configuration and folder."""

    def write(self, record: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """The numbers in a record, except its step.

    >>> numbers({"step": 3, "loss": 0.5, "name": "a"})
    {'loss': 0.5}
    """
    is_number = lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    return {name: value for name, value in record.items() if name != "step" and is_number(value)}


class TensorBoard:
    """Event files in the folder tensorboard of a run."""

    def __init__(self, config: Config, run: Path):
        regular.check_folder(run / "tensorboard")
        self._writer = _import("tensorboardX", "tensorboard").SummaryWriter(str(run / "tensorboard"))

    def write(self, record: dict[str, Any]) -> None:
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, whose own variables apply: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline and others.

    The id is stored in wandb/id in the run's folder, so a resumed run continues the same Weights & Biases run.
    """

    def __init__(self, config: Config, run: Path):
        wandb = _import("wandb", "wandb")
        kept = run / "wandb" / "id"
        if not (regular.check_folder(kept.parent) and kept.exists()):
            kept.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(kept, uuid.uuid4().hex[:12])
        where = {"project": os.environ.get("WANDB_PROJECT", "bam_jax"), "dir": str(run), "name": run.name}
        settings = wandb.Settings(console="off", silent=True)
        shown = configs.to_dict(config)
        # Offline, earlier parts of the run are unknown; synchronising joins the parts.
        resume = None if os.environ.get("WANDB_MODE") in ("offline", "disabled") else "allow"
        try:
            known = regular.read(kept).decode()
            self._run = wandb.init(**where, id=known, resume=resume, config=shown, settings=settings)
        except (wandb.Error, OSError) as error:
            remedy = "run `wandb login`, set WANDB_MODE=offline, or leave config.logger out"
            raise UserError(f"wandb does not start: {error}; {remedy}") from error
        self._run.define_metric("*", step_metric="step")  # a resumed run repeats the steps after its checkpoint

    def write(self, record: dict[str, Any]) -> None:
        self._run.log({"step": record["step"], **numbers(record)})

    def close(self) -> None:
        self._run.finish()


LOGGERS: dict[str, Callable[[Config, Path], Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def _import(package: str, logger: str) -> ModuleType:
    try:
        return import_extra(package, f"config.logger={logger}", logger)
    except UserError as error:
        raise UserError(f"{error}, or leave config.logger out") from error
