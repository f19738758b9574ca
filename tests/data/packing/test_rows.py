"""The small parts that all rows are made with; every document once an epoch, in memory for a group of them."""

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.packing.concat import Concatenated
from bam_jax.data.packing.first_fit import FirstFit
from bam_jax.data.packing.rows import Memo, Shuffle, consecutive_runs, restarted_positions


class Powers:
    def __init__(self):
        self.asked = []
        self.kept = Memo(self.power, size=2)

    def power(self, number, exponent):
        self.asked.append(number)
        return number**exponent


def test_the_last_values_are_kept_but_do_not_travel():
    powers = Powers()
    assert [powers.kept(number, 2) for number in (1, 2, 1, 3, 1, 2)] == [1, 4, 1, 9, 1, 4]
    assert powers.asked == [1, 2, 3, 2]  # 2 was used least recently when 3 came
    other = pickle.loads(pickle.dumps(powers))
    assert other.kept(2, 3) == 8 and other.kept(2, 2) == 4 and other.asked == [1, 2, 3, 2, 2, 2]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1))))
def test_consecutive_runs_are_the_longest(pairs):
    numbers, other = (np.array([pair[place] for pair in pairs], int) for place in (0, 1))
    found = [pairs[part] for part in consecutive_runs(numbers, other)]
    slow = []
    for number, same in pairs:
        if slow and slow[-1][-1] == (number - 1, same):
            slow[-1].append((number, same))
        else:
            slow.append([(number, same)])
    assert found == slow


@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1))
def test_positions_restart_with_every_segment(rows):
    found = restarted_positions(np.array(rows))
    for row, positions in zip(rows, found, strict=True):
        slow = []
        for place, segment in enumerate(row):
            slow.append(slow[-1] + 1 if place and segment == row[place - 1] else 0)
        assert positions.tolist() == slow


SHARDS = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=7)


@given(SHARDS, st.integers(1, 12), st.integers(0, 3))
def test_an_epoch_has_every_document_once_in_groups_of_whole_shards(listed, shards, size, seed):
    documents = listed(shards)
    shuffle = Shuffle(documents, seed, size)
    members = []
    for epoch in range(2):
        groups = shuffle.groups(epoch)
        assert sorted(groups) == list(range(len(shuffle)))
        orders = {int(group): shuffle.order(epoch, int(group)) for group in groups}
        numbers = np.concatenate([numbers for numbers, _ in orders.values()])
        assert sorted(numbers) == list(range(sum(map(len, shards))))
        for group, (numbers, lengths) in orders.items():
            np.testing.assert_array_equal(lengths, documents.lengths[numbers])
            np.testing.assert_array_equal(shuffle.lengths(group), documents.lengths[np.sort(numbers)])
            assert len(numbers) < size + max(map(len, shards)) or len(numbers) == 0
            owners = np.searchsorted(documents.shards, np.sort(numbers), side="right") - 1
            for shard in np.unique(owners):
                assert (owners == shard).sum() == len(shards[shard])
        members.append({group: set(numbers.tolist()) for group, (numbers, _) in orders.items()})
    assert members[0] == members[1]


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


class Endless:
    """As many documents as one likes, none of which is there before it is asked for."""

    class Lengths:
        def __getitem__(self, part):
            return (np.arange(part.start, part.stop, dtype=np.int64) * 7919 % 1291).astype(np.int32)

    def __init__(self, documents, shards):
        self.lengths = self.Lengths()
        self.shards = np.linspace(0, documents, shards + 1).astype(np.int64)

    def read(self, numbers):
        return [np.full(int(number) * 7919 % 1291, number % 1000, np.int32) for number in numbers]


@pytest.mark.parametrize(
    ("packing", "documents", "size", "max_bytes"),
    [
        (Concatenated, 3 * 10**6, 2 * 10**5, 30e6),  # a list of all documents: 24 MB for every million
        (FirstFit, 10**6, 5 * 10**4, 37.5e6),
    ],
)
def test_memory_is_that_of_a_group(packing, documents, size, max_bytes):
    source = Endless(documents, shards=documents // 10**5)
    tracemalloc.start()
    rows = packing(source, Shuffle(source, 0, size), 512)
    for number in (0, 10**6, 10**10):
        rows.take(number + np.arange(8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < max_bytes
