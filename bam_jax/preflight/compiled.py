"""The training step as the compiler makes it for a slice: its memory, its collectives, or that it does not fit."""

import dataclasses
import math
import re
import time
from typing import Any

import jax

from bam_jax.preflight.collectives import Collective, collectives


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's account of one device.

    Args:
        arguments: bytes of the state and the batch by kind, as laid out: "parameters", "optimizer", "batch".
        temporaries: bytes of all else that the step needs beside its results, which take the state's place: gradients,
            activations and scratch memory, which the compiler does not tell apart.
        program: bytes of the program itself.
        collectives: of one step.
        uncounted: loops with collectives that are counted for one turn, for want of their number.
        seconds: that compiling took.
        refused: what the compiler says of a step that does not fit its memory, or ""; if it does, all that is needed then counts
            as temporaries, and there are no collectives.
    """

    arguments: dict[str, int] = dataclasses.field(default_factory=dict)
    temporaries: float = 0
    program: float = 0
    collectives: tuple[Collective, ...] = ()
    uncounted: tuple[str, ...] = ()
    seconds: float = 0
    refused: str = ""

    @property
    def total(self) -> float:
        """Bytes of the device's memory."""
        return sum(self.arguments.values()) + self.temporaries + self.program


def compile_step(lowered: jax.stages.Lowered, devices: int) -> Compiled:
    """Compile a lowered step.

    Args:
        lowered: of `bam_jax.preflight.step.Step.lower`.
        devices: that it is for.
    """
    start = time.perf_counter()
    try:
        made = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        first = re.sub(r"\s+", " ", str(error).splitlines()[0])
        needed = re.search(r"\(([\d.]+)([KMG])\) exceeds", first)
        size = float(needed[1]) * 2 ** {"K": 10, "M": 20, "G": 30}[needed[2]] if needed else math.nan
        return Compiled(temporaries=size, refused=first, seconds=time.perf_counter() - start)
    seconds = time.perf_counter() - start
    memory: Any = made.memory_analysis()
    text: Any = made.as_text()
    found, uncounted = collectives(text, devices)
    kept = arguments(text)
    return Compiled(
        arguments=kept,
        temporaries=memory.total_allocation_bytes - sum(kept.values()),  # libtpu's temp_size may be above the total
        program=memory.generated_code_size_in_bytes,
        collectives=tuple(found),
        uncounted=tuple(uncounted),
        seconds=seconds,
    )


_ARGUMENT = re.compile(
    r"= ([a-z]+)(\d*)\[([\d,]*)\](?:\{([\d,]*)(?::T\(([\d,]+)\))?[^ ]*)? parameter\(\d+\)"
    r".*op_name=\"(batch|state\[\\?'(?:model|optimizer))"
)
_KINDS = {"model": "parameters", "optimizer": "optimizer", "batch": "batch"}


def arguments(text: str) -> dict[str, int]:
    """Bytes of the state and the batch in a device's memory by kind; on TPUs the last axes are filled up to whole tiles.

    Args:
        text: of `jax.stages.Compiled.as_text`, of a training step.
    """
    found = dict.fromkeys(_KINDS.values(), 0)
    entry = text[text.index("\nENTRY ") :]
    for letters, bits, dims, order, tile, name in _ARGUMENT.findall(entry):
        sizes = [_numbers(dims)[axis] for axis in _numbers(order)]  # the innermost first
        for axis, whole in enumerate(reversed(_numbers(tile))):
            sizes[axis : axis + 1] = [math.ceil(math.prod(sizes[axis : axis + 1]) / whole) * whole]
        kind = next(kind for part, kind in _KINDS.items() if part in name)
        found[kind] += math.prod(sizes) * (8 if letters == "pred" else int(bits)) // 8
    return found


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
