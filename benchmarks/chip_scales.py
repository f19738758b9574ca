"""The sizes of the cases of `bench.accelerator`: on accelerators, on CPUs, and tiny ones."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from bam_jax.attention import Tiling
from benchmarks.attention_shapes import BIASES
from benchmarks.chip_problems import MASKS
from benchmarks.contenders import PASSES

VOCABULARY = 32768
"""Entries, as the Mistral tokenizer has them, whose files are not needed: the text comes in bytes."""

_BYTES = {
    **{"data.source": "stdlib", "data.tokenizer": "byte", "data.packing": "concat"},
    **{"model.vocab": VOCABULARY, "optimizer.accumulate": 1},
}
_TINY = {
    **_BYTES,
    **{"model.layers": 1, "model.width": 32, "model.heads": 2, "model.hidden": 32, "model.vocab": 512},
    **{"context": 32, "batch": 4},
}


@dataclasses.dataclass(frozen=True)
class Scale:
    """The sizes of all cases.

    Args:
        product: side of the matrices and bytes of the copy that measure the ceilings.
        tokens: of a row whose attention is compared with the reference.
        widths: of heads.
        biases, masks: of which parity is shown.
        tiling: of parity: small tiles where rows are short, so that there are several.
        repeated: biases with which a row is computed three times.
        long: tokens of that row.
        lengths, batch_tokens: of the curve of times: tokens of rows, and of a batch of short ones.
        passes: that are timed.
        decode: tokens in the cache.
        every_bias: tokens of the row that is timed with every bias; 0: with none.
        tiles: queries and keys of tiles that are tried, for each platform.
        tiled: head widths and biases of the search.
        tile_length: tokens of its row.
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
    biases: tuple[str, ...]
    masks: tuple[str, ...]
    repeated: tuple[str, ...]
    tiling: Tiling
    long: int
    lengths: tuple[int, ...]
    batch_tokens: int
    passes: Sequence[str]
    decode: tuple[int, ...]
    every_bias: int
    tiles: Mapping[str, Sequence[tuple[int, int]]]
    tiled: tuple[tuple[int, str], ...]
    tile_length: int
    repetitions: int
    memory: float
    encodings: tuple[str, ...]
    step: Mapping[str, Any]
    calls: int
    trial: Mapping[str, Any]


_ENCODINGS = ("nope", "bam", "rope", "cable", "alibi", "bam_contextual", "t5", "kerple_log", "fox")
_SIZES = {
    "gpu": ((256, 128), (128, 256), (256, 256), (128, 512)),  # of what is left out: the kernels' own are fixed
    "tpu": tuple(itertools.product((256, 512, 1024), (256, 512, 1024))),
    "cpu": tuple(itertools.product((64, 128, 256), (128, 256))),
}

CHIP = Scale(
    product=(8192, 2**31),
    tokens=700,
    widths=(64, 128, 48),
    biases=tuple(BIASES),
    masks=tuple(MASKS),
    repeated=("ggd", "cable", "t5", "fire", "contextual", "nope"),  # every kind of parameters and coordinates
    tiling=Tiling(),
    long=4096,
    lengths=(8192, 2048, 32768, 512, 131072, 524288),
    batch_tokens=16384,
    passes=PASSES,
    decode=(32768, 524288, 4096),
    every_bias=8192,
    tiles=_SIZES,
    tiled=((64, "ggd"), (128, "ggd"), (64, "cable")),
    tile_length=8192,
    repetitions=5,
    memory=24 * 2**30,
    encodings=_ENCODINGS,
    step={**_BYTES, "batch": 144},
    calls=5,
    trial={
        "changes": {**_BYTES, "batch": 144, "checkpoint_every": 50},
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
    step={**_BYTES, "context": 64, "batch": 2},
    calls=3,
    trial={
        "changes": {**_BYTES, "context": 64, "batch": 2, "checkpoint_every": 5},
        **{"first_steps": 3, "first_batch": 2, "seconds": 60.0, "more_steps": 3},
    },
)
"""A CPU, which a moderate size keeps busy."""

SHORT = dataclasses.replace(
    CPU,
    product=(256, 2**22),
    tokens=48,
    widths=(16,),
    biases=("ggd", "cable"),
    masks=("causal",),
    repeated=("ggd",),
    tiling=Tiling(block_q=16, block_k=16),
    long=64,
    lengths=(64,),
    batch_tokens=64,
    passes=PASSES[:1],  # both together are in the search of tiles
    decode=(128,),
    every_bias=0,
    tiles={platform: sizes[:1] for platform, sizes in _SIZES.items()} | {"cpu": ((16, 16),)},
    tiled=((16, "ggd"),),
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


def scale_of(platform: str, short: bool) -> Scale:
    """Choose the sizes.

    Args:
        platform: "cpu", "gpu" or "tpu".
        short: whether tiny ones will do.
    """
    return SHORT if short else CPU if platform == "cpu" else CHIP
