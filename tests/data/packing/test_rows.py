"""The small parts that all rows are made with; every document once an epoch, in memory for a group of them."""

import itertools
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.packing.concat import Concatenated
from bam_jax.data.packing.first_fit import FirstFit
from bam_jax.data.packing.rows import Memo, Shuffle, consecutive_runs, restarted_positions


class Squares:
    def __init__(self):
        self.asked = []
        self.kept = Memo(self.square, size=2)

    def square(self, number, power):
        self.asked.append(number)
        return number**power


def test_the_last_values_are_kept():
    squares = Squares()
    assert [squares.kept(number, 2) for number in (1, 2, 1, 3, 1, 2)] == [1, 4, 1, 9, 1, 4]
    assert squares.asked == [1, 2, 3, 2]  # 2 was used least recently when 3 came


def test_kept_values_do_not_travel():
    squares = Squares()
    squares.kept(3, 2)
    other = pickle.loads(pickle.dumps(squares))
    assert other.kept(3, 3) == 27 and other.asked == [3, 3] and squares.asked == [3]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1))))
def test_stretches(pairs):
    numbers, other = (np.array([pair[place] for pair in pairs], int) for place in (0, 1))
    parts = consecutive_runs(numbers, other)
    assert [number for part in parts for number in numbers[part]] == numbers.tolist()
    for part in parts:
        assert (np.diff(numbers[part]) == 1).all() and len(set(other[part])) == 1
    for left, right in itertools.pairwise(parts):
        one, two = left.stop - 1, right.start
        assert one + 1 == two and (numbers[two] != numbers[one] + 1 or other[one] != other[two])


@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1))
def test_positions_restart_with_every_segment(rows):
    found = restarted_positions(np.array(rows))
    for row, positions in zip(rows, found, strict=True):
        slow = []
        for place, segment in enumerate(row):
            slow.append(slow[-1] + 1 if place and segment == row[place - 1] else 0)
        assert positions.tolist() == slow


SHARDS = st.lists(st.integers(0, 6).map(lambda count: [1] * count), min_size=1, max_size=7)


@given(SHARDS, st.integers(1, 12), st.integers(0, 3))
def test_an_epoch_has_every_document_once_in_groups_of_whole_shards(listed, shards, size, seed):
    documents = listed(shards)
    shuffle = Shuffle(documents, seed, size)
    members = []
    for epoch in range(2):
        groups = shuffle.groups(epoch)
        assert sorted(groups) == list(range(len(shuffle)))
        orders = {int(group): shuffle.order(epoch, int(group))[0] for group in groups}
        assert sorted(np.concatenate(list(orders.values()))) == list(range(sum(map(len, shards))))
        for numbers in orders.values():
            assert len(numbers) < size + max(map(len, shards)) or len(numbers) == 0
            owners = np.searchsorted(documents.shards, np.sort(numbers), side="right") - 1
            for shard in np.unique(owners):
                assert (owners == shard).sum() == len(shards[shard])
        members.append({group: set(numbers.tolist()) for group, numbers in orders.items()})
    assert members[0] == members[1]


def test_lengths_go_with_their_documents(listed):
    documents = listed([[5, 1], [2, 9, 4], [3]])
    shuffle = Shuffle(documents, 0, 2)
    assert len(shuffle) > 1
    for group in range(len(shuffle)):
        numbers, lengths = shuffle.order(3, group)
        np.testing.assert_array_equal(lengths, documents.lengths[numbers])
        np.testing.assert_array_equal(shuffle.lengths(group), documents.lengths[np.sort(numbers)])


def test_a_small_corpus_is_shuffled_as_a_whole_however_it_lies_in_shards(listed):
    one, many = (Shuffle(listed(shards), 5, 100) for shards in ([[1] * 30], [[1] * 10] * 3))
    expected = np.random.default_rng([5, 4]).permutation(30)
    np.testing.assert_array_equal(one.order(4, 0)[0], expected)
    np.testing.assert_array_equal(many.order(4, 0)[0], expected)


def test_epochs_seeds_and_groups_have_orders_of_their_own(listed):
    documents = listed([[1] * 40] * 20)
    orders = [
        np.concatenate([shuffle.order(epoch, group)[0] for group in shuffle.groups(epoch)])
        for shuffle in (Shuffle(documents, 0, 100), Shuffle(documents, 1, 100))
        for epoch in (0, 1)
    ]
    assert len({order.tobytes() for order in orders}) == 4
    shuffle = Shuffle(documents, 0, 100)
    assert len({tuple(shuffle.groups(epoch)) for epoch in range(5)}) == 5
    places = {tuple(np.argsort(shuffle.order(0, group)[0][:80])) for group in range(len(shuffle))}
    assert len(places) == len(shuffle)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any), st.lists(st.integers(0, 60), max_size=20))
def test_locate_goes_through_the_groups_of_an_epoch_in_its_order(listed, counts, numbers):
    shuffle = Shuffle(listed([[1]] * len(counts)), 2, 1)
    counts = np.array(counts)
    found = {}
    for epoch, group, chosen, rows in shuffle.locate(np.array(numbers, np.int64), counts):
        found |= {int(place): (epoch, group, int(row)) for place, row in zip(chosen, rows, strict=True)}
    epochs = range(60 // counts.sum() + 1)
    slow = [(e, int(g), row) for e in epochs for g in shuffle.groups(e) for row in range(counts[g])]
    assert found == {place: slow[number] for place, number in enumerate(numbers)}


PACKED = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=5).filter(
    lambda shards: sum(map(sum, shards)) > 7 and max(map(max, filter(None, shards))) > 1
)


@pytest.mark.parametrize("packing", [Concatenated, FirstFit])
@given(shards=PACKED, context=st.integers(1, 7), numbers=st.lists(st.integers(0, 40), min_size=1), mask=st.booleans())
def test_a_row_depends_on_its_number_alone(listed, packing, shards, context, numbers, mask):
    documents = listed(shards)
    made = lambda: packing(documents, Shuffle(documents, 0, 4), context, document_mask=mask, restart=True)
    together = made().take(np.array(numbers))
    for place, number in enumerate(numbers):
        alone = made().take(np.array([number]))
        assert alone.keys() == together.keys()
        for name, values in alone.items():
            np.testing.assert_array_equal(values[0], together[name][place])


@pytest.mark.parametrize(
    ("packing", "documents", "size", "max_bytes"),
    [
        (Concatenated, 3 * 10**6, 2 * 10**5, 30e6),  # a list of all documents: 24 MB for every million
        (FirstFit, 10**6, 5 * 10**4, 37.5e6),
        pytest.param(Concatenated, 10**8, 2 * 10**5, 30e6, marks=pytest.mark.full),
        pytest.param(FirstFit, 10**8, 10**6, 370e6, marks=pytest.mark.full),
    ],
)
def test_memory_is_that_of_a_group(endless, packing, documents, size, max_bytes):
    source = endless(documents, shards=documents // 10**5)
    tracemalloc.start()
    rows = packing(source, Shuffle(source, 0, size), 512)
    for number in (0, 10**6, 10**10):
        rows.take(number + np.arange(8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < max_bytes
