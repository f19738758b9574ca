"""Rows of synthetic tasks as batches."""

import numpy as np
import pytest

from bam_jax.data.packing.task_rows import Synthetic
from bam_jax.data.tasks.synthetic import HELD_OUT, SYNTHETIC, TRAINING
from bam_jax.data.tokenizers import CharTokenizer
from bam_jax.system.errors import UserError

CHAR = CharTokenizer()


@pytest.mark.parametrize(("split", "stream"), [("train", TRAINING), ("held_out", HELD_OUT)])
@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_loss_is_that_of_answers_and_of_fillers_that_can_be_foretold(name, split, stream):
    task = SYNTHETIC[name](CHAR.size, 64)
    batch = Synthetic(name, CHAR, 64, seed=7, split=split).take(np.array([5, 3]))
    rows = np.stack([task.row(7, stream, 64, number) for number in (5, 3)])
    np.testing.assert_array_equal(batch["tokens"], rows[:, :-1])
    np.testing.assert_array_equal(batch["targets"], rows[:, 1:])
    for weights, targets, row in zip(batch["weights"], batch["targets"], rows, strict=True):
        np.testing.assert_array_equal(targets[weights == 1], row[task.answers])
        foretold = np.flatnonzero((weights > 0) & (weights < 1)) + 1
        np.testing.assert_array_equal(row[foretold] - 64, (row[foretold - 2] - 64 + 1) % 8)
        filler = [64 <= token < 72 for token in row]
        assert foretold.tolist() == [place for place in range(2, 65) if filler[place] and filler[place - 2]]
    assert {key: values.dtype for key, values in batch.items()} == {
        "tokens": np.int32,
        "targets": np.int32,
        "weights": np.float32,
    }


def test_unknown_splits_are_refused():
    with pytest.raises(UserError, match="unknown split 'heldout'; did you mean 'held_out'?"):
        Synthetic("copy", CHAR, 64, seed=0, split="heldout")
