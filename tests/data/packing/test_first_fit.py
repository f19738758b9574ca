"""First-fit: documents whole where they can be, no row overfull, all of it known from lengths alone."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.packing.first_fit import FirstFit, first_fit_decreasing
from bam_jax.data.packing.rows import Shuffle
from bam_jax.system.errors import UserError

SHARDS = st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=5).filter(
    lambda shards: max((length for shard in shards for length in shard), default=0) > 1
)


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


def test_many_equal_pieces(rng):
    """Bins are kept in runs: far fewer than there are pieces."""
    pieces = rng.choice([1, 2, 3, 50, 51, 64, 99, 100], 3000).tolist()
    made = first_fit_decreasing(np.bincount(pieces, minlength=101))
    assert (made.of_pieces().tolist(), made.count) == slow_first_fit(pieces, 100)
    assert len(made.bins) < 100


def rows_of(documents, context, size=5, seed=0, **options):
    return FirstFit(documents, Shuffle(documents, seed, size), context, **options)


def pieces_of(batch):
    """(row, first slot, tokens, targets) of each segment of each row."""
    for row, segment in enumerate(batch["segment"]):
        for number in range(1, segment.max() + 1):
            here = np.flatnonzero(segment == number)
            yield row, here, batch["tokens"][row, here], batch["targets"][row, here]


@given(SHARDS, st.integers(1, 12), st.integers(1, 12), st.integers(0, 3), st.sampled_from([0, 1]))
def test_an_epoch_has_every_document_once(listed, shards, context, size, seed, shift):
    documents = listed(shards)
    rows = rows_of(documents, context, size, seed, shift=shift, restart=True)
    count = int(rows._rows.sum())
    for epoch in range(2):
        batch = rows.take(np.arange(epoch * count, (epoch + 1) * count))
        pads = batch["segment"] == 0
        assert not batch["tokens"][pads].any() and not batch["targets"][pads].any()
        np.testing.assert_array_equal(batch["weights"], ~pads)
        assert (np.diff(pads.astype(int), axis=1) >= 0).all()  # pads are a row's end
        wanted = [text[shift:] for text in documents.texts]
        targets = np.sort(np.concatenate([target for *_, target in pieces_of(batch)]))
        np.testing.assert_array_equal(targets, np.concatenate(wanted))
        for row, here, tokens, target in pieces_of(batch):
            assert (np.diff(here) == 1).all()
            text = documents.texts[documents.owner[target[0]]]
            start = tokens[0] - text[0]
            assert start % context == 0  # cut only where a row was full
            np.testing.assert_array_equal(tokens, text[start : start + len(tokens)])
            np.testing.assert_array_equal(target, text[start + shift : start + shift + len(tokens)])
            assert len(tokens) == min(context, len(text) - shift - start)
            np.testing.assert_array_equal(batch["position"][row, here], np.arange(len(tokens)))


def test_rows_come_in_no_order_of_length(listed, rng):
    """Neither do the short documents come first, nor do a row's longest stand at its start."""
    lengths = rng.integers(2, 30, 2000).tolist()
    rows = rows_of(listed([lengths]), 64, size=10**4)
    count = int(rows._rows.sum())
    batch = rows.take(np.arange(count))
    documents = batch["segment"].max(1)
    assert abs(np.corrcoef(documents, np.arange(count))[0, 1]) < 3 / count**0.5
    sizes = [(row, len(here)) for row, here, *_ in pieces_of(batch)]
    falls = [a[1] > b[1] for a, b in itertools.pairwise(sizes) if a[0] == b[0] and a[1] != b[1]]
    assert abs(np.mean(falls) - 0.5) < 0.05


def test_a_long_document_is_read_for_its_rows_together(listed):
    documents = listed([[1001, 5, 6, 1002]])
    rows = rows_of(documents, 10)
    count = int(rows._rows.sum())
    for number in range(count):
        rows.take(np.array([number]))
    assert count > 200 and len(documents.asked) <= 8


def test_without_the_document_mask_only_pads_are_apart(listed):
    batch = rows_of(listed([[9, 3, 4, 4, 7]]), 8, document_mask=False).take(np.arange(3))
    assert set(np.unique(batch["segment"])) == {0, 1}
    np.testing.assert_array_equal(batch["segment"], batch["weights"])


def test_nothing_to_predict(listed):
    with pytest.raises(UserError, match="no document has a token to predict"):
        rows_of(listed([[1, 1, 0]]), 8)
