"""Rows of the tasks (planted passkeys, masked tokens, triplets of texts, synthetic tasks), and mixtures of several tasks."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from bam_jax.config.sections import TRIPLET
from bam_jax.data.packing.concat import in_order, too_short
from bam_jax.data.packing.rows import Batch, Memo, RowSource, Shuffle
from bam_jax.data.prepared.documents import Documents
from bam_jax.data.prepared.manifest import SPLITS
from bam_jax.data.tasks.passkey import plant
from bam_jax.data.tasks.synthetic import HELD_OUT, SYNTHETIC, TRAINING
from bam_jax.data.tokenizers import CharTokenizer, Tokenizer
from bam_jax.data.tokenizers.interface import cut
from bam_jax.system.errors import UserError, nearest

_SPAWN_KEYS = {"train": (), "held_out": (1,)}  # of each split's random numbers
STREAMS = dict(zip(SPLITS, (TRAINING, HELD_OUT), strict=True))


@dataclasses.dataclass(eq=False)
class Planted:
    """Random windows of the text, with keys planted in some (`passkey.plant`); a block of rows shares a random stream."""

    documents: Documents
    tokenizer: Tokenizer
    context: int
    _: dataclasses.KW_ONLY
    block: int
    fraction: float
    answer_weight: float
    seed: int
    split: str

    def __post_init__(self) -> None:
        if not isinstance(self.tokenizer, CharTokenizer):
            raise UserError(f"the task 'passkey' needs the tokenizer 'char', not '{self.tokenizer.name}'")
        self._stream = in_order(self.documents)
        if len(self._stream) <= self.context:
            raise too_short(len(self._stream), self.context)
        self._block = Memo(self._make, size=2)  # a batch of a mixture may begin in one and end in the next

    def take(self, numbers: np.ndarray) -> Batch:
        tokens = np.empty((len(numbers), self.context + 1), np.int32)
        weights = np.empty(tokens.shape, np.float32)
        blocks, rows = np.divmod(numbers, self.block)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            planted, weight = self._block(block)
            tokens[here], weights[here] = planted[rows[here]], weight[rows[here]]
        return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights[:, 1:]}

    def _make(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(self.tokenizer, CharTokenizer)
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, block], spawn_key=_SPAWN_KEYS[self.split]))
        starts = rng.integers(0, len(self._stream) - self.context, (self.block, 1)).ravel().tolist()
        windows = np.stack([np.concatenate(self._stream.cut(start, start + self.context + 1)) for start in starts])
        return plant(windows, rng, self.tokenizer, fraction=self.fraction, answer_weight=self.answer_weight)


class Synthetic:
    """Rows of a synthetic task; the loss is mainly that of the answers (`SyntheticTask.weights`)."""

    def __init__(self, task: str, tokenizer: Tokenizer, context: int, *, seed: int, split: str) -> None:
        if split not in STREAMS:
            raise UserError(f"unknown split {split!r}; {nearest(split, STREAMS)}")
        self._task = SYNTHETIC[task](tokenizer.size, context)
        self._context, self._seed, self._stream = context, seed, STREAMS[split]

    def take(self, numbers: np.ndarray) -> Batch:
        tokens = np.empty((len(numbers), self._context + 1), np.int32)
        weights = np.empty(tokens.shape, np.float32)
        for place, number in enumerate(numbers.tolist()):
            tokens[place] = self._task.row(self._seed, self._stream, self._context, number)
            weights[place] = self._task.weights(tokens[place])
        return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights[:, 1:]}


class Masked:
    """Masked language modelling (Devlin et al. 2019, section 3.1) of a fraction of the tokens: 80% masked, 10% random, 10% kept.

    Special tokens and padding are neither masked nor inserted. The changes to a row depend only on the seed and its number.
    """

    def __init__(self, rows: RowSource, tokenizer: Tokenizer, *, fraction: float, seed: int) -> None:
        if tokenizer.mask is None:
            raise UserError(
                f"tokenizer '{tokenizer.name}' has no mask token for the task 'masked'; give one that has, such as bert"
            )
        self._rows = rows
        self._mask = tokenizer.mask
        self._text = np.ones(tokenizer.size, bool)
        self._text[[*tokenizer.special]] = False
        self._fraction, self._seed = fraction, seed

    def take(self, numbers: np.ndarray) -> Batch:
        batch = self._rows.take(numbers)
        targets = batch["targets"]
        ordinary = np.flatnonzero(self._text).astype(np.int32)
        chance, other = np.empty(targets.shape), np.empty_like(targets)
        # Each row has its own random numbers, so it is the same in any batch, on any host.
        for row, number in enumerate(numbers.tolist()):
            rng = np.random.default_rng([self._seed, number])
            chance[row] = rng.random(targets.shape[1])
            other[row] = ordinary[rng.integers(0, len(ordinary), targets.shape[1])]
        chosen = (chance < self._fraction) & self._text[targets]
        if "segment" in batch:
            chosen &= batch["segment"] > 0
        kind = np.select([chance < 0.8 * self._fraction, chance < 0.9 * self._fraction], [0, 1], 2)
        tokens = np.select([chosen & (kind == 0), chosen & (kind == 1)], [np.int32(self._mask), other], targets)
        return batch | {"tokens": tokens, "targets": targets, "weights": chosen.astype(np.float32)}


class Triplets:
    """Rows of three texts, padded with 0; a longer text is cut, but keeps its end token.

    Documents 3n, 3n + 1 and 3n + 2 are the texts of a triplet, and are in the same shard.
    """

    def __init__(self, documents: Documents, shuffle: Shuffle, context: int, *, eos: int | None) -> None:
        self._documents, self._shuffle = documents, shuffle
        self._context, self._eos = context, eos
        groups = range(len(shuffle))
        self._counts = np.array([len(shuffle.lengths(group)) // len(TRIPLET) for group in groups], np.int64)
        self._queries = Memo(self._order, size=2)

    def __len__(self) -> int:
        return int(self._counts.sum())

    def take(self, numbers: np.ndarray) -> Batch:
        """See `RowSource`: query, positive, negative [R, T] int32, and the number of tokens of each, such as query_length [R]."""
        queries = np.empty(len(numbers), np.int64)
        for epoch, group, chosen, rows in self._shuffle.locate(numbers, self._counts):
            queries[chosen] = self._queries(epoch, group)[rows]
        batch: Batch = {}
        for offset, name in enumerate(TRIPLET):
            texts = [cut(text, self._context, self._eos) for text in self._documents.read(queries + offset)]
            batch[name] = np.zeros((len(texts), self._context), np.int32)
            batch[f"{name}_length"] = np.array([len(text) for text in texts], np.int32)
            for row, text in zip(batch[name], texts, strict=True):
                row[: len(text)] = text
        return batch

    def _order(self, epoch: int, group: int) -> np.ndarray:
        numbers, _ = self._shuffle.order(epoch, group)
        return numbers[numbers % len(TRIPLET) == 0]


def deal(numbers: np.ndarray, weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Assign the rows of a mixture to its parts, and number them within each part.

    Parts are split off one after the other. Of the first n rows that are left, floor(n w / W) belong to the next part, where w is
    its weight and W the sum of the weights that are left. Any n rows therefore contain n times a part's share, up to the number
    of parts. Ratios of weights are accurate to a millionth. For rows [R] int64, it returns the part [R] and the number within the
    part [R].

    >>> part, own = deal(np.arange(8), [3, 1])
    >>> part, own
    (array([1, 0, 0, 0, 1, 0, 0, 0]), array([0, 0, 1, 2, 1, 3, 4, 5]))
    """
    part, own = np.full(len(numbers), len(weights) - 1), np.empty(len(numbers), np.int64)
    left, number = np.arange(len(numbers)), numbers  # the rows not assigned yet, and their numbers among these
    for index in range(len(weights) - 1):
        share = Fraction(weights[index] / sum(weights[index:])).limit_denominator(10**6)
        period, place = np.divmod(number, share.denominator)  # separately, so that no product exceeds 64 bits
        before = place * share.numerator // share.denominator
        chosen = (place + 1) * share.numerator // share.denominator > before
        before += period * share.numerator
        part[left[chosen]], own[left[chosen]] = index, before[chosen]
        left, number = left[~chosen], (number - before)[~chosen]
    own[left] = number
    return part, own


