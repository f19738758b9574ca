"""The small parts that all rows are made with."""

import itertools
import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.packing.base import Memo, consecutive_runs, restarted_positions


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
