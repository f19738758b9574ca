"""The measurements of an evaluation: the run, the samples, and the rows that fit into memory."""

import dataclasses
import functools
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config, ModelConfig
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.models.transformer import Decoder
from bam_jax.retrieval.embedding import Reader
from bam_jax.system.errors import UserError


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained run, as an evaluation needs it.

    Args:
        config: of the run, with the overrides of the evaluation.
        held_out: returns the held-out text, [tokens] int32.
        memory: for activations, bytes.
        folder: of the run, where an evaluation may store intermediate results in case it is killed; None: there is none.
        progress: see `console.progress`; for work before the first record.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    config: Config
    held_out: Callable[[], np.ndarray]
    memory: float
    folder: Path | None = None
    progress: bool | None = False

    def reader(self) -> Reader:
        """An embedder that batches texts to fit in memory."""
        rows = functools.partial(rows_within, self.memory, config=self.config.model)
        return Reader(self.decoder, self.tokenizer, rows, configs.to_json(self.config))


@dataclasses.dataclass(frozen=True, order=True)
class SampleRange:
    """The samples `first` ... `stop` - 1 of a length and, for a passkey, a depth from 0 to 1."""

    length: int
    depth: float | None
    first: int
    stop: int

    @property
    def n(self) -> int:
        return self.stop - self.first


type Results = Iterator[tuple[SampleRange, dict[str, Any]]]
"""Samples with the fields of their record, as soon as they are measured."""


type Wanted = Mapping[tuple[int, float | None], int]
"""Numbers of samples by length and depth."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Samples that are measured together.

    Args:
        identity: the fields that identify their records among those of the same evaluation, such as the seed.
        measure: yields results, shorter samples first. It is advanced once more after the last result is written.
        patience: consecutive lengths without a correct answer after which longer ones are skipped; 0: none is.
    """

    identity: Mapping[str, Any]
    wanted: Wanted
    measure: Callable[[Sequence[SampleRange]], Results]
    patience: int = 0

    def left_out(self, records: Iterable[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
        """The lengths that patience skips, and the empty ones before them.

        They depend only on the records and `wanted`, so that a resumed command skips the same ones.
        """
        wanted, measured, right = Counter[int](), Counter[int](), Counter[int]()
        for (length, _), n in self.wanted.items():
            wanted[length] += n
        for record in records:
            measured[record["length"]] += record["n"]
            right[record["length"]] += record["n"] * record["value"]
        empty: list[int] = []
        lengths = sorted(wanted)
        for length in lengths:
            if measured[length] >= wanted[length] and not right[length]:
                empty.append(length)
            else:
                empty = []
            if self.patience and len(empty) == self.patience:
                longer = [other for other in lengths if other > length and measured[other] < wanted[other]]
                return longer, empty
        return [], []


def hash_tokens(stream: np.ndarray) -> str:
    """Sixteen hex digits of token ids [tokens]."""
    return hashlib.sha256(stream.astype("<i4").tobytes()).hexdigest()[:16]


def check_memory(memory: float) -> None:
    """Raise UserError if memory is not a finite number of GiB above 0."""
    if not 0 < memory < math.inf:  # NaN fails as well
        raise UserError(f"--memory={memory} must be a number of GiB above 0, such as 2")


def rows_within(memory: float, length: int, config: ModelConfig, *, cached: bool = False) -> int:
    """The number of rows of a length that are computed at once, at least one.

    A forward pass keeps one layer's activations: about 8 vectors of the width and 3 of the hidden width for each
    token, in float32, whatever the number of layers. A cache keeps a key and a value of each layer as well.

    >>> rows_within(2**31, 32_000, ModelConfig(width=64, hidden=128))
    18
    >>> rows_within(2**31, 32_000, ModelConfig(layers=12, width=64, heads=4, hidden=128), cached=True)
    6
    """
    floats = 8 * config.width + 3 * config.hidden
    if cached:
        floats += 2 * config.layers * config.head_width * (config.kv_heads or config.heads)
    return max(1, int(memory // (4 * length * floats)))