class Mixture:
    """Rows of several kinds in one order (`deal`); each kind has its own epochs.

    Every row has the arrays of all kinds: a row without segments is a single document, one without positions counts from 0.
    """

    _FILLED: Mapping[str, Callable[[int], np.ndarray]] = {
        "segment": lambda context: np.ones(context, np.int32),
        "position": lambda context: np.arange(context, dtype=np.int32),
    }

    def __init__(self, parts: Mapping[str, tuple[float, RowSource]]) -> None:
        self._weights = [weight for weight, _ in parts.values()]
        self._rows = [rows for _, rows in parts.values()]
        first = {name: rows.take(np.zeros(0, np.int64)) for name, (_, rows) in parts.items()}
        self._empty = {key: values for batch in first.values() for key, values in batch.items()}
        for name, batch in first.items():
            lacking = self._empty.keys() - batch.keys() - self._FILLED.keys()
            if lacking:
                raise UserError(f"config.data.mixture.{name} gives no {min(lacking)}, and another of the mixture does")

    def take(self, numbers: np.ndarray) -> Batch:
        part, own = deal(numbers, self._weights)
        batch = {key: np.empty((len(numbers), *like.shape[1:]), like.dtype) for key, like in self._empty.items()}
        for index in np.unique(part).tolist():
            here = part == index
            found = self._rows[index].take(own[here])
            for key, values in batch.items():
                values[here] = found[key] if key in found else self._FILLED[key](values.shape[1])
        return batch
