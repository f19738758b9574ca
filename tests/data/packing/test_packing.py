"""Both packings: every token once an epoch, documents whole where they can be, rows that do not depend on one another."""

import itertools
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.packing.concat import Concatenated
from bam_jax.data.packing.first_fit import FirstFit, first_fit_decreasing
from bam_jax.data.packing.rows import Memo, Shuffle
from bam_jax.system.errors import UserError

SHARDS = st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=5).filter(
    lambda shards: sum(map(sum, shards)) > 12 and max(map(max, filter(None, shards))) > 1
)
EPOCH = {
    "shards": SHARDS,
    "context": st.integers(1, 12),
    "size": st.integers(1, 12),
    "seed": st.integers(0, 3),
    "shift": st.sampled_from([0, 1]),
}


def rows_of(packing, documents, context, size=5, seed=0, **options):
    return packing(documents, Shuffle(documents, seed, size), context, **options)


def test_the_last_values_are_kept_but_do_not_travel():
    asked = []
    kept = Memo(lambda number: asked.append(number) or number**2, size=2)
    assert [kept(number) for number in (1, 2, 1, 3, 1, 2)] == [1, 4, 1, 9, 1, 4]
    assert asked == [1, 2, 3, 2]  # 2 was used least recently when 3 came
    full = Memo(np.arange, size=2)
    full(10**6)
    assert len(pickle.dumps(full)) < 1000 and pickle.loads(pickle.dumps(full))(3).tolist() == [0, 1, 2]


@given(SHARDS, st.integers(1, 12), st.integers(0, 3))
def test_groups_are_whole_shards_and_the_same_in_every_epoch(listed, shards, size, seed):
    documents = listed(shards)
    shuffle = Shuffle(documents, seed, size)
    members = []
    for epoch in range(2):
        orders = {int(group): shuffle.order(epoch, int(group)) for group in shuffle.groups(epoch)}
        assert sorted(orders) == list(range(len(shuffle)))
        assert sorted(np.concatenate([numbers for numbers, _ in orders.values()])) == list(range(sum(map(len, shards))))
        for group, (numbers, lengths) in orders.items():
            np.testing.assert_array_equal(lengths, documents.lengths[numbers])
            np.testing.assert_array_equal(shuffle.lengths(group), documents.lengths[np.sort(numbers)])
            assert len(numbers) < size + max(map(len, shards)) or len(numbers) == 0
            owners = np.searchsorted(documents.shards, np.sort(numbers), side="right") - 1
            assert all((owners == shard).sum() == len(shards[shard]) for shard in np.unique(owners))
        members.append({group: set(numbers.tolist()) for group, (numbers, _) in orders.items()})
    assert members[0] == members[1]


def test_epochs_seeds_and_groups_have_orders_of_their_own(listed):
    documents = listed([[1] * 40] * 20)
    shuffles = Shuffle(documents, 0, 100), Shuffle(documents, 1, 100)
    orders = [
        np.concatenate([shuffle.order(epoch, group)[0] for group in shuffle.groups(epoch)])
        for shuffle in shuffles
        for epoch in (0, 1)
    ]
    assert len({order.tobytes() for order in orders}) == 4
    shuffle, _ = shuffles
    assert len({tuple(shuffle.groups(epoch)) for epoch in range(5)}) == 5
    places = {tuple(np.argsort(shuffle.order(0, group)[0][:80])) for group in range(len(shuffle))}
    assert len(places) == len(shuffle)


