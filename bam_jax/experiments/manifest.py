"""The description that a sweep leaves in a folder of runs."""

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from bam_jax import config
from bam_jax.data.tasks import benchmarks, ruler
from bam_jax.evals.records import Setting
from bam_jax.system import strict_json
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Finite, Line, Name, Natural
from bam_jax.system.strict_json import Must

MANIFEST = "experiment.json"

Overrides = dict[str, Setting] | list[Line]
"""Values by dotted names; older files have arguments, "--config.a.b=value"."""


class AskedFields(TypedDict):
    """An `experiment.Evaluation`."""

    name: Literal["harness", "passkey", "perplexity", "ruler"]
    lengths: list[Count]
    depths: Annotated[int, Must(lambda n: 1 <= n <= 10_000, "from 1 to 10000")]
    trials: Count
    seed: Natural
    patience: Natural
    tokens: Count
    tasks: list[Line]
    samples: Count
    essays: Line
    measure: Line
    questions: Count
    shots: Natural
    data: Line
    longer: Line
    overrides: Overrides
    label: Line


_TASKS = {"harness": benchmarks.TASKS, "ruler": ruler.TASKS}


Asked = Annotated[
    AskedFields,
    Must(
        lambda asked: asked["name"] not in _TASKS or all(task in _TASKS[asked["name"]] for task in asked["tasks"]),
        "an evaluation of known tasks",
    ),
]


class Entry(TypedDict):
    """A run of an experiment."""

    name: Name
    label: Line
    seed: Natural
    labels: list[tuple[Overrides, Line]]
    commands: Annotated[list[str], Must(len, "one command at least")]
    evaluations: NotRequired[list[Asked]]


class Bound(TypedDict):
    """An `experiment.Claim`."""

    label: Line
    length: Count
    least: Finite
    most: Finite


class Manifest(TypedDict):
    """The description that a sweep leaves of an experiment with a folder of its own."""

    title: Line
    command: str
    folder: str
    claims: list[Bound]
    notes: list[str]
    runs: Annotated[list[Entry], Must(len, "one run at least")]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The `experiment.json` that `bam_jax.sweep` left in a folder.

    Args:
        folder: the sweep's --runs.

    Raises:
        UserError: it is not there, or cannot be read.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{folder} has no {MANIFEST}; run python -m bam_jax.sweep FILE.py --runs={folder}") from error
    remedy = "run the sweep again"
    read = strict_json.check(strict_json.parse(text, str(path), remedy), Manifest, str(path), remedy)
    for entry in read["runs"]:
        entry["labels"] = [(_overrides(overrides, path), label) for overrides, label in entry["labels"]]
        for asked in entry["evaluations"] if "evaluations" in entry else ():
            asked["overrides"] = _overrides(asked["overrides"], path)
    return read


def _overrides(read: dict[str, Any] | list[str], path: Path) -> dict[str, Any]:
    try:
        return config.typed(config.from_arguments(read) if isinstance(read, list) else read)
    except UserError as error:
        raise UserError(f"{path}: {error}; run the sweep again") from error
