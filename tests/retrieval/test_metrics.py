"""The measures against trec_eval's, and against what their formulas say of simple rankings."""

import math

import numpy as np
import pytest
import pytrec_eval

from bam_jax.retrieval.metrics import bootstrap_interval, measure
from bam_jax.retrieval.ranking import Best


def random_run(seed):
    """The scores of some documents, with many ties, and the grades of some, by name; a few judged ones are in no ranking."""
    rng = np.random.default_rng(seed)
    names = [f"{'dD'[rng.integers(2)]}{number}" for number in rng.permutation(int(rng.integers(1, 150)))]
    scores = {name: float(rng.integers(0, 8)) / 4 - 1 for name in names}
    judged = [name for name in [*names, "absent", "é"] if rng.random() < 0.2]
    return scores, {name: int(rng.integers(-1, 4)) for name in judged}


def trec_eval(scores, grades):
    """nDCG@10, recall@100 and MRR@10; 0 where nothing is judged, for which the library returns nothing."""
    if not grades:
        return [0.0, 0.0, 0.0]
    measures = pytrec_eval.RelevanceEvaluator({"q": grades}, {"ndcg_cut.10", "recall.100", "recip_rank"})
    whole = measures.evaluate({"q": scores})["q"]
    best = dict(sorted(scores.items(), key=lambda item: (item[1], item[0]), reverse=True)[:10])
    return [whole["ndcg_cut_10"], whole["recall_100"], measures.evaluate({"q": best})["q"]["recip_rank"]]


def ours(scores, grades):
    names = list(scores)
    best = Best(1, names, 100)
    for first in range(0, len(names), 37):
        best.add(first, np.array([[scores[name] for name in names[first : first + 37]]], np.float32))
    return [values.item() for values in measure([best.names(0)], [grades])]


def test_random_runs_with_ties_are_measured_as_trec_eval_does():
    runs = [random_run(seed) for seed in range(300)]
    np.testing.assert_allclose([ours(*run) for run in runs], [trec_eval(*run) for run in runs], rtol=0, atol=1e-11)


def test_the_bootstrap_covers_the_mean_of_other_queries():
    rng = np.random.default_rng(1)
    values = rng.random(200)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / math.sqrt(200)
    assert [low, high] == pytest.approx([values.mean() - half, values.mean() + half], abs=0.01)
    assert bootstrap_interval(values) == (low, high), "always the same"
    assert bootstrap_interval(np.array([0.5])) == (0.5, 0.5)
    assert bootstrap_interval(np.zeros(5)) == (0, 0)
