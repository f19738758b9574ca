"""Synthetic tasks, asked of models that are known to solve them, or not; and trained and asked from end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import evaluate, train
from bam_jax.config import Config, ModelConfig
from bam_jax.data.tasks.synthetic import SYNTHETIC
from bam_jax.data.tokenizers import CharTokenizer
from bam_jax.evals import records, synthetic
from bam_jax.evals.plan import SampleRange

CHAR = CharTokenizer()
CELLS = [SampleRange(length, None, 0, 5) for length in (200, 64)]


class Solver(nnx.Module):
    """A model that writes what followed the last token that is the same as the one it sees."""

    def __init__(self):
        self.config = ModelConfig()
        self.head = nnx.Param(jnp.zeros(3))

    def __call__(self, tokens, position=None, *, read):
        def last(row, place):
            same = (row == row[place]) & (jnp.arange(len(row)) < place)
            return row[jnp.max(jnp.where(same, jnp.arange(len(row)), -1)) + 1]

        places = jnp.arange(tokens.shape[1] - read, tokens.shape[1])
        found = jax.vmap(lambda row: jax.vmap(lambda place: last(row, place))(places))(tokens)
        return jax.nn.one_hot(found, CHAR.size), None


class Guesser(Solver):
    def __call__(self, tokens, position=None, *, read):
        return jax.random.normal(jax.random.key(0), (*tokens.shape[:1], read, CHAR.size)), None


def measure(decoder, name, *, seed=0, memory=2.0**30, cells=CELLS):
    task = SYNTHETIC[name](CHAR.size, 64)
    return dict(synthetic.measure(decoder, cells, task=task, seed=seed, memory=memory))


@pytest.mark.parametrize("name", SYNTHETIC)
def test_who_solves_the_task_is_right_at_any_length(name):
    found = measure(Solver(), name)
    assert list(found) == sorted(CELLS) and {result["value"] for result in found.values()} == {1.0}
    little = measure(Solver(), name, memory=4 * 200 * 896 * 2)  # two rows at once, the last one alone
    assert {result["value"] for result in little.values()} == {1.0}


def test_who_guesses_is_right_by_chance():
    (result,) = measure(Guesser(), "recall", cells=[SampleRange(64, None, 0, 200)]).values()
    assert result["chance"] == 1 / 32 and result["items"] == 4
    among_all = 1 / CHAR.size  # the model's guess may be any id
    assert abs(result["value"] - among_all) < 5 * np.sqrt(among_all / 800)


def test_each_training_seed_has_rows_of_its_own():
    asked = [synthetic.Synthetic((48,)).required({}, Config(seed=seed)) for seed in (3, 4)]
    assert asked == [{"seed": 3}, {"seed": 4}]
    assert synthetic.Synthetic((48,), seed=7).required({}, Config(seed=3)) == {"seed": 7}


@pytest.mark.full
def test_a_model_is_trained_and_asked(tmp_path, command, refused):
    path, run = tmp_path / "tiny.py", tmp_path / "run"
    sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16}
    mixture = {name: {"weight": 1, "task": name} for name in SYNTHETIC}
    fields = {"encoding": "alibi", "context": 32, "batch": 6, "steps": 2, "model": sizes, "data": {"mixture": mixture}}
    path.write_text(f"import ml_collections\n\n\ndef get_config():\n    return ml_collections.ConfigDict({fields})\n")
    assert not command(train.main, f"--config={path}", f"--workdir={run}")[0]
    ask = evaluate.main, f"--run={run}", "--eval=synthetic", "--lengths=48"
    assert "recall_last accuracy at 48 tokens" in command(*ask, "--tasks=copy,recall_last", "--samples=3")[1]
    assert not command(*ask, "--tasks=copy", "--samples=6")[0]
    cells, _ = records.read_results(run)
    found = [(cell["task"], cell["first"], cell["n"], cell["items"], cell["unit"]) for cell in cells]
    assert found == [(*each, "accuracy") for each in (("copy", 0, 3, 4), ("recall_last", 0, 3, 1), ("copy", 3, 3, 4))]
    assert "length 8 is too short for the 4 items of a row of the task 'copy'" in refused(*ask, "--lengths=64,8")
    assert records.read_results(run)[0] == cells