@pytest.mark.parametrize("packing", [Concatenated, FirstFit])
@given(shards=SHARDS, context=st.integers(1, 7), numbers=st.lists(st.integers(0, 40), min_size=1), mask=st.booleans())
def test_a_row_depends_on_its_number_alone(listed, packing, shards, context, numbers, mask):
    documents = listed(shards)
    made = lambda: rows_of(packing, documents, context, 4, document_mask=mask, restart=True)
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
    rows = rows_of(packing, source, 512, size)
    for number in (0, 10**6, 10**10):
        rows.take(number + np.arange(8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < max_bytes


@given(**EPOCH)
def test_an_epoch_is_the_documents_end_to_end(listed, shards, context, size, seed, shift):
    documents = listed(shards)
    rows = rows_of(Concatenated, documents, context, size, seed, shift=shift, restart=True)
    total = int(documents.lengths.sum())
    count = (total - shift) // context
    for epoch in range(2):
        batch = rows.take(np.arange(epoch * count, (epoch + 1) * count))
        kinds = dict.fromkeys(("tokens", "targets", "segment", "position"), "int32") | {"weights": "float32"}
        assert {name: values.dtype.name for name, values in batch.items()} == kinds
        stream = np.append(batch["tokens"], batch["targets"][-1, -1]) if shift else batch["tokens"].ravel()
        np.testing.assert_array_equal(stream[shift : shift + count * context], batch["targets"].ravel())
        assert len(set(stream.tolist())) == len(stream) >= total - context
        owner = documents.owner[stream]
        # Within a document ids follow one another, and one that has ended does not come back.
        assert (np.diff(stream)[np.diff(owner) == 0] == 1).all()
        assert 1 + (np.diff(owner) != 0).sum() == len(np.unique(owner))
        starts = np.flatnonzero(np.append(-1, owner)[:-1] != owner)
        np.testing.assert_array_equal(stream[starts], [documents.texts[owner[start]][0] for start in starts])
        for row in range(count):
            mine, theirs = documents.owner[batch["tokens"][row]], documents.owner[batch["targets"][row]]
            np.testing.assert_array_equal(batch["weights"][row], mine == theirs)
            assert batch["segment"][row, 0] == 1
            np.testing.assert_array_equal(np.diff(batch["segment"][row]), np.diff(mine) != 0)
            slow = [np.flatnonzero(mine == document)[0] for document in mine]
            np.testing.assert_array_equal(batch["position"][row], np.arange(context) - slow)


def pieces_of(batch):
    """(row, slots, tokens, targets) of each segment of each row."""
    for row, segment in enumerate(batch["segment"]):
        for number in range(1, segment.max() + 1):
            here = np.flatnonzero(segment == number)
            yield row, here, batch["tokens"][row, here], batch["targets"][row, here]


@given(**EPOCH)
def test_an_epoch_of_first_fit_has_every_document_once(listed, shards, context, size, seed, shift):
    documents = listed(shards)
    rows = rows_of(FirstFit, documents, context, size, seed, shift=shift, restart=True)
    count = int(rows._rows.sum())
    for epoch in range(2):
        batch = rows.take(np.arange(epoch * count, (epoch + 1) * count))
        pads = batch["segment"] == 0
        assert not batch["tokens"][pads].any() and not batch["targets"][pads].any()
        np.testing.assert_array_equal(batch["weights"], ~pads)
        assert (np.diff(pads.astype(int), axis=1) >= 0).all()  # pads are a row's end
        targets = np.sort(np.concatenate([target for *_, target in pieces_of(batch)]))
        np.testing.assert_array_equal(targets, np.concatenate([text[shift:] for text in documents.texts]))
        for row, here, tokens, target in pieces_of(batch):
            assert (np.diff(here) == 1).all()
            text = documents.texts[documents.owner[target[0]]]
            start = tokens[0] - text[0]
            assert start % context == 0  # cut only where a row was full
            np.testing.assert_array_equal(tokens, text[start : start + len(tokens)])
            np.testing.assert_array_equal(target, text[start + shift : start + shift + len(tokens)])
            assert len(tokens) == min(context, len(text) - shift - start)
            np.testing.assert_array_equal(batch["position"][row, here], np.arange(len(tokens)))


def slow_first_fit(pieces, size):
    """One piece after the other, one bin after the other."""
    room, bins = [], []
    for piece in sorted(pieces, reverse=True):
        place = next((place for place, left in enumerate(room) if left >= piece), len(room))
        if place == len(room):
            room.append(size)
        room[place] -= piece
        bins.append(place)
    return bins, len(room)


@given(st.integers(1, 24).flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(1, size), max_size=80))))
def test_runs_of_bins_are_what_first_fit_does_piece_by_piece(case):
    size, pieces = case
    made = first_fit_decreasing(np.bincount(np.array(pieces, np.int64), minlength=size + 1))
    assert (made.of_pieces().tolist(), made.count) == slow_first_fit(pieces, size)


def test_bins_are_kept_in_runs(rng):
    pieces = rng.choice([1, 2, 3, 50, 51, 64, 99, 100], 3000)
    assert len(first_fit_decreasing(np.bincount(pieces, minlength=101)).bins) < 100


def test_rows_of_first_fit_come_in_no_order_of_length(listed, rng):
    """Neither do the short documents come first, nor do a row's longest stand at its start."""
    rows = rows_of(FirstFit, listed([rng.integers(2, 30, 2000).tolist()]), 64, size=10**4)
    count = int(rows._rows.sum())
    batch = rows.take(np.arange(count))
    assert abs(np.corrcoef(batch["segment"].max(1), np.arange(count))[0, 1]) < 3 / count**0.5
    sizes = [(row, len(here)) for row, here, *_ in pieces_of(batch)]
    falls = [a[1] > b[1] for a, b in itertools.pairwise(sizes) if a[0] == b[0] and a[1] != b[1]]
    assert abs(np.mean(falls) - 0.5) < 0.05


@pytest.mark.parametrize(("packing", "shard", "most"), [(Concatenated, [1000], 1), (FirstFit, [1001, 5, 6, 1002], 8)])
def test_a_long_document_is_read_for_its_rows_together(listed, packing, shard, most):
    documents = listed([shard])
    rows = rows_of(packing, documents, 8)
    for number in range(100):
        rows.take(np.array([number]))
    assert len(documents.asked) <= most


def test_without_the_document_mask_only_pads_are_apart(listed):
    batch = rows_of(FirstFit, listed([[9, 3, 4, 4, 7]]), 8, document_mask=False).take(np.arange(3))
    assert set(np.unique(batch["segment"])) == {0, 1}
    np.testing.assert_array_equal(batch["segment"], batch["weights"])
    batch = rows_of(Concatenated, listed([[3, 4, 5, 6]]), 6, document_mask=False).take(np.arange(2))
    assert batch.keys() == {"tokens", "targets", "weights"} and (batch["weights"] == 1).all()


def test_text_that_fills_no_row(listed):
    assert rows_of(Concatenated, listed([[4, 4]]), 7).take(np.array([5]))["tokens"].shape == (1, 7)
    for shards in [[4, 4]], [[]]:
        with pytest.raises(UserError, match=r"the text has \d tokens, fewer than config.context=8 and one more"):
            rows_of(Concatenated, listed(shards), 8)
    with pytest.raises(UserError, match="no document has a token to predict"):
        rows_of(FirstFit, listed([[1, 1, 0]]), 8)
