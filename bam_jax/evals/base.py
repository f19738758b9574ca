"""An evaluation as one object: its options, its records, its cells, its cost, and what a page draws of it."""

import dataclasses
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.evals import schema
from bam_jax.evals.plan import Plan, Trained
from bam_jax.system import strict_json
from bam_jax.system.errors import UserError, nearest

type Place = tuple[float | None, str]
"""The depth and the task of a cell; None and "" where it has none."""


def option(default: int | str | tuple[str, ...] | None, help: str) -> Any:
    """A field of an evaluation that is an argument of the command as well.

    Args:
        default: its value; None: the evaluation itself decides, or asks for it.
        help: what the command says of it.
    """
    return dataclasses.field(default=default, metadata={"help": help})


def prompt_seed(asked: int | None, config: Config) -> int:
    """The seed of an evaluation's prompts: the run's own training seed, unless another is asked for.

    So each training seed has prompts of its own, and all methods of that seed are asked the same ones.

    Args:
        asked: the evaluation's option; None: the training seed.
        config: the run's.
    """
    return config.seed if asked is None else asked


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation of a trained run: what is asked, and all that tables, pages and costs need to know about it.

    A kind of evaluation is a subclass in a file of its own and a line in `bam_jax.evals.registry`. Its options are fields made
    by `option`; their types, of `bam_jax.system.fields`, bound what a command or an experiment may give.

    Class attributes:
        name: the `eval` of its records.
        encoder: whether it asks encoders, and no decoders.
        sample_noun: what its samples are called, such as "prompts".
        record: the type of its lines in results.jsonl, a `schema.CellRecord` with a `value`.
        identity: besides what every record has, the fields that tell one cell from others.
        curve: what its values by length show: "accuracy", "perplexity", or "" where no curve is drawn.
        figure: what a picture of its records has beside the lengths: "depth" and "task" are the rows of a grid of fractions,
            "position" the windows in `windows`; "": there is none.
        unseen: whether its text must be such that the run was not trained on, so that no other text than the run's counts as
            held out.
        grouped: whether a task that is asked for may stand for several, some of which may have no samples to measure.

    Args:
        lengths: tokens of a sample.
        overrides: changes at evaluation only, values by dotted names.
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

    lengths: tuple[int, ...]
    _: dataclasses.KW_ONLY
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    label: str = ""

    def __post_init__(self) -> None:
        types = typing.get_type_hints(type(self), include_extras=True)
        for field in self.options():
            value = getattr(self, field.name)
            value = list(value) if isinstance(value, tuple) else value
            strict_json.check(value, types[field.name], f"--eval={self.name}", "give another", f"--{field.name}")

    @staticmethod
    def mismatch(record: Mapping[str, Any]) -> str:
        """What contradicts itself in a record whose fields have the types of `record`; "": nothing."""
        return ""

    @classmethod
    def options(cls) -> list[dataclasses.Field[Any]]:
        """The fields that `option` made."""
        return [field for field in dataclasses.fields(cls) if "help" in field.metadata]

    def arguments(self) -> list[str]:
        """The arguments behind `python -m bam_jax.evaluate --run=FOLDER` that ask for the same."""
        given = {field.name: getattr(self, field.name) for field in self.options()}
        words = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in given.items()}
        options = [f"--{name}={value}" for name, value in words.items() if value is not None]
        lengths = ",".join(map(str, self.lengths))
        return [f"--eval={self.name}", f"--lengths={lengths}", *options, *configs.arguments(self.overrides)]

    def to_dict(self) -> dict[str, Any]:
        """The name and all fields, as experiment.json has them."""
        return {"name": self.name} | dataclasses.asdict(self)

    @property
    def quantity(self) -> Literal["accuracy", "perplexity", "loss"]:
        """The kind of its values, by which seeds are summed up: a share of samples, a perplexity, or a loss in nats."""
        return "perplexity" if self.curve == "perplexity" else "accuracy"

    def plans(self, trained: Trained) -> list[Plan]:
        """The measurements that are asked for, those that belong together in one plan.

        Args:
            trained: the run.

        Raises:
            UserError: the run or the arguments will not do.
        """
        raise NotImplementedError

    def texts(self, length: int) -> float:
        """The number of texts of a length that the model reads, at most.

        Args:
            length: tokens.
        """
        raise NotImplementedError

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        """The number of samples that make one depth and task of a length whole; None where only a record could say it.

        Args:
            length: tokens.
            record: the newest that there is; None before the first.
        """
        raise NotImplementedError

    def places(self) -> list[Place]:
        """The depths and tasks that have cells of their own at each length."""
        return [(None, "")]

    def without_tasks(self) -> "Evaluation":
        """The same of no task; itself where there are no tasks."""
        return self

    def joined(self, others: Sequence[Any]) -> "Evaluation":
        """One evaluation that asks for all that several ask for.

        Args:
            others: equal to this one but for their tasks.
        """
        return self

    def required(self, record: Mapping[str, Any], config: Config) -> dict[str, Any]:
        """The fields that a record must have to answer this evaluation and no other of its name.

        Args:
            record: of what was measured, or left out.
            config: the run's.
        """
        return {}

    def asks(self, record: Mapping[str, Any], config: Config, overrides: Mapping[str, Any]) -> bool:
        """True if this evaluation asks for a record of results.jsonl, at whatever length, depth and task.

        Args:
            record: of what was measured, or of what was left out with its `of` as `eval`.
            config: the run's.
            overrides: all changes at evaluation, values by dotted names.
        """
        asked = {"eval": self.name, "overrides": configs.typed(overrides)} | self.required(record, config)
        return all(name in record and record[name] == value for name, value in asked.items())

    def headings(self, record: Mapping[str, Any]) -> list[str]:
        """The tasks that were asked for to which a record belongs; "" where there are no tasks.

        Args:
            record: of this evaluation.
        """
        return [""]

    def gives_up(self, empty: int) -> bool:
        """True if longer ones are left out after so many lengths, one after another, at which nothing was right.

        Args:
            empty: number of lengths.
        """
        return False

    @property
    def skips_samples(self) -> bool:
        """True if samples that are too long are left out, so that a task may have none."""
        return False

    def why_left_out(self) -> str:
        """The reason why a length has no records, as the command's last line says it."""
        return "where there is nothing to measure"

    @staticmethod
    def weight(record: Mapping[str, Any]) -> float:
        """The weight of a record in the mean of several: its samples, unless its own value is a mean over something else.

        Args:
            record: of this evaluation.
        """
        return record["n"]

    @staticmethod
    def mean(values: Sequence[float], weights: Sequence[float]) -> float:
        """The mean of records' values.

        Args:
            values: one at least.
            weights: of the values, see `weight`.
        """
        return float(np.average(values, weights=weights))

    @staticmethod
    def seconds(length: int) -> float:
        """About how long a sample takes on one core; 0 where all samples together take little beside the training.

        Args:
            length: tokens.
        """
        return 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskEvaluation(Evaluation):
    """An evaluation of one or more tasks by name, each with cells of its own.

    Class attributes:
        known: the tasks that there are.

    Args:
        tasks: some of them.

    Raises:
        UserError: another task.
    """

    known: ClassVar[Collection[str]]

    tasks: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for task in self.tasks:
            if task not in self.known:
                raise UserError(f"unknown task {task!r}; {nearest(task, self.known)}")

    def places(self) -> list[Place]:
        """See `Evaluation`."""
        return [(None, task) for task in self.tasks]

    def without_tasks(self) -> Evaluation:
        """See `Evaluation`."""
        return dataclasses.replace(self, tasks=())

    def joined(self, others: Sequence[Any]) -> Evaluation:
        """See `Evaluation`."""
        tasks = dict.fromkeys(task for each in (self, *others) for task in each.tasks)
        return dataclasses.replace(self, tasks=tuple(tasks))

    def headings(self, record: Mapping[str, Any]) -> list[str]:
        """See `Evaluation`."""
        return [record["task"]]
