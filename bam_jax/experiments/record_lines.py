"""The lines of a file of records: fields that stand once, runs, and cells, of which many stand in one line."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from bam_jax.evals.registry import kind_of
from bam_jax.evals.schema import Setting
from bam_jax.system import strict_json
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Finite, Line, Name, Natural, Seconds
from bam_jax.system.strict_json import Must

DROPPED = ("config", "digits", "example", "peak_bytes", "tokens")
"""Fields of cells that are left out: the run's line tells its configuration, and no table reads the others."""
GROUPED = ("eval", "of", "length", "first", "step", "overrides", "unit", "tokenizer", "commit")
"""Cells that differ in none of these fields stand in one line."""

Key = Annotated[str, Must(lambda key: len(key) == 8 and set(key) <= set("0123456789abcdef"), "eight hex digits")]
_EQUAL = "lists of one length"


Lists = Annotated[dict[str, list[Setting]], Must(lambda all: len({*map(len, all.values())}) == 1, _EQUAL)]


class Header(TypedDict):
    """Fields that other lines refer to by their key: of cells, of a configuration, or of the source of a run.

    Cells that stand in one line have one value each of the lists in `each`.
    """

    key: Key
    fields: dict[str, Setting]
    each: NotRequired[Lists]


class Machine(TypedDict):
    """The machine on which a run was trained, as `system.machine` describes it."""

    device: Line
    processor: Line
    cores: Natural | None
    versions: dict[str, Line]


class Source(TypedDict):
    """The command of the sweep that trained a run, the code's commit ("-dirty" where files differed), and the machine."""

    command: Line
    commit: Line | None
    machine: Machine


class Losses(TypedDict):
    """Some steps of a training, the last among them."""

    step: list[Natural]
    loss: list[Finite]
    seconds: list[Seconds]


class RunLine(TypedDict):
    """A trained run: the configuration is that of the header `config`, with `changes`."""

    run: Key
    name: Name
    config: Key
    changes: dict[str, Setting]
    digest: Line
    source: Key | None
    step: Natural
    tokens: Natural
    losses: Annotated[Losses, Must(lambda all: len(all["step"]) == len(all["loss"]) == len(all["seconds"]), _EQUAL)]
    heads: dict[str, Annotated[list[list[Finite]], Must(lambda rows: len({*map(len, rows)}) == 1, _EQUAL)]]


class CellsLine(TypedDict):
    """Cells of a run: the header's fields, those that stand beside, and one value each of the lists of both.

    `first` is 0 where it is not said. `right` stands for `value`: of `n` samples so many.
    """

    cells: Key
    run: Key
    each: NotRequired[Lists]


class _Counted(TypedDict):
    """Cells whose value is a share of their samples."""

    right: Natural
    n: Count


REMEDY = "put the file back from the repository, or remove that line and what refers to it"


def unpack(line: Mapping[str, Any], header: Mapping[str, Any], digest: str, where: str) -> Iterator[dict[str, Any]]:
    """The lines of results.jsonl that a line stands for.

    Args:
        line: a `CellsLine`.
        header: the `Header` that it refers to.
        digest: of the run's configuration.
        where: names the line in an error.

    Raises:
        UserError: a field has two values, lists have several lengths, or more samples are right than there are.
    """
    beside = {name: value for name, value in line.items() if name not in ("cells", "run", "each")}
    parts = [header["fields"], beside, *(part["each"] for part in (header, line) if "each" in part)]
    names = [name for part in parts for name in part]
    if len({*names}) < len(names):
        raise UserError(f"{where} has {max(names, key=names.count)!r} twice; {REMEDY}")
    lists = {name: values for part in parts[2:] for name, values in part.items()}
    if len({*map(len, lists.values())}) > 1:
        raise UserError(f"{where} has other lists than {line['cells']}, to which it refers; {REMEDY}")
    common = {**header["fields"], **beside, "config": digest}
    for values in zip(*lists.values(), strict=True) if lists else [()]:
        cell = common | dict(zip(lists, values, strict=True))
        if "n" in cell and "first" not in cell:
            cell["first"] = 0
        if "right" in cell:
            strict_json.check(cell, _Counted, where, REMEDY)
            cell["value"] = cell.pop("right") / cell["n"]
        yield cell


def pack(cells: Iterable[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Packs lines of results.jsonl into few: what their `Header` and their `CellsLine` have besides keys.

    Args:
        cells: of one run, what was left out (`schema.StoppedRecord`) as well.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        alike = [sorted(cell), *(cell[name] for name in GROUPED if name in cell)]
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(cell)
    for group in groups.values():
        told = ("step", *kind_of(group[0]["eval"]).identity)
        same: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        each: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        for name, values in _columns(group).items():
            if len({*map(json.dumps, values)}) > 1:
                each[name not in told][name] = values
            else:
                beside = name not in told and isinstance(values[0], int | float | list)
                same[beside][name] = values[0]
        lists = [{"each": found} if found else {} for found in each]
        yield {"fields": same[0], **lists[0]}, {**same[1], **lists[1]}


def _columns(group: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of cells by field, as a line has them."""
    columns = {name: [cell[name] for cell in group] for name in sorted(group[0].keys() - {*DROPPED})}
    if "first" in columns and not any(columns["first"]):
        del columns["first"]
    if "seconds" in columns:  # they are only ever added up
        columns["seconds"] = [round(float(np.mean(columns["seconds"])), 3)] * len(group)
    if "value" in columns and "n" in columns:
        right = [round(value * n) for value, n in zip(columns["value"], columns["n"], strict=True)]
        counts = zip(right, columns["n"], columns["value"], strict=True)
        if all(count <= n and count / n == value for count, n, value in counts):
            columns["right"] = right
            del columns["value"]
    return columns


def kept_text(cell: Mapping[str, Any]) -> str:
    """All of a cell that `pack` keeps as it is, as a text by which it is found again."""
    fields = {name: value for name, value in cell.items() if name not in ("seconds", *DROPPED)}
    return json.dumps(fields, sort_keys=True)


def key_of(value: Any) -> str:
    """The key of a value of JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
