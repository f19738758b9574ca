"""Concat-then-split: every token is a target once an epoch, documents stay whole, rows do not depend on one another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.packing.concat import Concatenated, in_order
from bam_jax.data.packing.rows import Shuffle
from bam_jax.system.errors import UserError

SHARDS = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=5).filter(
    lambda shards: sum(map(sum, shards)) > 7
)


def rows_of(documents, context, size=4, seed=0, **options):
    return Concatenated(documents, Shuffle(documents, seed, size), context, **options)


@given(SHARDS, st.integers(1, 7), st.integers(1, 9), st.integers(0, 3), st.sampled_from([0, 1]))
def test_an_epoch_is_the_documents_end_to_end(listed, shards, context, size, seed, shift):
    documents = listed(shards)
    total = int(documents.lengths.sum())
    rows = rows_of(documents, context, size, seed, shift=shift, restart=True)
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
            segment, position = batch["segment"][row], batch["position"][row]
            assert segment[0] == 1
            np.testing.assert_array_equal(np.diff(segment), np.diff(mine) != 0)
            slow = [np.flatnonzero(mine == document)[0] for document in mine]
            np.testing.assert_array_equal(position, np.arange(context) - slow)


def test_without_the_document_mask_rows_are_one_document(listed):
    batch = rows_of(listed([[3, 4, 5, 6]]), 6, document_mask=False).take(np.arange(2))
    assert batch.keys() == {"tokens", "targets", "weights"} and (batch["weights"] == 1).all()


def test_a_long_document_is_read_once(listed):
    documents = listed([[1000]])
    rows = rows_of(documents, 8)
    for number in range(50):
        rows.take(np.array([2 * number, 2 * number + 1]))
    assert documents.asked == [0]


def test_text_that_fills_no_row(listed):
    assert rows_of(listed([[4, 4]]), 7).take(np.array([5]))["tokens"].shape == (1, 7)
    for shards in [[4, 4]], [[]]:
        with pytest.raises(UserError, match=r"the text has \d tokens, fewer than config.context=8 and one more"):
            rows_of(listed(shards), 8)


@given(SHARDS, st.data())
def test_the_stream_in_order(listed, shards, data):
    documents = listed(shards)
    stream = in_order(documents)
    whole = np.concatenate(documents.texts)
    assert len(stream) == len(whole)
    first = data.draw(st.integers(0, len(whole) - 1))
    last = data.draw(st.integers(first + 1, len(whole)))
    parts = stream.cut(first, last)
    np.testing.assert_array_equal(np.concatenate(parts), whole[first:last])
    assert all(len(set(documents.owner[part])) == 1 for part in parts)
