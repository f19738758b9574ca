"""The records of comparisons of speed."""

from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from bam_jax.system import jsonl, strict_json
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Finite, Line, Natural, Seconds


class Versions(TypedDict):
    """The versions of packages; others may be there as well."""

    jax: Line


class Machine(TypedDict):
    """The machine, on which a time depends."""

    device: Line
    processor: Line
    cores: Natural
    versions: Versions


class Speed(TypedDict):
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


def read_speeds(path: Path) -> list[dict[str, Any]]:
    """The lines of a comparison of speeds, written by `benchmarks.speed`."""
    found = []
    for number, record in enumerate(jsonl.read(path), start=1):
        where, remedy = f"{path}, line {number}", "remove that line"
        found.append(strict_json.check(record, Speed, where, remedy))
        if ("low" in record) != ("high" in record):
            raise UserError(f"{where} has one of 'low' and 'high' without the other; {remedy}")
    return found
