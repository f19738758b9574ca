"""Triplets: the three texts stay together, each triplet once an epoch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.config.sections import TRIPLET
from bam_jax.data.packing.rows import Shuffle
from bam_jax.data.packing.triplets import Triplets

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
