"""The interface of an evaluation: its options, records, cells, cost and figure."""

import dataclasses
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.evals import schema
from bam_jax.evals.plan import Plan, Trained
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, nearest

type Place = tuple[float | None, str]
"""The depth and the task of a cell; None and "" where it has none."""


def option(default: int | str | tuple[str, ...] | None, help: str) -> Any:
    """A field of an evaluation that is also an argument of the command; default None: the evaluation decides, or requires it."""
    return dataclasses.field(default=default, metadata={"help": help})


def prompt_seed(asked: int | None, config: Config) -> int:
    """The seed of the prompts: the training seed unless another is given, so that all methods of a seed share prompts."""
    return config.seed if asked is None else asked


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation of a trained run.

    To add a kind of evaluation, write a subclass in a file of its own and add it to `bam_jax.evals.registry`. Its options are
    fields made by `option`. Their types, from `bam_jax.system.fields`, restrict the values that a command or an experiment may
    give.

    Class attributes:
        name: the `eval` of its records.
        encoder: True if it evaluates encoders only, False if decoders only.
        sample_noun: the name of its samples, such as "prompts".
        record: the type of its lines in results.jsonl, a `schema.CellRecord` with a `value`.
        identity: the fields that identify a cell, besides those of every record.
        curve: the kind of its values by length; "" where no curve is drawn.
        figure: what a figure of its records shows besides the lengths: "depth" and "task" are the rows of a grid of fractions,
            "position" the windows in `windows`; "": there is no figure.
        unseen: True if its text must not have been trained on, so that only the run's own held-out text counts.
        grouped: True if one task may consist of several, some of which may have no samples.
        costly: True if reading the samples takes a significant time compared with training.

    Args:
        lengths: tokens of a sample.
        overrides: changes of the configuration at evaluation, values by dotted names.
        label: the curve's name; "" means the row's.

    Raises:
        UserError: an option is out of its bounds.
    """

    name: ClassVar[str] = ""
    encoder: ClassVar[bool] = False
    sample_noun: ClassVar[str] = "samples"
    record: ClassVar[Any] = schema.OtherRecord
    identity: ClassVar[tuple[str, ...]] = ()
    curve: ClassVar[Literal["", "accuracy", "perplexity"]] = ""
    figure: ClassVar[Literal["", "depth", "task", "position"]] = ""
    unseen: ClassVar[bool] = False
    grouped: ClassVar[bool] = False
    costly: ClassVar[bool] = False

    lengths: tuple[int, ...]
    _: dataclasses.KW_ONLY
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    label: str = ""

    def __post_init__(self) -> None:
        types = typing.get_type_hints(type(self), include_extras=True)
        for field in self.options():
            value = getattr(self, field.name)
            value = list(value) if isinstance(value, tuple) else value
            typed_json.check(value, types[field.name], f"--eval={self.name}", "give another", f"--{field.name}")

    @staticmethod
    def mismatch(record: Mapping[str, Any]) -> str:
        """A contradiction between the fields of a record that has the types of `record`; "": none."""
        return ""

    @classmethod
    def options(cls) -> list[dataclasses.Field[Any]]:
        """The fields that `option` made."""
        return [field for field in dataclasses.fields(cls) if "help" in field.metadata]

    def arguments(self) -> list[str]:
        """This evaluation as arguments of `python -m bam_jax.evaluate --run=FOLDER`."""
        given = {field.name: getattr(self, field.name) for field in self.options()}
        words = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in given.items()}
        options = [f"--{name}={value}" for name, value in words.items() if value is not None]
        lengths = ",".join(map(str, self.lengths))
        return [f"--eval={self.name}", f"--lengths={lengths}", *options, *configs.arguments(self.overrides)]

    def to_dict(self) -> dict[str, Any]:
        """The name and all fields, as in experiment.json."""
        return {"name": self.name} | dataclasses.asdict(self)

    @property
    def quantity(self) -> Literal["accuracy", "perplexity", "loss", "gain"]:
        """The kind of its values, which decides how seeds are averaged."""
        return "perplexity" if self.curve == "perplexity" else "accuracy"

    def plans(self, trained: Trained) -> list[Plan]:
        """The measurements; UserError if the run or the options do not allow them."""
        raise NotImplementedError

    def texts(self, length: int) -> float:
        """The greatest number of texts of a length that the model reads."""
        raise NotImplementedError

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        """The number of samples of a depth and task at a length, given the newest record; None: it takes a record to know it."""
        raise NotImplementedError

    def places(self) -> list[Place]:
        """The depths and tasks that have cells of their own at each length."""
        return [(None, "")]

    def without_tasks(self) -> "Evaluation":
        """The same evaluation with no task; itself where there are no tasks."""
        return self

    def joined(self, others: Sequence[Any]) -> "Evaluation":
        """One evaluation in place of several that are equal except for their tasks."""
        return self

    def required(self, record: Mapping[str, Any], config: Config) -> dict[str, Any]:
        """The values that fields of a record must have for the record to answer this evaluation of a run."""
        return {}

    def asks(self, record: Mapping[str, Any], config: Config, overrides: Mapping[str, Any]) -> bool:
        """True if a record answers this evaluation, at any length, depth and task.

        Args:
            record: a record of a cell; or one of stopped lengths, with its `of` as `eval`.
            overrides: all changes at evaluation, values by dotted names.
        """
        asked = {"eval": self.name, "overrides": configs.typed(overrides)} | self.required(record, config)
        return all(name in record and record[name] == value for name, value in asked.items())

    def headings(self, record: Mapping[str, Any]) -> list[str]:
        """The given tasks to which a record belongs; "" if there are no tasks."""
        return [""]

    def gives_up(self, empty: int) -> bool:
        """True if longer lengths are skipped after `empty` consecutive lengths without a correct answer."""
        return False

    @property
    def skips_samples(self) -> bool:
        """True if samples that are too long are skipped, so that a task may have none."""
        return False

    def why_left_out(self) -> str:
        """The reason why a length has no records, for the command's last line."""
        return "where there is nothing to measure"

    @staticmethod
    def weight(record: Mapping[str, Any]) -> float:
        """The weight of a record in the mean of several: its samples, unless its value is a mean over something else."""
        return record["n"]

    @staticmethod
    def mean(values: Sequence[float], weights: Sequence[float]) -> float:
        """The mean of records' values, weighted by their `weight`."""
        return float(np.average(values, weights=weights))

    @classmethod
    def seconds(cls, length: int) -> float:
        """The approximate time of a sample on one core, for linear layers and attention; 0 if it is negligible."""
        return length / 1e5 + length**2 / 1e9 if cls.costly else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskEvaluation(Evaluation):
    """An evaluation of one or more tasks of `known`, each with cells of its own."""

    known: ClassVar[Collection[str]]

    tasks: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for task in self.tasks:
            if task not in self.known:
                raise UserError(f"unknown task {task!r}; {nearest(task, self.known)}")

    def places(self) -> list[Place]:
        return [(None, task) for task in self.tasks]

    def without_tasks(self) -> Evaluation:
        return dataclasses.replace(self, tasks=())

    def joined(self, others: Sequence[Any]) -> Evaluation:
        tasks = dict.fromkeys(task for each in (self, *others) for task in each.tasks)
        return dataclasses.replace(self, tasks=tuple(tasks))

    def headings(self, record: Mapping[str, Any]) -> list[str]:
        return [record["task"]]
