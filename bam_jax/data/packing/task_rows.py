"""Rows of the tasks: text with passkeys planted in it, and synthetic tasks."""

import numpy as np

from bam_jax.data.packing.concat import in_order, too_short
from bam_jax.data.packing.rows import Batch, Memo
from bam_jax.data.prepared.documents import Documents
from bam_jax.data.prepared.manifest import SPLITS
from bam_jax.data.tasks.passkey import plant
from bam_jax.data.tasks.synthetic import HELD_OUT, SYNTHETIC, TRAINING
from bam_jax.data.tokenizers import CharTokenizer, Tokenizer
from bam_jax.system.errors import UserError, nearest

_SPAWN_KEYS = {"train": (), "held_out": (1,)}  # of each split's random numbers


class Planted:
    """Random windows of the text, with keys planted in some (`passkey.plant`); a block of rows shares a random stream."""

    def __init__(
        self,
        documents: Documents,
        tokenizer: Tokenizer,
        context: int,
        *,
        block: int,
        fraction: float,
        answer_weight: float,
        seed: int,
        split: str,
    ) -> None:
        if not isinstance(tokenizer, CharTokenizer):
            raise UserError(f"the task 'passkey' needs the tokenizer 'char', not '{tokenizer.name}'")
        self._stream = in_order(documents)
        if len(self._stream) <= context:
            raise too_short(len(self._stream), context)
        self._tokenizer = tokenizer
        self._context, self._size, self._seed, self._key = context, block, seed, _SPAWN_KEYS[split]
        self._fraction, self._answer_weight = fraction, answer_weight
        self._block = Memo(self._make, size=2)  # a batch of a mixture may begin in one and end in the next

    def take(self, numbers: np.ndarray) -> Batch:
        tokens = np.empty((len(numbers), self._context + 1), np.int32)
        weights = np.empty(tokens.shape, np.float32)
        blocks = numbers // self._size
        for block in np.unique(blocks).tolist():
            here = blocks == block
            planted, weight = self._block(block)
            tokens[here], weights[here] = planted[numbers[here] % self._size], weight[numbers[here] % self._size]
        return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights[:, 1:]}

    def _make(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(np.random.SeedSequence([self._seed, block], spawn_key=self._key))
        starts = rng.integers(0, len(self._stream) - self._context, (self._size, 1))
        cuts = [self._stream.cut(start, start + self._context + 1) for start in starts.ravel().tolist()]
        return plant(
            np.stack(list(map(np.concatenate, cuts))),
            rng,
            self._tokenizer,
            fraction=self._fraction,
            answer_weight=self._answer_weight,
        )


STREAMS = dict(zip(SPLITS, (TRAINING, HELD_OUT), strict=True))


class Synthetic:
    """Rows that are made, not read; the loss is mainly that of the answers (`SyntheticTask.weights`)."""

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
