"""The records of comparisons of speed."""

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from bam_jax.system import jsonl, strict_json
from bam_jax.system.fields import Count, Finite, Line, Natural, Seconds
from bam_jax.system.strict_json import Must


class Versions(TypedDict):
    """The versions of packages; others may be there as well."""

    jax: Line


class Machine(TypedDict):
    """The machine, on which a time depends."""

    device: Line
    processor: Line
    cores: Natural
    versions: Versions


class SpeedFields(TypedDict):
    """A contender's time or memory, beside the baseline's."""

    measure: Line
    length: Count
    unit: Literal["s", "bytes", "tokens/s", "texts/s"]
    contender: Line
    config: Line
    value: Finite
    ratio: Finite
    n: Count
    machine: Machine
    commit: NotRequired[Line | None]
    low: NotRequired[Finite]
    high: NotRequired[Finite]
    device_peak_bytes: NotRequired[Seconds | None]


Speed = Annotated[
    SpeedFields,
    Must(lambda found: ("low" in found) == ("high" in found), "a record with both low and high, or neither"),
]


def read_speeds(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a comparison of speeds.

    Args:
        path: JSON lines, written by `benchmarks.speed`.

    Raises:
        UserError: a line is no such record; the message names the file and the line.
    """
    return [
        strict_json.check(record, Speed, f"{path}, line {number}", "remove that line")
        for number, record in enumerate(jsonl.read(path), start=1)
    ]
