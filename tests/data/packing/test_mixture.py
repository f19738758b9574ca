"""Mixtures: each part gets its share, spread evenly, and none of its rows is left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.packing.mixture import Mixture, deal
from bam_jax.system.errors import UserError

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


def test_shares_do_not_drift():
    for number in (10**15, 10**15 + 7):
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
    of_one = numbers[part == 1]
    assert mixture.take(of_one).keys() == batch.keys() == mixture.take(numbers[part == 0]).keys()


def test_kinds_that_do_not_go_together():
    with pytest.raises(UserError, match="config.data.mixture.b gives no query"):
        Mixture({"a": (1, Numbered(1, "query")), "b": (1, Numbered(2))})
