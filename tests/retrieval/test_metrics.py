"""The measures against trec_eval's, and against what their formulas say of simple rankings."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

from bam_jax.retrieval.metrics import bootstrap_interval, measure, ndcg, recall, reciprocal_rank
from bam_jax.retrieval.search import Best

HERE = Path(__file__).parent


def load(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


random_runs = load("random_runs")


def ours(scores, grades):
    names = list(scores)
    best = Best(1, names, 100)
    for first in range(0, len(names), 37):
        best.add(first, np.array([[scores[name] for name in names[first : first + 37]]], np.float32))
    return [values.item() for values in measure([best.names(0)], [grades])]


def test_a_thousand_runs_with_ties_are_measured_as_trec_eval_does():
    golden = json.loads((HERE / "trec_eval.json").read_text())
    found = [ours(*random_runs.random_run(n)) for n in range(random_runs.RUNS)]
    np.testing.assert_allclose(found, golden, rtol=0, atol=1e-11)


def test_the_golden_values_are_the_librarys(monkeypatch):
    pytest.importorskip("pytrec_eval")
    monkeypatch.syspath_prepend(HERE)
    golden = json.loads((HERE / "trec_eval.json").read_text())
    make = load("make_golden")
    found = [make.trec_eval(*random_runs.random_run(n)) for n in range(random_runs.RUNS)]
    np.testing.assert_allclose(found, golden, rtol=0, atol=1e-11)


def test_a_perfect_ranker_scores_one():
    grades = {f"d{n}": n for n in range(5)}
    assert [v.item() for v in measure([["d4", "d3", "d2", "d1", "d0", "x"]], [grades])] == [1, 1, 1]
    assert [v.item() for v in measure([["a"]], [{"a": 1}])] == [1, 1, 1], "of a corpus of one"


def test_a_reversed_ranker_scores_what_the_formula_says():
    gains = [0, 1, 2, 3]
    expected = sum(g / math.log2(i + 2) for i, g in enumerate(gains))
    best = sum(g / math.log2(i + 2) for i, g in enumerate(reversed(gains)))
    assert ndcg(gains, gains) == pytest.approx(expected / best)
    last = [0] * 10 + [1]
    assert (ndcg(last, [1]), recall(last, [1]), reciprocal_rank(last)) == (0, 1, 0), "beyond the cut"


def test_a_random_ranker_scores_what_chance_gives():
    rng, documents, queries = np.random.default_rng(0), 200, 4000
    names = [str(n) for n in range(documents)]
    ranked = [[names[n] for n in rng.permutation(documents)[:100]] for _ in range(queries)]
    found = measure(ranked, [{"7": 1}] * queries)
    discounts = sum(1 / math.log2(rank + 1) for rank in range(1, 11))
    chance = discounts / documents, 100 / documents, sum(1 / rank for rank in range(1, 11)) / documents
    for values, expected in zip(found, chance, strict=True):
        assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(queries)


def test_the_bootstrap_covers_the_mean_of_other_queries():
    rng = np.random.default_rng(1)
    values = rng.random(200)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / math.sqrt(200)
    assert low == pytest.approx(values.mean() - half, abs=0.01) and high == pytest.approx(
        values.mean() + half, abs=0.01
    )
    assert bootstrap_interval(values) == (low, high), "always the same"
    assert bootstrap_interval(np.array([0.5])) == (0.5, 0.5)
    assert bootstrap_interval(np.zeros(5)) == (0, 0)
