"""Rankings by embeddings and by words, and their measures against trec_eval's."""

import json
import math
import unicodedata

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from bam_jax.data.tokenizers import ByteTokenizer
from bam_jax.retrieval.metrics import bootstrap_interval, measure
from bam_jax.retrieval.problem import load
from bam_jax.retrieval.ranking import BM25, K1, B, Best, normalised, rank_by_embeddings, rank_by_words, words
from bam_jax.system import console


@pytest.fixture
def problem(tmp_path):
    """A problem of texts and one query, whose positive is the first."""

    def make(query, texts):
        documents = [{"docid": f"d{n:02}", "text": text} for n, text in enumerate(texts)]
        queries = [{"query_id": "q", "query": query, "positive_passages": [{"docid": "d00"}]}]
        for name, each in (("corpus", documents), ("queries", queries)):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in each))
        return load(f"{tmp_path}/corpus.jsonl", f"{tmp_path}/queries.jsonl")

    return make


@pytest.fixture
def bar():
    with console.progress(1, unit="document", label="test", show=False) as bar:
        yield bar


class Rounding:
    """An embedder that draws a vector for each text, and whose every call rounds otherwise."""

    tokenizer, width, calls = ByteTokenizer(), 768, 0

    def check_length(self, length):
        pass

    def embed_further(self, ids, vectors, before, length):
        self.calls += 1
        drawn = np.stack([np.random.default_rng(text).normal(size=self.width) for text in ids]).astype(np.float32)
        return drawn * np.float32(1 + 1e-3 * self.calls) + self.calls


@pytest.mark.parametrize("size", [11, 4])
def test_documents_that_are_the_same_tie_however_their_batch_rounds(problem, bar, size):
    made = problem("query", [*["same", "other", "same"] * 3, "last", "other"])
    found = rank_by_embeddings(made, Rounding(), [3, 9], bar, folder=None, k=11, size=size)
    for best in found.values():
        scores = dict(best.ranking(0))
        same, other = ({scores[f"d{n:02}"] for n in numbers} for numbers in ((0, 2, 3, 5, 6, 8), (1, 4, 7, 10)))
        assert len(same) == len(other) == 1 and len(set(scores.values())) == 3
        assert best.names(0) == sorted(scores, key=lambda name: (scores[name], name), reverse=True)
    assert len(made.repeated) == 2


class Plain(ByteTokenizer):
    """A tokenizer that knows no accents and sets points apart, as WordPiece does."""

    def encode(self, text):
        return super().encode(unicodedata.normalize("NFD", text).encode("ascii", "ignore").decode().replace(".", " . "))


def test_queries_are_the_words_of_the_tokenizer_within_the_length(problem, bar):
    made = problem("Café_x zebra", ["the CAFÉ_X", "a zebra", "nothing"])
    found = rank_by_words(made, Plain(), [6, 12], bar, k=3)
    assert [found[12].ranking(0)[n][0] for n in range(2)] == ["d01", "d00"] and found[12].ranking(0)[1][1] > 0
    assert all(score == 0 for _, score in found[6].ranking(0)), "d00 is cut before the word, the query before zebra"


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


def slow(query, document, documents):
    mean = sum(map(len, documents)) / len(documents)
    score = 0.0
    for word in query:
        n, f = sum(word in other for other in documents), document.count(word)
        idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
        score += idf * f * (K1 + 1) / (f + K1 * (1 - B + B * len(document) / mean)) if f else 0.0
    return score


def test_scores_of_bm25_are_the_formulas(rng):
    pick = lambda size: [f"w{n}" for n in rng.integers(0, 12, size)]
    documents = [pick(size) for size in (9, 0, 30, 4, 17)]
    queries = [["w0", "w3", "w3"], pick(5), ["unknown"], []]
    made = BM25(queries)
    made.add(documents[:2])
    made.add(documents[2:])
    found = np.concatenate([made.scores(0, 3), made.scores(3, 5)], axis=1)
    expected = [[slow(query, document, documents) for document in documents] for query in queries]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    made = BM25([words("What?")])
    made.add([[], []])
    assert made.scores(0, 2).tolist() == [[0, 0]], "documents without words"


def trec_eval(scores, grades):
    """nDCG@10, recall@100 and MRR@10; 0 where nothing is judged, for which the library returns nothing."""
    if not grades:
        return [0.0, 0.0, 0.0]
    measures = pytrec_eval.RelevanceEvaluator({"q": grades}, {"ndcg_cut.10", "recall.100", "recip_rank"})
    whole = measures.evaluate({"q": scores})["q"]
    best = dict(sorted(scores.items(), key=lambda item: (item[1], item[0]), reverse=True)[:10])
    return [whole["ndcg_cut_10"], whole["recall_100"], measures.evaluate({"q": best})["q"]["recip_rank"]]


def test_rankings_with_ties_are_measured_as_trec_eval_does(rng):
    for _ in range(300):
        names = [f"{'dD'[rng.integers(2)]}{number}" for number in rng.permutation(int(rng.integers(1, 150)))]
        scores = {name: float(rng.integers(0, 8)) / 4 - 1 for name in names}
        # A few judged ones are in no ranking.
        grades = {name: int(rng.integers(-1, 4)) for name in [*names, "absent", "é"] if rng.random() < 0.2}
        best = Best(1, names, 100)
        for first in range(0, len(names), 37):
            best.add(first, np.array([[scores[name] for name in names[first : first + 37]]], np.float32))
        ours = [values.item() for values in measure([best.names(0)], [grades])]
        np.testing.assert_allclose(ours, trec_eval(scores, grades), rtol=0, atol=1e-11)


def test_the_bootstrap_covers_the_mean_of_other_queries():
    values = np.random.default_rng(1).random(200)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / math.sqrt(200)
    assert [low, high] == pytest.approx([values.mean() - half, values.mean() + half], abs=0.01)
    assert bootstrap_interval(values) == (low, high), "always the same"
    assert bootstrap_interval(np.array([0.5])) == (0.5, 0.5)
    assert bootstrap_interval(np.zeros(5)) == (0, 0)
