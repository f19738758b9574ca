"""Triplets for contrastive training: a query, a text that answers it, one that does not."""

import numpy as np

from bam_jax.config.sections import TRIPLET
from bam_jax.data.packing.rows import Batch, Memo, Shuffle
from bam_jax.data.prepared.documents import Documents
from bam_jax.data.tokenizers.interface import cut


class Triplets:
    """Rows of three texts, padded with 0; a longer one is cut, and keeps its end token.

    Documents 3n, 3n + 1 and 3n + 2 are the texts of a triplet, and no shard cuts one.
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
        """See `RowSource`: query, positive, negative [R, T] int32, and the tokens of each, such as query_length [R]."""
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
