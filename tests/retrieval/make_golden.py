"""Writes trec_eval.json, the measures of random runs as trec_eval computes them.

Needs the package pytrec-eval-terrier:  python tests/retrieval/make_golden.py
"""

import json
from pathlib import Path

from random_runs import RUNS, random_run


def trec_eval(scores, grades):
    """nDCG@10, recall@100 and MRR@10 of one run; 0 where nothing is judged, of which the library says nothing."""
    import pytrec_eval

    if not grades:
        return [0.0, 0.0, 0.0]
    best = dict(sorted(scores.items(), key=lambda item: (item[1], item[0]), reverse=True)[:10])
    ask = lambda run: pytrec_eval.RelevanceEvaluator(
        {"q": grades}, {"ndcg_cut.10", "recall.100", "recip_rank"}
    ).evaluate({"q": run})["q"]
    whole = ask(scores)
    return [whole["ndcg_cut_10"], whole["recall_100"], ask(best)["recip_rank"]]


if __name__ == "__main__":
    lines = ",\n".join(json.dumps([round(value, 12) for value in trec_eval(*random_run(n))]) for n in range(RUNS))
    Path(__file__).with_name("trec_eval.json").write_text(f"[\n{lines}\n]\n")
