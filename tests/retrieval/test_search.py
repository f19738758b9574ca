"""Exact search against a sort of all documents."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bam_jax.retrieval.search import Best, normalised


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 12), st.integers(1, 9))
def test_the_best_are_those_of_a_sort_of_all(seed, documents, k, size):
    rng = np.random.default_rng(seed)
    names = [f"{rng.integers(100)}-{n}" for n in range(documents)]
    scores = rng.integers(0, 4, (3, documents)).astype(np.float32) / 3
    best = Best(3, names, k)
    for first in range(0, documents, size):
        best.add(first, scores[:, first : first + size])
    for query in range(3):
        order = sorted(zip(scores[query].tolist(), names, strict=True), reverse=True)[:k]
        assert best.ranking(query) == [(name, score) for score, name in order]


def test_vectors_have_length_one_or_none():
    vectors = normalised(np.array([[3e30, 4e30], [0, 0], [1e-30, 0]], np.float32))
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 0], [1, 0]], rtol=1e-6)
