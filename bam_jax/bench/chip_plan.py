"""The cases of `bench.accelerator` on a platform: which there are, how large, and in what order."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.attention import Tiling
from bam_jax.bench import chip_parity, chip_peaks, chip_times
from bam_jax.bench.chip_cases import Case
from bam_jax.bench.chip_peaks import Ceilings
from bam_jax.bench.chip_run import Trial
from bam_jax.bench.contenders import BIASES, OURS, PASSES, AttentionShape
from bam_jax.system.errors import UserError

CEILINGS = "ceilings"
"""The stage that comes first in any case: shares are of what it measures, where no data sheet is known."""

TRAINING = "training"
"""The stage of real trainings. They are processes of their own, and a device belongs to one process."""

VOCABULARY = 32768
"""Entries, as the Mistral tokenizer has them, whose files are not needed: the text comes in bytes."""

_LISTED = {"model.vocab": VOCABULARY, "data.tokenizer": "byte"}
_TINY = {
    **{"model.layers": 1, "model.width": 32, "model.heads": 2, "model.hidden": 32, "model.vocab": 512},
    **{"data.tokenizer": "byte", "context": 32, "batch": 4, "optimizer.accumulate": 1},
}


@dataclasses.dataclass(frozen=True)
class Scale:
    """The sizes of all cases.

    Args:
        product: side of the matrices and bytes of the copy that measure the ceilings.
        tokens: of a row whose attention is compared with the reference.
        widths: of heads.
        biases: of which parity is shown, the first so many; 0: all.
        masks: the same of masks.
        tiling: of parity: small tiles where rows are short, so that there are several.
        long: tokens of a row that is computed three times.
        lengths, batch_tokens: of the curve of times: tokens of rows, and of a batch of short ones.
        decode: tokens in the cache.
        every_bias: tokens of the row that is timed with every bias; 0: with none.
        tiles: queries and keys of tiles that are tried, for each platform.
        tile_length: tokens of a row of the search.
        repetitions: of timed contenders.
        memory: bytes of temporaries that a contender may take.
        encodings: of the models whose steps are timed.
        step: changes of the configuration for a step of training.
        calls: timed steps.
        trial: changes for the training, and the other fields of `Trial`.
    """

    product: tuple[int, int]
    tokens: int
    widths: tuple[int, ...]
    biases: int
    masks: int
    tiling: Tiling
    long: int
    lengths: tuple[int, ...]
    batch_tokens: int
    decode: tuple[int, ...]
    every_bias: int
    tiles: Mapping[str, Sequence[tuple[int, int]]]
    tile_length: int
    repetitions: int
    memory: float
    encodings: tuple[str, ...]
    step: Mapping[str, Any]
    calls: int
    trial: Mapping[str, Any]


_ENCODINGS = ("nope", "bam", "rope", "cable", "alibi", "bam_contextual", "t5", "kerple_log", "fox", "fire")
_SQUARES = {
    "gpu": tuple(itertools.product((128, 256, 512), (128, 256, 512))),
    "tpu": tuple(itertools.product((256, 512, 1024), (256, 512, 1024))),
    "cpu": tuple(itertools.product((64, 128, 256), (128, 256))),
}

CHIP = Scale(
    product=(8192, 2**31),
    tokens=700,
    widths=(64, 128, 48),
    biases=0,
    masks=0,
    tiling=Tiling(),
    long=4096,
    lengths=(8192, 2048, 32768, 512, 131072, 524288),
    batch_tokens=16384,
    decode=(32768, 524288, 4096),
    every_bias=8192,
    tiles=_SQUARES,
    tile_length=8192,
    repetitions=5,
    memory=24 * 2**30,
    encodings=_ENCODINGS,
    step={**_LISTED, "batch": 144, "optimizer.accumulate": 1},
    calls=5,
    trial={
        "changes": {**_LISTED, "batch": 144, "optimizer.accumulate": 1, "checkpoint_every": 50},
        **{"first_steps": 5, "first_batch": 8, "seconds": 150.0, "more_steps": 20},
    },
)
"""An accelerator."""

CPU = dataclasses.replace(
    CHIP,
    product=(2048, 2**28),
    tokens=200,
    widths=(32,),
    tiling=Tiling(block_q=64, block_k=64),
    long=1024,
    lengths=(2048, 512),
    batch_tokens=2048,
    decode=(32768,),
    every_bias=1024,
    tile_length=2048,
    repetitions=3,
    memory=2 * 2**30,
    encodings=_ENCODINGS[:5],
    step={**_LISTED, "context": 64, "batch": 2, "optimizer.accumulate": 1},
    calls=3,
    trial={
        "changes": {**_LISTED, "context": 64, "batch": 2, "optimizer.accumulate": 1, "checkpoint_every": 5},
        **{"first_steps": 3, "first_batch": 2, "seconds": 60.0, "more_steps": 3},
    },
)
"""A CPU, which a moderate size keeps busy."""

SHORT = dataclasses.replace(
    CPU,
    product=(256, 2**22),
    tokens=48,
    widths=(16,),
    biases=3,
    masks=1,
    tiling=Tiling(block_q=16, block_k=16),
    long=64,
    lengths=(64,),
    batch_tokens=64,
    decode=(128,),
    every_bias=0,
    tiles={platform: sizes[:1] for platform, sizes in _SQUARES.items()} | {"cpu": ((16, 16),)},
    tile_length=64,
    repetitions=1,
    encodings=_ENCODINGS[1:2],
    step=_TINY,
    calls=1,
    trial={
        "changes": {**_TINY, "checkpoint_every": 2},
        **{"first_steps": 2, "first_batch": 4, "seconds": 0.0, "more_steps": 1},
    },
)
"""Any machine, in about a minute."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be found out.

    Args:
        platform: "cpu", "gpu" or "tpu".
        scale: the sizes.
        config: file of the model that is trained.
        folder: for trainings.
        ceilings: gives those of the chip, once they are measured.
    """

    platform: str
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


def scale_of(platform: str, short: bool) -> Scale:
    """Choose the sizes.

    Args:
        platform: "cpu", "gpu" or "tpu".
        short: whether tiny ones will do.
    """
    return SHORT if short else CPU if platform == "cpu" else CHIP


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
    biases, masks = list(BIASES)[: scale.biases or None], list(chip_parity.MASKS)[: scale.masks or None]
    problems = [x for x in chip_parity.problems(scale.tokens, scale.widths) if x.bias in biases and x.mask in masks]
    own, *others = OURS[plan.platform]
    # The types of one problem follow each other: they share the reference's results.
    wanted = [(problem, own, dtype) for problem in problems for dtype in plan.dtypes]
    # What takes the kernels' place is one program for all masks and, on accelerators, above all for float32.
    first = [problem for problem in problems if problem.mask == masks[0]]
    wanted += [(problem, backend, "float32") for backend in others for problem in first]
    for problem, backend, dtype in wanted:
        name = f"{backend} {dtype} {problem.bias}, {problem.mask}, {problem.layout}"
        run = functools.partial(chip_parity.parity, problem, backend, dtype, scale.tiling)
        yield Case("parity", name, run)


_REPEATED = ("ggd", "cable", "t5", "fire", "contextual", "nope")
"""Biases of every kind: few parameters, coordinates, tables, shared parameters, both, none."""


def _determinism(plan: Plan) -> Iterator[Case]:
    count = len(_REPEATED) if plan.scale.biases == 0 else 1
    for bias in _REPEATED[:count]:
        problem = chip_parity.Problem(bias, "causal", "packed", plan.scale.long, plan.scale.widths[0])
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

    return Case("times", f"{shape.bias}, {of} tokens, {which}", run, 60.0 if shape.length >= 2**17 else 0.0)


def _times(plan: Plan) -> Iterator[Case]:
    scale, dtype = plan.scale, plan.dtypes[0]
    curve = chip_times.shapes_of_lengths(scale.lengths, scale.batch_tokens, dtype)
    cached = [AttentionShape(length, 1, dtype=dtype) for length in scale.decode]
    wanted = list(itertools.product(curve, PASSES))
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
    for width, bias in ((64, "ggd"), (128, "ggd"), (64, "cable")):
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
        if scale.biases:
            return


def _steps(plan: Plan) -> Iterator[Case]:
    for encoding in plan.scale.encodings:
        changes = {**plan.scale.step, "encoding": encoding, "ssmax": "off"}

        def run(changes: Mapping[str, Any] = changes) -> dict[str, Any]:
            return chip_times.time_step(plan.config, changes, plan.ceilings(), calls=plan.scale.calls)

        yield Case("steps", encoding, run)


def _training(plan: Plan) -> Iterator[Case]:
    trial = Trial(file=plan.config, folder=plan.folder / TRAINING, **plan.scale.trial)
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
