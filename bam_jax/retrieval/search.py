"""Exact search: the documents of greatest score for each query, kept while the corpus goes by."""

from collections.abc import Sequence

import numpy as np


class Best:
    """The k best documents of each query among those that were added, in trec_eval's order.

    The greater score comes first and, of equal scores, the greater name. Memory is that of k scores a query and of a place
    for each document, whatever the size of the corpus.

    Args:
        queries: their number.
        ids: the names of all documents, each once.
        k: documents kept.
    """

    def __init__(self, queries: int, ids: Sequence[str], k: int) -> None:
        self._ids, self._k = ids, k
        self._scores = np.zeros((queries, 0), np.float32)
        self._numbers = np.zeros((queries, 0), np.int64)
        # Code points order names as strcmp orders their UTF-8, which trec_eval compares.
        self._place = np.empty(len(ids), np.int64)
        self._place[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))

    def add(self, first: int, scores: np.ndarray) -> None:
        """Considers documents that follow one another.

        Args:
            scores: [queries, documents] float32, finite.
        """
        numbers = np.broadcast_to(np.arange(first, first + scores.shape[1]), scores.shape)
        scores = np.concatenate([self._scores, scores], axis=1)
        numbers = np.concatenate([self._numbers, numbers], axis=1)
        kept = min(self._k, scores.shape[1])
        self._scores = np.empty((len(scores), kept), np.float32)
        self._numbers = np.empty((len(scores), kept), np.int64)
        for query, (row, names) in enumerate(zip(scores, numbers, strict=True)):
            # Ties at the last place that is kept are decided by names too: all of them go into the sort.
            least = np.partition(row, len(row) - kept)[len(row) - kept] if kept else 0.0
            among = np.flatnonzero(row >= least)
            order = among[np.lexsort((-self._place[names[among]], -row[among]))][:kept]
            self._scores[query], self._numbers[query] = row[order], names[order]

    def ranking(self, query: int) -> list[tuple[str, float]]:
        """The names of a query's best documents and their scores, best first."""
        names = [self._ids[number] for number in self._numbers[query]]
        return list(zip(names, self._scores[query].tolist(), strict=True))

    def names(self, query: int) -> list[str]:
        """The names alone; see `ranking`."""
        return [name for name, _ in self.ranking(query)]


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1, [n, E] float32, so that a product of two is their cosine; 0 stays 0 and is like nothing.

    Args:
        vectors: [n, E], finite.
    """
    # In float64: squares of what float32 holds may be more than it holds.
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
