"""Heads that find a passkey, against sums written out."""

import json
import math

import numpy as np
import pytest

from bam_jax import heads as heads_command
from bam_jax.analysis import retrieval_heads
from bam_jax.system import typed_json
from bam_jax.training import bundled


def test_weight_and_lead_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    scores, seen = rng.normal(0, 3, (2, 3, 9)).astype(np.float32), rng.random((1, 3, 9)) < 0.8
    holds = np.zeros((3, 9), bool)
    holds[0, 2] = holds[1, [4, 7]] = holds[2, 0] = True
    seen |= holds
    found = retrieval_heads.find(scores, seen, holds)
    for head, query in np.ndindex(2, 3):
        powers = np.exp(scores[head, query].astype(np.float64)) * seen[0, query]
        held, rest = powers[holds[query]].sum(), powers[~holds[query]].sum()
        others = (seen[0, query] & ~holds[query]).sum()
        assert found.weight[head, query] == pytest.approx(held / (held + rest), rel=1e-5)
        assert found.lead[head, query] == pytest.approx(math.log(held / (rest / others)), abs=1e-5)
        weight = 1 / (1 + others * math.exp(-found.lead[head, query]))
        assert found.weight[head, query] == pytest.approx(weight, rel=1e-4)


def test_a_key_beyond_the_window_is_unseen():
    """A record has no infinite number, which no reader of ours takes."""
    scores, holds = np.ones((1, 5, 9), np.float32), np.zeros((5, 9), bool)
    holds[:, 1] = True
    seen = np.broadcast_to(np.arange(9) >= 4, (1, 5, 9))
    found = retrieval_heads.find(scores, seen, holds)
    assert np.isneginf(found.lead).all()
    view = retrieval_heads.summarise(retrieval_heads.Found(np.asarray(found.weight), np.asarray(found.lead)))
    assert view == {"weight": 0.0, "lead": None}
    typed_json.parse(json.dumps(view), "a record")
    near = {"layer": 0, "head": 0, "length": 8, "keys": 9, "weight": 0.5, "lead": 2.0, "prompts": 1}
    text = retrieval_heads.to_text([near, near | {"length": 64, "keys": 65} | view])
    assert text.splitlines()[1].split() == ["0,", "0", "0.50,", "2.0", "0.00,", "unseen"]


def test_holders_are_wherever_the_whole_answer_stands():
    answer = np.array([4, 8, 2, 1, 3])
    tokens = np.concatenate([[9, *answer, 4, 8, 2, 9], answer, [4, 9], answer[:4]])  # the last four are the model's own
    held = retrieval_heads.holders(tokens, answer)
    assert [np.flatnonzero(row).tolist() for row in held] == [[1, 10], [2, 11], [3, 12], [4, 13], [5, 14]]


def test_the_model_in_the_box_has_one_head_that_finds_keys_at_every_length(capsys):
    records = retrieval_heads.measure("quickstart", [64, 512], prompts=2, progress=False)
    told = {"prompt": "toy", "seed": 1, "overrides": {}, "step": 3000, "prompts": 2}
    assert all(record | told == record and len(record["tokenizer"]) == 16 for record in records)
    by_head = {}
    for record in records:
        by_head.setdefault((record["layer"], record["head"]), []).append(record)
    assert [name for name, each in by_head.items() if all(record["weight"] > 0.5 for record in each)] == [(1, 0)]
    near, far = by_head[1, 0]
    assert near["keys"] == 64 and far["keys"] == 512 and far["lead"] - near["lead"] > math.log(512 / 64)
    heads_command.main(["--run=quickstart", "--passkey=64", "--prompts=2", "--no-progress"])
    head, *rows = (line.strip() for line in capsys.readouterr().out.splitlines())
    assert head.endswith("64 tokens") and any(row.startswith("1, 0") for row in rows)
    assert f"half needs {math.log(63):.1f}" in [" ".join(row.split()) for row in rows]
    assert not (bundled.FOLDER / "quickstart" / retrieval_heads.FILE).exists(), "the package was written into"
