"""Measures of a ranking as trec_eval computes them: nDCG@10, recall@100, MRR@10, and their intervals over queries."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

DEPTH = 100  # number of ranked documents that the measures consider
RESAMPLES, LEVEL = 2000, 0.95


def ndcg(gains: Sequence[int], judged: Sequence[int], k: int = 10) -> float:
    """The normalised discounted cumulative gain.

        sum_{i <= k} g_i / log2(i + 1), divided by the same sum of the best ranking;   0 where nothing is positive

    Source: Järvelin and Kekäläinen 2002; the gain is the grade itself, as in trec_eval.

    >>> round(ndcg([0, 1], [1]), 4)
    0.6309
    """
    best = _discounted(sorted(judged, reverse=True)[:k])
    return _discounted(gains[:k]) / best if best else 0.0


def _discounted(gains: Sequence[int]) -> float:
    discounts = np.log2(np.arange(len(gains)) + 2)
    return float((np.maximum(gains, 0) / discounts).sum())


def recall(gains: Sequence[int], judged: Sequence[int], k: int = DEPTH) -> float:
    """The share of all positives that are among the first k; 0 if there are no positives."""
    positives = sum(grade > 0 for grade in judged)
    return sum(grade > 0 for grade in gains[:k]) / positives if positives else 0.0


def reciprocal_rank(gains: Sequence[int], k: int = 10) -> float:
    """One divided by the rank of the first positive; 0 if it is not among the first k."""
    return next((1 / rank for rank, grade in enumerate(gains[:k], 1) if grade > 0), 0.0)


class Measures(NamedTuple):
    """The measures of each query, [queries] float64."""

    ndcg_10: np.ndarray
    recall_100: np.ndarray
    mrr_10: np.ndarray


TITLES = {"ndcg_10": "nDCG@10", "recall_100": "recall@100", "mrr_10": "MRR@10"}  # the measures as people write them


def measure(ranked: Sequence[Sequence[str]], grades: Sequence[Mapping[str, int]]) -> Measures:
    rows = []
    for names, known in zip(ranked, grades, strict=True):
        gains, judged = [known[name] if name in known else 0 for name in names], list(known.values())
        rows.append((ndcg(gains, judged), recall(gains, judged), reciprocal_rank(gains)))
    return Measures(*np.array(rows, np.float64).reshape(-1, 3).T)


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """The percentile bootstrap's 95% interval of the mean over queries, not over training seeds (Efron 1979)."""
    from scipy import stats  # takes two seconds to import, which every evaluation would pay for

    if len(values) < 2:
        return float(values[0]), float(values[0])
    options = {"n_resamples": RESAMPLES, "confidence_level": LEVEL, "method": "percentile", "batch": 100}
    found = stats.bootstrap((values,), np.mean, rng=np.random.default_rng(0), **options).confidence_interval
    return float(found.low), float(found.high)
