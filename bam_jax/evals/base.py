"""What the evaluations share: what they are given, the cells of a table, and how many rows fit into memory."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bam_jax.config import Config, ModelConfig
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.models.transformer import Decoder
from bam_jax.system.errors import UserError


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained run, as an evaluation needs it.

    Args:
        decoder, tokenizer, config: its.
        held_out: gives the held-out text, [tokens] int32.
        memory: for activations, bytes.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    config: Config
    held_out: Callable[[], np.ndarray]
    memory: float


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """One number to find: the samples `first` ... `stop` - 1 of a length and a depth.

    Args:
        length: tokens of a sample.
        depth: of a passkey, 0 to 1; None where there is none.
        first, stop: numbers of the samples; those before `first` were measured earlier.
    """

    length: int
    depth: float | None
    first: int
    stop: int

    @property
    def n(self) -> int:
        """Samples to measure."""
        return self.stop - self.first


@dataclasses.dataclass(frozen=True)
class Plan:
    """Cells that are measured together.

    Args:
        identity: what tells their records from others of the same evaluation, such as the seed.
        wanted: samples by length and depth.
        measure: yields each cell with its results as soon as it is measured, shorter ones first.
        patience: lengths one after another at which nothing was right, after which longer ones are not measured; 0: all are.
    """

    identity: Mapping[str, Any]
    wanted: Mapping[tuple[int, float | None], int]
    measure: Callable[[Sequence[Cell]], Iterator[tuple[Cell, dict[str, Any]]]]
    patience: int = 0

    def given_up(self, records: Iterable[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
        """Lengths that are not to be measured any more, and the empty ones before them: what patience says of records.

        It is a function of what was measured and of what is wanted alone, so that it holds for a command that was killed, too.

        Args:
            records: of this plan, with their `length`, `n` and `value`.
        """
        wanted, found, right = Counter[int](), Counter[int](), Counter[int]()
        for (length, _), n in self.wanted.items():
            wanted[length] += n
        for record in records:
            found[record["length"]] += record["n"]
            right[record["length"]] += record["n"] * record["value"]
        empty: list[int] = []
        lengths = sorted(wanted)
        for length in lengths:
            empty = [*empty, length] if found[length] >= wanted[length] and not right[length] else []
            if self.patience and len(empty) == self.patience:
                return [each for each in lengths if each > length and found[each] < wanted[each]], empty
        return [], []


def option(default: int | str | None, help: str) -> Any:
    """A field of an evaluation's options, which is an argument of the command as well.

    Args:
        default: its value.
        help: what the command says of it.
    """
    return dataclasses.field(default=default, metadata={"help": help})


class Options:
    """What an evaluation can be asked besides the lengths: a base of dataclasses, whose numbers are more than 0.

    Raises:
        UserError: a number is not; 0 will do for a seed, for shots, and for the patience.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int | float):
                check_number(name, value, zero=name in ("seed", "shots", "patience"))


def check_number(name: str, value: float, *, zero: bool = False) -> None:
    """Raise UserError where an option is not more than 0.

    Args:
        name: of the option.
        value: its value.
        zero: whether 0 will do.
    """
    if not (value >= 0 if zero else value > 0):
        raise UserError(f"--{name}={value} must be {'0 or more' if zero else 'more than 0'}")


def rows_within(memory: float, length: int, config: ModelConfig, *, cached: bool = False) -> int:
    """How many rows of a length are computed at once, one at least.

    A forward pass keeps one layer's activations: about 8 vectors of the width and 3 of the hidden width for each
    token, in float32, whatever the number of layers. A cache keeps a key and a value of each layer as well.

    Args:
        memory: for activations, bytes.
        length: tokens of a row.
        config: the model's sizes.
        cached: whether there is a cache.

    >>> rows_within(2**31, 32_000, ModelConfig(width=64, hidden=128))
    18
    >>> rows_within(2**31, 32_000, ModelConfig(layers=12, width=64, heads=4, hidden=128), cached=True)
    6
    """
    floats = 8 * config.width + 3 * config.hidden
    if cached:
        floats += 2 * config.layers * config.width * (config.kv_heads or config.heads) // config.heads
    return max(1, int(memory // (4 * length * floats)))
