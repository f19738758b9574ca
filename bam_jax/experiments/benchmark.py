"""Benchmarks of an experiment: commands that measure the speed or memory of untrained models, and their records."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from bam_jax.evals.records import RESULTS
from bam_jax.system import jsonl, typed_json
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Finite, Line, Seconds
from bam_jax.system.machine import Machine


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A command that compares untrained models; no other job runs at the same time."""

    name: str  # of its folder, next to the runs
    module: str  # run as `python -m MODULE`; it may exist only in a clone
    arguments: tuple[str, ...]  # name the models
    cells: tuple[tuple[str, int], ...]  # measures and lengths in tokens
    seconds: float  # approximate time per cell, nearly all of it compilation

    def command(self, folder: Path) -> list[str]:
        """The module and arguments that measure the cells missing from the folder of runs."""
        cells = ",".join(f"{measure}:{length}" for measure, length in self.cells)
        return [self.module, *self.arguments, f"--cells={cells}", f"--out={folder / self.name / RESULTS}"]

    def records(self, folder: Path) -> list[dict[str, Any]]:
        return read_speeds(folder / self.name / RESULTS)

    def cost(self) -> float:
        return self.seconds * len(self.cells)

    def spent(self, folder: Path) -> float:
        return self.seconds * len({(each["measure"], each["length"]) for each in self.records(folder)} & {*self.cells})

    def status(self, folder: Path) -> str:
        for record in reversed(self.records(folder)):
            return f"{record['measure']} at {record['length']} tokens is done"
        return "starting"


def merge(benchmarks: Sequence[Benchmark]) -> list[Benchmark]:
    """The benchmarks, with the cells of equally named ones combined."""
    made: dict[str, Benchmark] = {}
    for each in benchmarks:
        cells = made[each.name].cells if each.name in made else ()
        made[each.name] = dataclasses.replace(each, cells=tuple(dict.fromkeys((*cells, *each.cells))))
    return list(made.values())


class SpeedRecord(TypedDict):
    """A contender's time or memory, and its ratio to the baseline's."""

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
    """The JSON lines of a benchmark."""
    found = []
    for number, record in enumerate(jsonl.read(path), start=1):
        where, remedy = f"{path}, line {number}", "remove that line"
        found.append(typed_json.check(record, SpeedRecord, where, remedy))
        if ("low" in record) != ("high" in record):
            raise UserError(f"{where} has one of 'low' and 'high' without the other; {remedy}")
    return found
