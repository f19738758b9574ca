"""`experiment.json`: the description that a sweep writes into a folder of runs."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from bam_jax import config
from bam_jax.evals.base import Evaluation
from bam_jax.evals.registry import EVALUATIONS
from bam_jax.evals.schema import Setting
from bam_jax.system import jsonl, regular, typed_json
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.fields import Count, Finite, Line, Name, Natural

DESCRIPTION = "experiment.json"


class DescribedEvaluation(TypedDict):
    """An evaluation of a run: its name, the common options, and its own options, which the evaluation checks."""

    name: Line
    lengths: list[Count]
    overrides: dict[str, Setting]
    label: Line


class DescribedRun(TypedDict):
    """A run of an experiment in a description."""

    name: Name
    config: NotRequired[Line]
    label: Line
    seed: Natural
    labels: list[tuple[dict[str, Setting], Line]]
    commands: Annotated[list[str], Meta(min_length=1)]
    evaluations: NotRequired[list[DescribedEvaluation]]


class DescribedBound(TypedDict):
    """An `experiment.Expected`."""

    label: Line
    length: Count
    least: Finite
    most: Finite


class Description(TypedDict):
    """The description that a sweep writes for an experiment with its own folder."""

    title: Line
    command: str
    folder: str
    claims: list[DescribedBound]
    notes: list[str]
    records: NotRequired[Line]
    runs: Annotated[list[DescribedRun], Meta(min_length=1)]


REMEDY = "run the sweep again"


def read_description(folder: Path) -> dict[str, Any]:
    """The `experiment.json` that `bam_jax.sweep` wrote into a folder, with its evaluations as objects."""
    path = folder / DESCRIPTION
    try:
        text = regular.read(path)
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} has no {DESCRIPTION}; run python -m bam_jax.sweep FILE.py --runs={folder}"
        ) from error
    description = typed_json.check(jsonl.parse(text, str(path), REMEDY), Description, str(path), REMEDY)
    for entry in description["runs"]:
        try:
            entry["labels"] = [(config.typed(overrides), label) for overrides, label in entry["labels"]]
            if "evaluations" in entry:  # the oldest descriptions have none
                entry["evaluations"] = [_read_evaluation(each) for each in entry["evaluations"]]
        except UserError as error:
            raise UserError(f"{path} has an evaluation that cannot be read ({error}); {REMEDY}") from error
    return description


def _read_evaluation(entry: Mapping[str, Any]) -> Evaluation:
    if entry["name"] not in EVALUATIONS:
        raise UserError(f"unknown evaluation {entry['name']!r}; {nearest(entry['name'], EVALUATIONS)}")
    kind = EVALUATIONS[entry["name"]]
    own = {field.name for field in dataclasses.fields(kind)}
    given = entry.keys() - {"name"}
    for option in sorted(own ^ given):
        raise UserError(f"{option!r} is {'unknown' if option in given else 'missing'}")
    options: dict[str, Any] = {
        name: tuple(entry[name]) if isinstance(entry[name], list) else entry[name] for name in given
    }
    return kind(**options | {"overrides": config.typed(entry["overrides"])})
