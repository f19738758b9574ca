"""The records that runs leave in their folders: which fields each kind has, and which samples it covers.

Everything that reads such a file reads it here, so that a damaged record is one line that names its field.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from bam_jax import config
from bam_jax.system import jsonl, strict_json
from bam_jax.system.fields import Count, Finite, Line, Loss, Natural, Positive, Seconds, Share
from bam_jax.system.strict_json import Must

RESULTS = "results.jsonl"
STOPPED = "stopped"
"""The `eval` of a record in results.jsonl that says which `lengths` of an evaluation (`of`) were left out, `after` which ones."""


Setting = Line | float | bool | list | dict | None
"""A value that a field of the configuration had at evaluation; older records have its text."""


class Named(TypedDict):
    """Every line of results.jsonl."""

    eval: Line


class Measured(TypedDict):
    """Every measured cell: `n` samples of a length, the first of which has the number `first`."""

    eval: Line
    length: Count
    n: Count
    step: Natural
    overrides: dict[str, Setting]
    unit: Line
    first: NotRequired[Natural]
    of: NotRequired[Count]
    seconds: NotRequired[Seconds]
    commit: NotRequired[Line | None]
    tokenizer: NotRequired[str]
    config: NotRequired[str]


class Passkey(Measured):
    """Prompts at one depth."""

    value: Share
    depth: Share
    prompt: Line
    seed: Natural


class Perplexity(Measured):
    """Sequences of held-out text, of which there are `of`, with the mean loss of each window of their positions."""

    value: Positive
    depth: NotRequired[None]
    window: Count
    windows: list[Loss]


class Ruler(Measured):
    """Samples of a task."""

    value: Share
    depth: NotRequired[None]
    task: Line
    seed: Natural
    essays: NotRequired[Line]
    essays_hash: NotRequired[Line]


class Harness(Measured):
    """Questions of a task, of which there are `of`."""

    value: Seconds
    depth: NotRequired[None]
    task: Line
    shots: Natural
    data: Line
    longer: Line
    data_hash: NotRequired[Line]
    pages: NotRequired[Natural]


class Other(Measured):
    """A cell of an evaluation that this version does not know."""

    value: Finite
    depth: NotRequired[Share | None]


class Stopped(TypedDict):
    """Lengths of an evaluation (`of`) that were left out, since no prompt was answered at those in `after`."""

    eval: Literal["stopped"]
    of: Line
    lengths: list[Count]
    after: list[Count]
    step: Natural
    overrides: dict[str, Setting]
    prompt: NotRequired[Line]
    seed: NotRequired[Natural]


KINDS: Mapping[str, Any] = {
    "harness": Harness,
    "passkey": Passkey,
    "perplexity": Annotated[
        Perplexity,
        Must(lambda cell: len(cell["windows"]) == -(-cell["length"] // cell["window"]), "a loss for each window"),
    ],
    "ruler": Ruler,
    STOPPED: Stopped,
}
"""Lines of results.jsonl by their `eval`."""

IDENTITY = {
    "harness": ("task", "shots", "data", "data_hash", "longer", "pages"),
    "passkey": ("prompt", "seed", "depth"),
    "perplexity": ("window",),
    "ruler": ("task", "seed", "essays", "essays_hash"),
}
"""Besides what every cell has, the fields that tell a cell from others; the records of one cell are about other samples."""

Cell = dict[str, Any]
"""A line of results.jsonl that says what was measured, with its `first`."""


def identity(cell: Mapping[str, Any]) -> str:
    """All that tells a cell from others; records in which it is the same are about one cell.

    Args:
        cell: of an evaluation that is known here; of another one each record is a cell of its own.
    """
    if cell["eval"] not in IDENTITY:
        return json.dumps(cell, sort_keys=True)
    names = ("eval", "length", "step", "overrides", *IDENTITY[cell["eval"]])
    return json.dumps({name: cell[name] for name in names if name in cell}, sort_keys=True)


def checked(record: Any, where: str, remedy: str) -> dict[str, Any]:
    """A line of results.jsonl that has all that its kind needs.

    Args:
        record: as it was read, or is to be written.
        where, remedy: of the error, as `strict_json.check` takes them.

    Raises:
        UserError: it is no such record.
    """
    strict_json.check(record, Named, where, remedy)
    return strict_json.check(record, KINDS[record["eval"]] if record["eval"] in KINDS else Other, where, remedy)


def results(run: Path) -> tuple[list[Cell], list[dict[str, Any]]]:
    """The lines of a run's results.jsonl: what was measured, and what was left out (`Stopped`).

    A record from before it had a `first` is about the samples after those of the records of its cell above it. A line that
    says the same as one above it is left out. Overrides have the values that their fields read, also where they are texts.

    Args:
        run: its folder; one without results has no lines.

    Raises:
        UserError: a line is not JSON, or lacks what its kind has.
    """
    path = run / RESULTS
    lines: dict[str, dict[str, Any]] = {}
    for number, record in enumerate(jsonl.read(path), start=1):
        checked(record, f"{path}, line {number}", "remove that line")
        if "overrides" in record:  # an evaluation that is not known here may have none
            record["overrides"] = config.typed(record["overrides"])
        lines.setdefault(json.dumps(record, sort_keys=True), record)
    cells, stops, ends = [], [], Counter[str]()
    for record in lines.values():
        if record["eval"] == STOPPED:
            stops.append(record)
            continue
        key = identity(record)
        cell = {"first": ends[key]} | record
        ends[key] = max(ends[key], cell["first"] + cell["n"])
        cells.append(cell)
    return cells, stops


def covering(cells: Iterable[Cell], wanted: int | None = None) -> list[Cell]:
    """Those records of one cell that together have its samples 0, 1, 2 and so on, each once.

    Args:
        cells: with one identity.
        wanted: samples. If records allow, those found have exactly the first so many; else they have as few more as can be,
            or all that there are where those are fewer. None: all that there are.
    """
    ends: dict[int, Cell | None] = {0: None}
    for cell in sorted(cells, key=lambda cell: cell["first"]):
        if cell["first"] in ends:
            ends.setdefault(cell["first"] + cell["n"], cell)
    stop = max(ends)
    if wanted is not None:
        stop = min((end for end in ends if end >= wanted), default=stop)
    found: list[Cell] = []
    while (last := ends[stop]) is not None:
        found, stop = [last, *found], last["first"]
    return found


def once(cells: Iterable[Cell]) -> list[Cell]:
    """Cells without those whose samples others of them have.

    Args:
        cells: of any identities.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(identity(cell), []).append(cell)
    return [cell for group in groups.values() for cell in covering(group)]
