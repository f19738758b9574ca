"""The claims of encoders: the number in them that is counted."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from bam_jax.data import make_retrieval, tokenizers

CLAIMS = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "claims_encoders.py"))


@pytest.mark.full
def test_frequencies_alone_have_the_perplexity_that_the_condition_halves(tmp_path):
    make_retrieval.main(["--source=stdlib", "--vocab=2048", f"--out={tmp_path / 'made'}"])
    tokenizer = tokenizers.tokenizer(f"bpe:{tmp_path / 'made' / 'bpe.json'}")

    def ids(name):
        lines = (tmp_path / "made" / f"{name}.jsonl").read_text().splitlines()
        return tokenizer.encode_batch([json.loads(line)["text"] for line in lines])

    trained, tested = np.concatenate(ids("texts")), ids("corpus")
    counts = np.bincount(trained, minlength=tokenizer.size) + 1.0
    perplexity = np.exp(-np.log(counts / counts.sum())[np.concatenate(tested)].mean())
    assert perplexity == pytest.approx(CLAIMS["WITHOUT_CONTEXT"], rel=0.05)  # other Pythons have other documentation
    assert min(map(len, tested)) > 2048, "documents are shorter than the longest length"
