"""Row sources: endless rows to make batches of, each a pure function of its number; and what they share."""

import dataclasses
import itertools
from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np

from bam_jax.data.packing.shuffle import Shuffle
from bam_jax.data.prepared.documents import Documents

Batch = dict[str, np.ndarray]


class RowSource(Protocol):
    """Endless rows in one global order, of which any can be made at any time: those of an epoch, then of the next."""

    def take(self, numbers: np.ndarray) -> Batch:
        """The rows of these numbers.

        Args:
            numbers: [R] int64 from 0, in any order; consecutive ones cost least.
        """


@dataclasses.dataclass(eq=False)
class PackedRows(RowSource):
    """Rows packed with documents.

    Args:
        documents: what to pack.
        shuffle: their order.
        context: tokens of a row.
        shift: 1: targets are the tokens that follow; 0: the tokens themselves.
        document_mask: number the documents of a row, and do not predict one from another.
        restart: give positions that start from 0 in every document.
    """

    documents: Documents
    shuffle: Shuffle
    context: int
    _: dataclasses.KW_ONLY
    shift: int = 1
    document_mask: bool = True
    restart: bool = False


class Memo[*Key, Value]:
    """A function that remembers its last few values. Pickled, it forgets them (`functools.lru_cache` cannot be pickled).

    Args:
        make: the function, of hashable arguments.
        size: number of values.

    >>> double = Memo(lambda number: 2 * number, size=1)
    >>> double(2), double(2)
    (4, 4)
    """

    def __init__(self, make: Callable[[*Key], Value], size: int) -> None:
        self._make, self._size = make, size
        self._values: dict[Hashable, Value] = {}

    def __call__(self, *key: *Key) -> Value:
        value = self._values.pop(key) if key in self._values else self._make(*key)
        self._values[key] = value  # the newest is the last
        if len(self._values) > self._size:
            del self._values[next(iter(self._values))]
        return value

    def __reduce__(self) -> tuple:
        return Memo, (self._make, self._size)


def consecutive_runs(numbers: np.ndarray, *same: np.ndarray) -> list[slice]:
    """Slices in which consecutive numbers stand one after the other.

    Args:
        numbers: [R] integers.
        same: [R] arrays that must not change within a slice.

    >>> consecutive_runs(np.array([7, 8, 9, 3]))
    [slice(0, 3, None), slice(3, 4, None)]
    """
    breaks = np.diff(numbers) != 1
    for other in same:
        breaks |= np.diff(other) != 0
    ends = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(numbers)]
    return [slice(first, last) for first, last in itertools.pairwise(ends) if first < last]


def restarted_positions(segment: np.ndarray) -> np.ndarray:
    """Positions that start again from 0 with every segment of a row.

    Args:
        segment: [R, T] integers.

    Returns:
        [R, T] int32.

    >>> restarted_positions(np.array([[1, 1, 2, 2, 2, 0]]))
    array([[0, 1, 0, 1, 2, 0]], dtype=int32)
    """
    index = np.arange(segment.shape[1], dtype=np.int32)
    starts = np.zeros_like(segment, np.int32)
    starts[:, 1:] = np.where(segment[:, 1:] != segment[:, :-1], index[1:], 0)
    return index - np.maximum.accumulate(starts, axis=1)
