"""The worth of a passage's first occurrence: samples that differ in it alone, and models that do or do not copy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import evaluate
from bam_jax.config import ModelConfig
from bam_jax.convert import __main__ as convert
from bam_jax.data.tokenizers import CharTokenizer
from bam_jax.evals import copying, passkey, records
from bam_jax.evals.plan import SampleRange

CHAR = CharTokenizer()
STREAM = np.random.default_rng(0).integers(0, 60, 5000).astype(np.int32)
LENGTH, PASSAGE = 48, 8
PROMPTS = passkey.toy(STREAM, CHAR, seed=3)
MAKERS = {
    **{
        task: lambda length, number, task=task: copying.passages(STREAM, task, PASSAGE, 3, length, number)
        for task in ("text", "random")
    },
    "passkey": lambda length, number: copying.keys(PROMPTS, CHAR.digits, length, number),
}


class Copier(nnx.Module):
    """A model that is sure of the token that stands a given distance back."""

    def __init__(self, back):
        self.config, self.back, self.head = ModelConfig(), back, nnx.Param(jnp.zeros(3))

    def hidden(self, tokens):
        return jax.nn.one_hot(jnp.roll(tokens, self.back - 1, axis=1), CHAR.size), None

    def unembedding(self, vectors):
        return vectors, 20.0 * jnp.eye(CHAR.size), None


def measured(decoder, task, n=6, memory=2.0**30):
    ((_, result),) = copying.measure(decoder, [SampleRange(LENGTH, None, 0, n)], make=MAKERS[task], memory=memory)
    return result


@pytest.mark.parametrize("task", MAKERS)
def test_the_samples_differ_in_the_first_passage_alone(task):
    seen = []
    for number in range(20):
        copied, without, size = MAKERS[task](LENGTH, number)
        assert len(copied) == len(without) == LENGTH
        apart = np.flatnonzero(copied != without)
        assert 0 < len(apart) <= size and apart.max() <= size
        start = apart.min() if task == "passkey" else 0
        np.testing.assert_array_equal(copied[start : start + size], copied[-size:])
        seen.append(copied.tobytes())
    assert len({*seen}) == 20
    assert task != "passkey" or len(apart) == size, "another key in every digit"


@pytest.mark.parametrize(("task", "back"), [("text", LENGTH - PASSAGE), ("random", LENGTH - PASSAGE), ("passkey", 42)])
def test_a_model_that_copies_gains_and_one_that_guesses_does_not(task, back):
    sure = measured(Copier(back), task)
    assert sure["with_copy"] < 1e-4 and sure["value"] == sure["without"] - sure["with_copy"] > 15
    blind = measured(Copier(LENGTH - 2 * PASSAGE), "text")
    assert blind["value"] == 0 and blind["without"] > 15


def test_the_number_of_rows_at_once_changes_nothing():
    few = measured(Copier(LENGTH - PASSAGE), "random", n=5, memory=1.0)
    assert few == measured(Copier(LENGTH - PASSAGE), "random", n=5)


def test_the_bundled_model_copies_keys_and_no_other_text(tmp_path, command, refused):
    run = tmp_path / "quickstart"
    command(convert.main, "--run=quickstart", f"--export={run}")
    ask = evaluate.main, f"--run={run}", "--eval=copying", "--lengths=64"
    assert not command(*ask, "--passage=16", "--samples=2")[0]
    assert not command(*ask, "--passage=16", "--samples=4", "--tasks=passkey,text")[0]
    found = {}
    for cell in records.read_results(run)[0]:
        if cell["eval"] == "copying":
            found.setdefault(cell["task"], []).append(cell)
    assert [(cell["first"], cell["n"]) for cell in found["text"]] == [(0, 2), (2, 2)] and len(found["random"]) == 1
    assert min(cell["value"] for cell in found["passkey"]) > 5 and abs(found["random"][0]["value"]) < 0.5
    assert "length 64 has no room for two passages of 33" in refused(*ask, "--passage=33")
