"""Rows of synthetic tasks, of masked text, of triplets, and of mixtures of several kinds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bam_jax.config.sections import TRIPLET
from bam_jax.data.packing.rows import Shuffle
from bam_jax.data.packing.task_rows import Masked, Mixture, Synthetic, Triplets, deal
from bam_jax.data.tasks.synthetic import HELD_OUT, SYNTHETIC, TRAINING
from bam_jax.data.tokenizers import ByteTokenizer, CharTokenizer
from bam_jax.system.errors import UserError

CHAR, BYTE = CharTokenizer(), ByteTokenizer()
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


@pytest.mark.parametrize(("fraction", "pads"), [(0.15, True), (0.4, False)])
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


def test_a_masked_row_depends_on_seed_and_number():
    rows = Masked(Text(), BYTE, fraction=0.15, seed=0)
    together = rows.take(np.array([7, 3, 4]))["tokens"]
    np.testing.assert_array_equal(rows.take(np.array([3]))["tokens"][0], together[1])
    assert not np.array_equal(Masked(Text(), BYTE, fraction=0.15, seed=1).take(np.array([3]))["tokens"][0], together[1])
    assert len({row.tobytes() for row in rows.take(np.arange(40))["weights"]}) == 40


SHARDS = st.lists(
    st.lists(st.tuples(*[st.integers(1, 9)] * 3), max_size=4).map(lambda each: [n for three in each for n in three]),
    min_size=1,
    max_size=4,
).filter(any)


@given(SHARDS, st.integers(2, 12), st.integers(1, 12), st.sampled_from([None, 999]))
def test_an_epoch_has_every_triplet_once(listed, shards, context, size, eos):
    documents = listed(shards)
    rows = Triplets(documents, Shuffle(documents, 0, size), context, eos=eos)
    count = sum(map(len, shards)) // 3
    assert len(rows) == count
    for epoch in range(2):
        batch = rows.take(epoch * count + np.arange(count))
        assert batch.keys() == {*TRIPLET, *(f"{name}_length" for name in TRIPLET)}
        assert all(values.dtype == np.int32 for values in batch.values())
        numbers = documents.owner[batch["query"][:, 0]]
        assert len(set(numbers.tolist())) == count
        for row, number in enumerate(numbers):
            for offset, name in enumerate(TRIPLET):
                ids, length, text = batch[name][row], batch[f"{name}_length"][row], documents.texts[number + offset]
                assert length == min(len(text), context) and len(ids) == context and not ids[length:].any()
                whole = length if len(text) <= context or eos is None else length - 1
                np.testing.assert_array_equal(ids[:whole], text[:whole])
                assert whole == length or ids[whole] == eos


def test_epochs_of_triplets_differ(listed):
    documents = listed([[3] * 90])
    rows = Triplets(documents, Shuffle(documents, 0, 100), 3, eos=None)
    first, second = rows.take(np.arange(30))["query"], rows.take(30 + np.arange(30))["query"]
    assert not np.array_equal(first, second) and sorted(first[:, 0]) == sorted(second[:, 0])


WEIGHTS = st.lists(st.floats(0.05, 10), min_size=1, max_size=5)


@given(WEIGHTS, st.integers(1, 400))
def test_every_part_has_its_share_of_any_first_rows(weights, count):
    part, own = deal(np.arange(count), weights)
    for index, weight in enumerate(weights):
        mine = part == index
        assert own[mine].tolist() == list(range(mine.sum()))
        excess = np.cumsum(mine) - np.arange(1, count + 1) * weight / sum(weights)
        assert np.abs(excess).max() <= len(weights)


@given(WEIGHTS, st.lists(st.integers(0, 10**15), min_size=1, max_size=20))
def test_a_row_is_dealt_alone_as_among_others(weights, numbers):
    part, own = deal(np.array(numbers), weights)
    for place, number in enumerate(numbers):
        alone = deal(np.array([number]), weights)
        assert (alone[0][0], alone[1][0]) == (part[place], own[place])


@pytest.mark.parametrize("number", [10**15, 10**15 + 7])
def test_shares_do_not_drift(number):
    part, own = deal(np.arange(number, number + 10), [0.9, 0.1])
    assert own[part == 1].tolist() == [(number + 9) // 10]


class Numbered:
    """Rows of their own numbers; `more` arrays are nines."""

    def __init__(self, weight, *more):
        self.weight, self.more = weight, more

    def take(self, numbers):
        tokens = np.repeat(np.asarray(numbers, np.int32)[:, None], 4, 1)
        nines = {key: np.full_like(tokens, 9) for key in self.more}
        return {"tokens": tokens, "weights": np.full(tokens.shape, self.weight, np.float32)} | nines


def test_rows_go_where_they_are_dealt():
    mixture = Mixture({"a": (3, Numbered(1, "segment", "position")), "b": (2, Numbered(2))})
    numbers = np.array([5, 6, 7, 3, 100])
    batch = mixture.take(numbers)
    part, own = deal(numbers, [3, 2])
    assert set(part) == {0, 1}
    np.testing.assert_array_equal(batch["tokens"][:, 0], own)
    np.testing.assert_array_equal(batch["weights"][:, 0], part + 1)
    for row, index in enumerate(part):
        assert batch["segment"][row].tolist() == ([1] * 4 if index else [9] * 4)
        assert batch["position"][row].tolist() == ([0, 1, 2, 3] if index else [9] * 4)
    assert mixture.take(numbers[part == 1]).keys() == batch.keys() == mixture.take(numbers[part == 0]).keys()


def test_kinds_that_do_not_go_together():
    with pytest.raises(UserError, match="config.data.mixture.b gives no query"):
        Mixture({"a": (1, Numbered(1, "query")), "b": (1, Numbered(2))})
