"""The cases of `bench.accelerator` on a platform: which there are, how large, and in what order."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.system.errors import UserError
from benchmarks import chip_parity, chip_peaks, chip_problems, chip_times
from benchmarks.attention_shapes import AttentionShape
from benchmarks.chip_cases import Case
from benchmarks.chip_peaks import Ceilings
from benchmarks.chip_run import Trial
from benchmarks.chip_scales import Scale
from benchmarks.contenders import OURS, PASSES

CEILINGS = "ceilings"
"""The stage that comes first in any case: shares are of what it measures, where no data sheet is known."""

TRAINING = "training"
"""The stage of real trainings. They are processes of their own, and a device belongs to one process."""


UNTIMED = ("parity", "determinism")
"""The stages that time nothing: other work on the device beside them changes no outcome."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is to be found out on a machine.

    Args:
        platform: "cpu", "gpu" or "tpu".
        devices: that a training takes: all accelerators, or one CPU.
        scale: the sizes.
        config: file of the model that is trained.
        folder: for trainings.
        ceilings: gives those of the chip, once they are measured.
    """

    platform: str
    devices: int
    scale: Scale
    config: Path
    folder: Path
    ceilings: Callable[[], Ceilings]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types of operands, the platform's own first."""
        return ("float32", "bfloat16") if self.platform == "cpu" else ("bfloat16", "float32")

    def cases(self, stages: Sequence[str]) -> list[Case]:
        """All cases, those of the ceilings first, in the order of `STAGES`.

        Args:
            stages: names in `STAGES`.
        """
        return [case for name in STAGES if name in stages or name == CEILINGS for case in STAGES[name](self)]


def chosen(text: str) -> list[str]:
    """Read the names of stages.

    Args:
        text: names in `STAGES`, with commas; "": all.

    Raises:
        UserError: an unknown name.
    """
    names = text.split(",") if text else list(STAGES)
    for name in names:
        if name not in STAGES:
            raise UserError(f"--stages={text}: there is no stage {name!r}; take of {', '.join(STAGES)}, with commas")
    return names


def _ceilings(plan: Plan) -> Iterator[Case]:
    yield Case(CEILINGS, "product and copy", lambda: chip_peaks.measure(*plan.scale.product, plan.dtypes[0]))


def _parity(plan: Plan) -> Iterator[Case]:
    scale = plan.scale
    every = chip_problems.problems(scale.tokens, scale.widths)
    problems = [x for x in every if x.bias in scale.biases and x.mask in scale.masks]
    own, *others = OURS[plan.platform]
    # The types of one problem follow each other: they share the reference's results.
    wanted = [(problem, own, dtype) for problem in problems for dtype in plan.dtypes]
    # What takes the kernels' place is one program for all masks and, on accelerators, above all for float32.
    first = [problem for problem in problems if problem.mask == scale.masks[0]]
    wanted += [(problem, backend, "float32") for backend in others for problem in first]
    for problem, backend, dtype in wanted:
        name = f"{backend} {dtype} {problem.bias}, {problem.mask}, {problem.layout}, heads of {problem.width}"
        run = functools.partial(chip_parity.parity, problem, backend, dtype, scale.tiling)
        yield Case("parity", name, run)


def _determinism(plan: Plan) -> Iterator[Case]:
    for bias in plan.scale.repeated:
        problem = chip_problems.Problem(bias, "causal", "packed", plan.scale.long, plan.scale.widths[0])
        run = functools.partial(chip_parity.determinism, problem, OURS[plan.platform][0], plan.dtypes[0])
        yield Case("determinism", f"{bias}, {plan.scale.long} tokens", run)


def _timed(plan: Plan, shape: AttentionShape, which: str) -> Case:
    scale = plan.scale
    batch = f"{shape.batch} x " if shape.batch > 1 else ""
    of = f"{shape.queries} behind {shape.length}" if shape.queries < shape.length else f"{batch}{shape.length}"

    def run() -> dict[str, Any]:
        return chip_times.time_attention(
            shape, which, plan.ceilings(), repetitions=scale.repetitions, memory=scale.memory
        )

    return Case("times", f"{shape.bias}, {of} tokens, {which}", run, 90.0 if shape.length >= 2**17 else 0.0)


def _times(plan: Plan) -> Iterator[Case]:
    scale, dtype = plan.scale, plan.dtypes[0]
    curve = chip_times.shapes_of_lengths(scale.lengths, scale.batch_tokens, dtype)
    cached = [AttentionShape(length, 1, dtype=dtype) for length in scale.decode]
    wanted = list(itertools.product(curve, scale.passes))
    first, rest = wanted[:4], wanted[4:]  # the lengths that most people train with come before all others
    for shape, which in first:
        yield _timed(plan, shape, which)
    for shape in cached:
        yield _timed(plan, shape, PASSES[0])
    if scale.every_bias:
        for shape in chip_times.shapes_of_biases(scale.every_bias, scale.batch_tokens, dtype):
            yield _timed(plan, shape, PASSES[1])
    for shape, which in rest:
        yield _timed(plan, shape, which)


def _tiles(plan: Plan) -> Iterator[Case]:
    scale = plan.scale
    for width, bias in scale.tiled:
        (shape,) = chip_times.shapes_of_lengths([scale.tile_length], scale.batch_tokens, plan.dtypes[0])
        shape = dataclasses.replace(shape, width=width, bias=bias)

        def run(shape: AttentionShape = shape) -> dict[str, Any]:
            return chip_times.time_tiles(
                shape,
                PASSES[1],
                scale.tiles[plan.platform],
                plan.ceilings(),
                repetitions=scale.repetitions,
                memory=scale.memory,
            )

        yield Case("tiles", f"{bias}, heads of {width}, {shape.length} tokens", run)


def _steps(plan: Plan) -> Iterator[Case]:
    wanted: dict[str, dict[str, Any]] = {name: {"encoding": name, "ssmax": "off"} for name in plan.scale.encodings}
    wanted["bam, SSMax"] = {"encoding": "bam", "ssmax": "on"}
    wanted["bam, SSMax, every activation kept"] = {**wanted["bam, SSMax"], "model.remat": False}
    for name, changed in wanted.items():
        changes = {**plan.scale.step, **changed}

        def run(changes: Mapping[str, Any] = changes) -> dict[str, Any]:
            return chip_times.time_step(plan.config, changes, plan.ceilings(), calls=plan.scale.calls)

        yield Case("steps", name, run)


def _training(plan: Plan) -> Iterator[Case]:
    trial = Trial(
        file=plan.config,
        folder=plan.folder / TRAINING,
        platform=plan.platform,
        devices=plan.devices,
        **plan.scale.trial,
    )
    yield Case(TRAINING, "the first losses beside a CPU's", trial.compare_first_steps, trial.seconds)
    resume = lambda: trial.kill_and_resume(plan.ceilings())
    yield Case(TRAINING, "a kill and a resume", resume, 2 * trial.seconds)


STAGES: dict[str, Callable[[Plan], Iterator[Case]]] = {
    CEILINGS: _ceilings,
    "parity": _parity,
    "determinism": _determinism,
    "times": _times,
    "tiles": _tiles,
    "steps": _steps,
    TRAINING: _training,
}
"""The stages in their order, and what makes the cases of each."""
