"""BM25: the ranking by words that every trained encoder is held against."""

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import sparse

K1, B = 1.2, 0.75
"""The constants that Lucene uses by default."""


def words(text: str) -> list[str]:
    """The words of a text in lower case, without stemming or stop words.

    >>> words("It's x_1, twice.")
    ['it', 's', 'x_1', 'twice']
    """
    return re.findall(r"\w+", text.lower())


class BM25:
    """Scores of documents for queries.

        score(q, d) = sum_{w in q} idf(w) f (K1 + 1) / (f + K1 (1 - B + B |d| / mean |d|)),   f = count of w in d
        idf(w) = log(1 + (N - n + 1/2) / (n + 1/2)),   n of the N documents have w

    Only counts of words that some query has are kept of a document.

    Args:
        queries: their words.

    Source: Robertson and Zaragoza 2009; the idf that is never negative is Lucene's.
    """

    def __init__(self, queries: Sequence[Sequence[str]]) -> None:
        self._known = {word: number for number, word in enumerate(dict.fromkeys(w for query in queries for w in query))}
        self._queries = self._counts(queries)
        self._parts: list[sparse.csr_array] = []
        self._lengths: list[int] = []

    def add(self, documents: Sequence[Sequence[str]]) -> None:
        """Takes documents, given as their words, behind those that were added before."""
        self._parts.append(self._counts(documents))
        self._lengths += map(len, documents)

    def scores(self, first: int, stop: int) -> np.ndarray:
        """The scores of some documents for every query, [queries, stop - first] float32."""
        counts = sparse.vstack(self._parts, format="csr")
        self._parts = [counts]
        found = np.bincount(counts.indices, minlength=len(self._known))
        idf = np.log1p((len(self._lengths) - found + 0.5) / (found + 0.5))
        lengths = np.array(self._lengths, np.float64)
        relative = lengths / (lengths.mean() or math.inf)
        chosen = counts[first:stop].tocoo()
        saturation = chosen.data + K1 * (1 - B + B * relative[first + chosen.row])
        weights = idf[chosen.col] * chosen.data * (K1 + 1) / saturation
        weighted = sparse.csr_array((weights, (chosen.row, chosen.col)), shape=chosen.shape)
        return (self._queries @ weighted.T).toarray().astype(np.float32)

    def _counts(self, texts: Sequence[Sequence[str]]) -> sparse.csr_array:
        """The number of times that each text has each known word, [texts, words] float64."""
        indices, data, ends = list[int](), list[int](), [0]
        for text in texts:
            for word, count in Counter(text).items():
                if word in self._known:
                    indices.append(self._known[word])
                    data.append(count)
            ends.append(len(indices))
        return sparse.csr_array((np.array(data, np.float64), indices, ends), shape=(len(texts), len(self._known)))
