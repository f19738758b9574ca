"""Rows of a synthetic task."""

import numpy as np

from bam_jax.data.packing.base import Batch
from bam_jax.data.prepared.manifest import SPLITS
from bam_jax.data.tasks.registry import SYNTHETIC
from bam_jax.data.tasks.synthetic import HELD_OUT, TRAINING
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system.errors import UserError, nearest

STREAMS = dict(zip(SPLITS, (TRAINING, HELD_OUT), strict=True))


class Synthetic:
    """Rows that are made, not read; the loss is mainly that of the answers (`SyntheticTask.weights`).

    Args:
        task: its name.
        tokenizer: its ids are the symbols.
        context: tokens of a row.
        seed: of all rows.
        split: "train" or "held_out".
    """

    def __init__(self, task: str, tokenizer: Tokenizer, context: int, *, seed: int, split: str) -> None:
        if split not in STREAMS:
            raise UserError(f"unknown split {split!r}; {nearest(split, STREAMS)}")
        self._task = SYNTHETIC[task](tokenizer.size, context)
        self._context, self._seed, self._stream = context, seed, STREAMS[split]

    def take(self, numbers: np.ndarray) -> Batch:
        """See `RowSource`: tokens, targets, weights."""
        tokens = np.empty((len(numbers), self._context + 1), np.int32)
        weights = np.empty(tokens.shape, np.float32)
        for place, number in enumerate(numbers.tolist()):
            tokens[place] = self._task.row(self._seed, self._stream, self._context, number)
            weights[place] = self._task.weights(tokens[place])
        return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights[:, 1:]}
