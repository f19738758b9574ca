"""Ranks a corpus for each query, by a model or by words, at several lengths in one pass over the corpus."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from bam_jax.data.tokenizers import Tokenizer
from bam_jax.retrieval.embedding import POOLS, Embedder, Reader, embed_corpus, tokenise
from bam_jax.retrieval.problem import PIECE, Document, Problem, text_hash
from bam_jax.system import console

K1, B = 1.2, 0.75  # the constants that Lucene uses by default


class Best:
    """The k best documents of each query so far, in trec_eval's order: by score, then by name, both descending."""

    def __init__(self, queries: int, ids: Sequence[str], k: int) -> None:
        self._ids, self._k = ids, k
        self._scores = np.zeros((queries, 0), np.float32)
        self._numbers = np.zeros((queries, 0), np.int64)
        # Code points give the same order as strcmp of UTF-8, which trec_eval uses.
        self._place = np.empty(len(ids), np.int64)
        self._place[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))

    def add(self, first: int, scores: np.ndarray) -> None:
        """Adds consecutive documents by their finite scores [queries, documents] float32."""
        numbers = np.broadcast_to(np.arange(first, first + scores.shape[1]), scores.shape)
        scores = np.concatenate([self._scores, scores], axis=1)
        numbers = np.concatenate([self._numbers, numbers], axis=1)
        kept = min(self._k, scores.shape[1])
        self._scores = np.empty((len(scores), kept), np.float32)
        self._numbers = np.empty((len(scores), kept), np.int64)
        for query, (row, names) in enumerate(zip(scores, numbers, strict=True)):
            # Names also break ties at the last kept place, so all tied documents are sorted.
            least = np.partition(row, len(row) - kept)[len(row) - kept] if kept else 0.0
            among = np.flatnonzero(row >= least)
            order = among[np.lexsort((-self._place[names[among]], -row[among]))][:kept]
            self._scores[query], self._numbers[query] = row[order], names[order]

    def ranking(self, query: int) -> list[tuple[str, float]]:
        """The names of a query's best documents and their scores, best first."""
        names = [self._ids[number] for number in self._numbers[query]]
        return list(zip(names, self._scores[query].tolist(), strict=True))

    def names(self, query: int) -> list[str]:
        return [name for name, _ in self.ranking(query)]


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Vectors [n, E] scaled to length 1, float32, so that a product of two is their cosine; 0 stays 0, with cosine 0."""
    # In float64, because the squares of float32 numbers may overflow float32.
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


WORDS = "bm25"
SCORERS = (*POOLS, WORDS)  # the model's embeddings, the averages of its token embeddings, or words alone


def rank(
    problem: Problem,
    reader: Reader,
    scorer: str,
    lengths: Sequence[int],
    bar: console.Bar,
    *,
    folder: Path | None,
    k: int,
) -> dict[int, Best]:
    if scorer == WORDS:
        return rank_by_words(problem, reader.tokenizer, lengths, bar, k=k)
    return rank_by_embeddings(problem, Embedder(reader, scorer), lengths, bar, folder=folder, k=k)


def rank_by_embeddings(
    problem: Problem,
    embedder: Embedder,
    lengths: Sequence[int],
    bar: console.Bar,
    *,
    folder: Path | None,
    k: int,
    size: int = PIECE,
) -> dict[int, Best]:
    """Ranks documents by the cosine of their embedding and a query's, with both texts cut at each length.

    Documents of the same text tie: all use the embedding of the first, since another batch shape rounds differently.
    """
    for length in lengths:
        embedder.check_length(length)
    asked = tokenise(embedder.tokenizer, [query.text for query in problem.queries])
    queries, vectors = dict[int, np.ndarray](), np.zeros((len(asked), embedder.width), np.float32)
    for before, length in itertools.pairwise([0, *lengths]):
        vectors = embedder.embed_further(asked, vectors, before, length)
        queries[length] = normalised(vectors).astype(np.float64)
    best = {length: Best(len(asked), problem.ids, k) for length in lengths}
    first = {length: dict[bytes, np.ndarray]() for length in lengths}
    for length, piece, vectors in embed_corpus(embedder, problem.pieces(size), lengths, folder):
        vectors = _lend(vectors, piece.documents, problem.repeated, first[length])
        # Rounded from float64, because float32 sums depend on the place in a batch, and equal documents would not tie.
        scores = (queries[length] @ normalised(vectors).astype(np.float64).T).astype(np.float32)
        best[length].add(piece.first, scores)
        bar.update(len(vectors))
    return best


def _lend(
    vectors: np.ndarray, documents: Sequence[Document], repeated: Collection[bytes], first: dict[bytes, np.ndarray]
) -> np.ndarray:
    """The embeddings, with those of repeated texts replaced by that of the first one, which `first` keeps."""
    vectors = vectors.copy()
    for row, document in enumerate(documents if repeated else ()):
        if (text := text_hash(document.text)) in repeated:
            vectors[row] = first.setdefault(text, vectors[row].copy())
    return vectors


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

    Only the counts of words that occur in queries are kept.

    Source: Robertson and Zaragoza 2009; the idf that is never negative is Lucene's.
    """

    def __init__(self, queries: Sequence[Sequence[str]]) -> None:
        self._known = {word: number for number, word in enumerate(dict.fromkeys(w for query in queries for w in query))}
        self._queries = self._counts(queries)
        self._parts: list[sparse.csr_array] = []
        self._lengths: list[int] = []

    def add(self, documents: Sequence[Sequence[str]]) -> None:
        """Appends documents, given as their words."""
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
        """The count of each known word in each text, [texts, words] float64."""
        indices, data, ends = list[int](), list[int](), [0]
        for text in texts:
            for word, count in Counter(text).items():
                if word in self._known:
                    indices.append(self._known[word])
                    data.append(count)
            ends.append(len(indices))
        return sparse.csr_array((np.array(data, np.float64), indices, ends), shape=(len(texts), len(self._known)))


def rank_by_words(
    problem: Problem, tokenizer: Tokenizer, lengths: Sequence[int], bar: console.Bar, *, k: int, size: int = PIECE
) -> dict[int, Best]:
    """Ranks documents by BM25 over the words in the first tokens of documents and queries."""

    def cut(texts: Sequence[np.ndarray], length: int) -> list[list[str]]:
        return [words(tokenizer.decode(text[:length])) for text in texts]

    queries = tokenizer.encode_batch([query.text for query in problem.queries])
    counts = {length: BM25(cut(queries, length)) for length in lengths}
    for piece in problem.pieces(size):
        ids = tokenizer.encode_batch([document.text for document in piece.documents])
        for length in lengths:
            counts[length].add(cut(ids, length))
            bar.update(len(ids))
    best = {length: Best(len(queries), problem.ids, k) for length in lengths}
    for length in lengths:
        for first in range(0, len(problem.ids), size):
            scores = counts[length].scores(first, min(first + size, len(problem.ids)))
            best[length].add(first, scores)
    return best
