"""BM25 against its formula, word by word."""

import math

import numpy as np

from bam_jax.retrieval.bm25 import BM25, K1, B, words


def slow(query, document, documents):
    mean = sum(map(len, documents)) / len(documents)
    score = 0.0
    for word in query:
        n, f = sum(word in other for other in documents), document.count(word)
        idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
        score += idf * f * (K1 + 1) / (f + K1 * (1 - B + B * len(document) / mean)) if f else 0.0
    return score


def test_scores_are_the_formulas(rng):
    vocabulary = [f"w{n}" for n in range(12)]
    pick = lambda size: [vocabulary[n] for n in rng.integers(0, 12, size)]
    documents = [pick(size) for size in (9, 0, 30, 4, 17)]
    queries = [["w0", "w3", "w3"], pick(5), ["unknown"], []]
    made = BM25(queries)
    made.add(documents[:2])
    made.add(documents[2:])
    found = np.concatenate([made.scores(0, 3), made.scores(3, 5)], axis=1)
    expected = [[slow(query, document, documents) for document in documents] for query in queries]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_documents_without_words_score_nothing():
    made = BM25([words("What?")])
    made.add([[], []])
    assert made.scores(0, 2).tolist() == [[0, 0]]
