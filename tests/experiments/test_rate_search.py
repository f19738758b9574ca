"""The search for learning rates: on made-up results, and which try is the best."""

import json

import pytest
import rate_search

from bam_jax.experiments import experiment, jobs, runner
from bam_jax.system.errors import UserError

FILE = """
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.config import CONFIGS

def get_experiment():
    rows = [Row(f"a, keys, try {k}", str(CONFIGS / "quickstart.py"), {"optimizer.rate": r}, (100, 101), (Passkey((64,)),))
            for k, r in enumerate((0.1, 0.2))]
    return Experiment("t", tuple(rows))
"""
TRIES = {"a, keys": ({"optimizer.rate": 0.1}, {"optimizer.rate": 0.2})}


def test_the_worst_seed_counts(tmp_path, monkeypatch):
    path = tmp_path / "search.py"
    path.write_text(FILE)
    accuracies = iter([1.0, 0.2, 0.9, 0.8])
    for job in jobs.row_jobs(experiment.load(path)):
        common = {"length": 64, "n": 1, "step": 3000, "overrides": {}}
        keys = {"eval": "passkey", "depth": 0.0, "prompt": "toy", "seed": 100, "unit": "accuracy"}
        text = {"eval": "perplexity", "window": 64, "windows": [1.0], "unit": "perplexity", "value": 5.0}
        (tmp_path / job.name).mkdir()
        lines = [common | keys | {"value": next(accuracies)}, common | text]
        (tmp_path / job.name / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr(runner, "run", lambda *arguments: [])
    result = rate_search.search(path, TRIES, tmp_path, tmp_path / "out.json")
    assert result["rates"] == {"a, keys": {"optimizer.rate": 0.2}}
    assert [each["accuracy"] for each in result["found"]["a, keys"]] == [0.2, 0.8]
    assert json.loads((tmp_path / "out.json").read_text()) == result
    monkeypatch.setattr(runner, "run", lambda *arguments: ["failed"])
    with pytest.raises(UserError, match="the search is not complete"):
        rate_search.search(path, TRIES, tmp_path, tmp_path / "out.json")


def test_perplexity_decides_between_equal_accuracies_and_where_no_keys_are_planted():
    assert rate_search.best([{"accuracy": 0.5, "perplexity": 3.0}, {"accuracy": 0.5, "perplexity": 2.0}]) == 1
    assert rate_search.best([{"perplexity": 2.0}, {"perplexity": 2.0}, {"perplexity": 3.0}]) == 0
    assert rate_search.best([{"loss": 2.0}, {"loss": 1.0}]) == 1
    tries = [{"accuracy": a, "perplexity": p} for a, p in ((1.0, 3.0), (0.96, 2.0), (0.94, 1.0))]
    assert rate_search.best(tries) == 0 and rate_search.best(tries, enough=0.95) == 1
