"""The claims of encoders: the number in them that is counted."""

import json

import numpy as np
import pytest

from bam_jax.data import make_retrieval, tokenizers

WITHOUT_CONTEXT, SHOWN_ALONE = 658.0, 379.0
"""Perplexities of masked tokens in experiments/claims/encoders.toml: by frequencies, and where the token itself is shown."""


def shown_alone(frequency, tested):
    """The perplexity by Bayes' rule of what stands in a token's place, and nothing around it: see `data/packing/task_rows.py`."""
    kept = changed = 0.1
    shown = kept * frequency + changed / len(frequency)  # how often each token stands where one is to be foretold
    hidden = -np.log(frequency)
    as_it_was = -np.log(frequency * (kept + changed / len(frequency)) / shown)
    another = -np.log(frequency * changed / len(frequency)) + np.log(shown).mean()
    return np.exp((0.8 * hidden + kept * as_it_was + changed * another)[tested].mean())


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
    assert perplexity == pytest.approx(WITHOUT_CONTEXT, rel=0.05)  # other Pythons have other documentation
    assert shown_alone(counts / counts.sum(), np.concatenate(tested)) == pytest.approx(SHOWN_ALONE, rel=0.05)
    assert min(map(len, tested)) > 2048, "documents are shorter than the longest length"
