"""The fields of a line in results.jsonl that the records of all evaluations share."""

from typing import Literal, NotRequired, TypedDict

from bam_jax.system.fields import Count, Finite, Line, Natural, Seconds, Share

# Not `Line`: msgspec 0.22 crashes when Python exits if a pattern is in a union with a list or an object.
Setting = str | float | bool | list | dict | None
"""The value of a configuration field at evaluation; older records contain it as text."""


class Named(TypedDict):
    """Every line of results.jsonl."""

    eval: Line


class CellRecord(TypedDict):
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


class OtherRecord(CellRecord):
    """A cell of an evaluation whose records have no schema of their own, or that this version does not know."""

    value: Finite
    depth: NotRequired[Share | None]


class StoppedRecord(TypedDict):
    """Lengths of an evaluation (`of`) that were skipped, because no prompt was answered at those in `after`."""

    eval: Literal["stopped"]
    of: Line
    lengths: list[Count]
    after: list[Count]
    step: Natural
    overrides: dict[str, Setting]
    prompt: NotRequired[Line]
    seed: NotRequired[Natural]
