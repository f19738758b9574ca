"""Synthetic tasks: rows of symbols that end with questions, whose answers are further up, among fillers.

A row has the same number of items (pairs of key and value, or symbols to copy) at any length; only the distance to the answers
grows. Each filler is the successor of the filler two before it. From fillers a model learns to attend to the previous token.
"""

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from bam_jax.system.errors import UserError

SHARE = 4  # at the training context, items take one part in so many of a row, fillers the rest
FILLERS = 8  # symbols that are placed between items
FILLER_WEIGHT = 0.2  # loss weight of a predictable filler; an answer has 1

TRAINING, HELD_OUT, ASKED = range(3)  # streams of random numbers: for training, its held-out rows, evaluation


@dataclasses.dataclass(frozen=True)
class Alphabet:
    """The ids of a vocabulary by their role: keys, as many values, fillers, a marker.

    >>> Alphabet.of(73)
    Alphabet(keys=range(0, 32), values=range(32, 64), fillers=range(64, 72), marker=72)
    """

    keys: range
    values: range
    fillers: range
    marker: int

    @classmethod
    def of(cls, vocabulary: int) -> "Alphabet":
        """The roles of the ids 0 ... vocabulary - 1."""
        each = (vocabulary - FILLERS - 1) // 2
        return cls(range(each), range(each, 2 * each), range(2 * each, 2 * each + FILLERS), 2 * each + FILLERS)


class SyntheticTask(abc.ABC):
    """A task with generated rows, each a pure function of seed, stream, length and number.

    To add a task, write a subclass, and add it to `KINDS` and its name to `SYNTHETIC` of `bam_jax.config.sections`.
    """

    name: ClassVar[str]
    cost: ClassVar[int]  # tokens that an item takes, its question and answer included

    def __init__(self, vocabulary: int, context: int) -> None:
        self.alphabet = Alphabet.of(vocabulary)
        self.items = context // (SHARE * self.cost)
        if not self.items:
            raise UserError(
                f"config.context={context} is too short for the task {self.name!r}; give {SHARE * self.cost} or more"
            )
        most = len(self.symbols())
        if self.items > most:
            raise UserError(
                f"config.context={context} makes {self.items} items of the task {self.name!r}, and {vocabulary} ids have "
                f"symbols for {most}; give a context below {SHARE * self.cost * (most + 1)}, or a tokenizer with more ids"
            )

    @abc.abstractmethod
    def symbols(self) -> range:
        """The symbols from which items are drawn; each item of a row has a different one."""

    @property
    @abc.abstractmethod
    def chance(self) -> float:
        """The share of answers that random guessing among all symbols finds."""

    @property
    @abc.abstractmethod
    def answers(self) -> np.ndarray:
        """The positions of a row's answers, [answers] int, ascending, counted from its end: -1 is its last token."""

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, length: int) -> np.ndarray:
        """A row, [length] int32."""

    def weights(self, row: np.ndarray) -> np.ndarray:
        """The loss weights of tokens as targets: 1 for answers, little for predictable fillers, 0 for unpredictable tokens."""
        filler = (row >= self.alphabet.fillers.start) & (row < self.alphabet.fillers.stop)
        weights = np.zeros(len(row), np.float32)
        weights[2:] = FILLER_WEIGHT * (filler[2:] & filler[:-2])
        weights[self.answers] = 1
        return weights

    def check(self, length: int) -> None:
        """Raise UserError if a model that reads `length` tokens would not read all items."""
        least = self.items * self.cost + 1
        if length < least:
            raise UserError(
                f"length {length} is too short for the {self.items} items of a row of the task {self.name!r}; "
                f"give {least} or more"
            )

    def row(self, seed: int, stream: int, length: int, number: int) -> np.ndarray:
        """The tokens that a model reads, and the one that it predicts last: [length + 1] int32."""
        # A spawn key separates streams whatever the other words are; a plain list of words would be padded with zeros.
        sequence = np.random.SeedSequence([seed, length, number], spawn_key=(stream,))
        return self.draw(np.random.default_rng(sequence), length + 1)


def scatter(rng: np.random.Generator, pieces: np.ndarray, alphabet: Alphabet, length: int) -> np.ndarray:
    """Two interleaved counters of fillers [length] int32, overwritten by pieces [pieces, width] in their order."""
    count, width = pieces.shape
    place = np.arange(length)
    count_from = rng.integers(0, FILLERS, 2)
    row = (alphabet.fillers.start + (count_from[place % 2] + place // 2) % FILLERS).astype(np.int32)
    # Sorted positions in the space that pieces leave free, each shifted by the pieces before it, so that pieces never overlap.
    starts = np.sort(rng.integers(0, length - count * width + 1, count)) + width * np.arange(count)
    row[starts[:, None] + np.arange(width)] = pieces
    return row


class Copy(SyntheticTask):
    """A marker and a string of different symbols among fillers, then both once more; the repeated symbols are answers.

    Source: Jelassi et al. 2024 (Repeat after me, arXiv 2402.01032); there the string fills the row.
    """

    name = "copy"
    cost = 2

    def symbols(self) -> range:
        return range(self.alphabet.values.stop)

    @property
    def chance(self) -> float:
        return 1 / len(self.symbols())

    @property
    def answers(self) -> np.ndarray:
        return np.arange(-self.items, 0)

    def draw(self, rng: np.random.Generator, length: int) -> np.ndarray:
        string = rng.choice(len(self.symbols()), self.items, replace=False)
        marked = np.concatenate([[self.alphabet.marker], string])
        before = scatter(rng, marked[None], self.alphabet, length - len(marked))
        return np.concatenate([before, marked], dtype=np.int32)


class Recall(SyntheticTask):
    """Pairs of key and value at random positions, and every key again at the end, in another order, each before its value.

    Source: Arora et al. 2023 (Zoology, arXiv 2312.04927); there the queries are spread over the row.
    """

    writes: ClassVar[int] = 1  # times that each key is written, each time with a value of its own; the last one counts
    name = "recall"
    cost = 4

    def symbols(self) -> range:
        return self.alphabet.keys

    @property
    def chance(self) -> float:
        return 1 / len(self.alphabet.values)

    @property
    def answers(self) -> np.ndarray:
        return np.arange(-2 * self.items, 0)[1::2]

    def draw(self, rng: np.random.Generator, length: int) -> np.ndarray:
        keys = self.alphabet.keys.start + rng.choice(len(self.alphabet.keys), self.items, replace=False)
        writes = rng.permutation(np.repeat(np.arange(self.items), self.writes))
        values = rng.integers(self.alphabet.values.start, self.alphabet.values.stop, len(writes), dtype=np.int32)
        last = np.empty_like(keys)
        last[writes] = values  # for equal indices the last one is kept
        pairs = np.stack([keys[writes], values], axis=1)
        order = rng.permutation(self.items)
        queries = np.stack([keys, last], axis=1)[order].ravel()
        return np.concatenate([scatter(rng, pairs, self.alphabet, length - len(queries)), queries], dtype=np.int32)


class RecallLast(Recall):
    """Recall with every key written three times, in any order: a model that finds any pair of a key is right once in three.

    The task is ours, after tasks that demonstrate forget gates: Lin et al. 2025 (FoX), CABLE section 3.
    """

    writes = 3
    name = "recall_last"
    cost = 8


KINDS: tuple[type[SyntheticTask], ...] = (Copy, Recall, RecallLast)
SYNTHETIC: dict[str, type[SyntheticTask]] = {kind.name: kind for kind in KINDS}
