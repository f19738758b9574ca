"""Rows of synthetic tasks, of masked text and of triplets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bam_jax.config.sections import TRIPLET
from bam_jax.data.packing.rows import Shuffle
from bam_jax.data.packing.task_rows import Masked, Synthetic, Triplets
from bam_jax.data.tasks.synthetic import HELD_OUT, SYNTHETIC, TRAINING
from bam_jax.data.tokenizers import CharTokenizer, tokenizer
from bam_jax.system.errors import UserError

CHAR = CharTokenizer()
KINDS = {"tokens": "int32", "targets": "int32", "weights": "float32"}


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
    assert {key: values.dtype.name for key, values in batch.items()} == KINDS


def test_unknown_splits_are_refused():
    with pytest.raises(UserError, match="unknown split 'heldout'; did you mean 'held_out'?"):
        Synthetic("copy", CHAR, 64, seed=0, split="heldout")


BYTE = tokenizer("byte")


class Text:
    """Rows of 64 letters with end tokens; the last 16 are pads if `pads`."""

    def __init__(self, pads=False):
        self.pads = pads

    def take(self, numbers):
        tokens = ((numbers[:, None] * 31 + np.arange(64) * 7) % 26 + 97).astype(np.int32)
        tokens[:, 5::16] = BYTE.eos
        if not self.pads:
            return {"targets": tokens}
        tokens[:, 48:] = 0
        return {"targets": tokens, "segment": np.broadcast_to(np.int32(np.arange(64) < 48), tokens.shape)}


def within(count, total, probability):
    """True of a binomial count, but for one draw in a billion."""
    return stats.binomtest(int(count), int(total), probability).pvalue > 1e-9


@pytest.mark.parametrize("fraction", [0.15, 0.4])
@pytest.mark.parametrize("pads", [False, True])
def test_eighty_ten_ten(fraction, pads):
    rows = Text(pads=pads)
    numbers = np.arange(3000)
    batch, plain = Masked(rows, BYTE, fraction=fraction, seed=1).take(numbers), rows.take(numbers)
    tokens, targets, chosen = batch["tokens"], batch["targets"], batch["weights"] == 1
    assert {name: batch[name].dtype.name for name in KINDS} == KINDS
    assert set(np.unique(batch["weights"])) == {0, 1}
    np.testing.assert_array_equal(targets, plain["targets"])
    np.testing.assert_array_equal(tokens[~chosen], targets[~chosen])
    may = targets != BYTE.eos
    if pads:
        may &= plain["segment"] > 0
        np.testing.assert_array_equal(batch["segment"], plain["segment"])
    assert not chosen[~may].any()
    count = chosen.sum()
    assert within(count, may.sum(), fraction)
    masked, kept = tokens[chosen] == BYTE.mask, tokens[chosen] == targets[chosen]
    assert within(masked.sum(), count, 0.8)
    assert within(kept.sum(), count, 0.1 + 0.1 / 255)  # a random byte is the old one at times
    others = tokens[chosen][~masked & ~kept]
    assert not np.isin(others, BYTE.special).any()
    assert np.bincount(others, minlength=257)[:255].min() > 0  # any token of text may come
    assert stats.chisquare(np.bincount(others)[:97]).pvalue > 1e-9
    # Every place is as likely as any other.
    assert stats.chisquare(chosen.sum(0)[may.all(0)]).pvalue > 1e-9


def test_a_row_depends_on_seed_and_number():
    rows = Masked(Text(), BYTE, fraction=0.15, seed=0)
    together = rows.take(np.array([7, 3, 4]))["tokens"]
    np.testing.assert_array_equal(rows.take(np.array([3]))["tokens"][0], together[1])
    assert not np.array_equal(Masked(Text(), BYTE, fraction=0.15, seed=1).take(np.array([3]))["tokens"][0], together[1])
    chosen = rows.take(np.arange(40))["weights"]
    assert len({row.tobytes() for row in chosen}) == 40


def test_a_tokenizer_without_a_mask():
    with pytest.raises(UserError, match="tokenizer 'char' has no mask token"):
        Masked(Text(), tokenizer("char"), fraction=0.15, seed=0)


SHARDS = st.lists(
    st.lists(st.tuples(*[st.integers(1, 9)] * 3), max_size=4).map(lambda each: [n for three in each for n in three]),
    min_size=1,
    max_size=4,
).filter(any)


@given(SHARDS, st.integers(1, 12), st.integers(1, 12), st.sampled_from([None, 999]))
def test_an_epoch_has_every_triplet_once(listed, shards, context, size, eos):
    documents = listed(shards)
    rows = Triplets(documents, Shuffle(documents, 0, size), context, eos=eos)
    count = sum(map(len, shards)) // 3
    assert len(rows) == count
    for epoch in range(2):
        batch = rows.take(epoch * count + np.arange(count))
        assert batch.keys() == {*TRIPLET, *(f"{name}_length" for name in TRIPLET)}
        seen = set()
        for row in range(count):
            number = documents.owner[batch["query"][row, 0]] if context > 1 or eos is None else None
            for offset, name in enumerate(TRIPLET):
                ids, length = batch[name][row], batch[f"{name}_length"][row]
                assert ids.dtype == np.int32 and batch[f"{name}_length"].dtype == np.int32 and len(ids) == context
                assert not ids[length:].any()
                if number is None:
                    continue
                text = documents.texts[number + offset]
                assert length == min(len(text), context)
                whole = length if len(text) <= context or eos is None else length - 1
                np.testing.assert_array_equal(ids[:whole], text[:whole])
                assert whole == length or ids[whole] == eos
            seen.add(number)
        assert len(seen) == count or None in seen


def test_epochs_differ(listed):
    documents = listed([[3] * 90])
    rows = Triplets(documents, Shuffle(documents, 0, 100), 3, eos=None)
    first, second = rows.take(np.arange(30))["query"], rows.take(30 + np.arange(30))["query"]
    assert not np.array_equal(first, second) and sorted(first[:, 0]) == sorted(second[:, 0])
