"""Row sources: endless rows for batches, each a pure function of its number; and the order of their documents."""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Protocol

import numpy as np

from bam_jax.data.prepared.documents import Documents
from bam_jax.system.errors import UserError


class Shuffle:
    """Documents in groups of whole shards. Every epoch shuffles the groups, and the documents within each group, anew.

    Memory holds one group: `size` documents, or one shard more. Groups and their sizes are the same in every epoch.
    """

    def __init__(self, documents: Documents, seed: int, size: int) -> None:
        self._documents = documents
        self._seed = seed
        counts = np.diff(documents.shards)
        if not len(counts):
            raise UserError("there is no document to make rows of; name a source, or prepare a folder, with some")
        # Shards are assigned at random, so that neighbours in a source, which are similar, are in different groups.
        dealt = np.random.default_rng([seed]).permutation(len(counts))
        groups = (np.cumsum(counts[dealt]) - counts[dealt]) // size
        self._groups = [np.sort(shards) for shards in np.split(dealt, np.flatnonzero(np.diff(groups)) + 1)]

    def __len__(self) -> int:
        return len(self._groups)

    def lengths(self, group: int) -> np.ndarray:
        """The lengths of a group's documents, in the order of their numbers: [documents] int32, tokens."""
        return np.concatenate([self._documents.lengths[first:last] for first, last in self._ranges(group)])

    def groups(self, epoch: int) -> np.ndarray:
        """The groups in the order of an epoch: [groups] int64."""
        return self.rng(epoch, len(self)).permutation(len(self))  # smaller numbers are those of the groups

    def order(self, epoch: int, group: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents of a group in the order of an epoch: their numbers and their lengths, [documents] both."""
        numbers = np.concatenate([np.arange(first, last) for first, last in self._ranges(group)])
        order = self.rng(epoch, group).permutation(len(numbers))
        return numbers[order], self.lengths(group)[order]

    def rng(self, epoch: int, group: int, purpose: int = 0) -> np.random.Generator:
        """The random numbers of a group in an epoch; `purpose` 0 is for the order of its documents, others are free."""
        return np.random.default_rng([self._seed, epoch, group, purpose])

    def locate(self, numbers: np.ndarray, counts: np.ndarray) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """Yield the groups that rows [R] come from; a group has the same number of rows in every epoch (`counts`, [groups])."""
        epochs, rows = np.divmod(numbers, counts.sum())
        for epoch in np.unique(epochs).tolist():
            groups = self.groups(epoch)
            ends = np.cumsum(counts[groups])
            here = np.flatnonzero(epochs == epoch)
            places = np.searchsorted(ends, rows[here], side="right")
            for place in np.unique(places).tolist():
                chosen = here[places == place]
                yield epoch, int(groups[place]), chosen, rows[chosen] - ends[place] + counts[groups[place]]

    def _ranges(self, group: int) -> list[tuple[int, int]]:
        bounds = self._documents.shards
        return [(int(bounds[shard]), int(bounds[shard + 1])) for shard in self._groups[group]]


Batch = dict[str, np.ndarray]


class RowSource(Protocol):
    """Endless rows in one global order, epoch after epoch; any row can be made at any time."""

    def take(self, numbers: np.ndarray) -> Batch:
        """The rows with these numbers: [R] int64 from 0, in any order; consecutive ones are cheapest."""


@dataclasses.dataclass(eq=False)
class PackedRows(RowSource):
    """Rows packed with documents."""

    documents: Documents
    shuffle: Shuffle
    context: int
    _: dataclasses.KW_ONLY
    shift: int = 1  # 1: targets are the next tokens; 0: the tokens themselves
    document_mask: bool = True  # number the documents of a row, and do not predict one document from another
    restart: bool = False  # give positions that start from 0 in every document


class Memo[*Key, Value]:
    """A function that caches its last few values. Pickling drops the cache (`functools.lru_cache` cannot be pickled).

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
    """Slices of numbers [R] in which the numbers are consecutive and the arrays `same` [R] are constant.

    >>> consecutive_runs(np.array([7, 8, 9, 3]))
    [slice(0, 3, None), slice(3, 4, None)]
    """
    breaks = np.diff(numbers) != 1
    for other in same:
        breaks |= np.diff(other) != 0
    ends = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(numbers)]
    return [slice(first, last) for first, last in itertools.pairwise(ends) if first < last]


def restarted_positions(segment: np.ndarray) -> np.ndarray:
    """Positions [R, T] int32 that start again from 0 with every segment of a row.

    >>> restarted_positions(np.array([[1, 1, 2, 2, 2, 0]]))
    array([[0, 1, 0, 1, 2, 0]], dtype=int32)
    """
    index = np.arange(segment.shape[1], dtype=np.int32)
    starts = np.zeros_like(segment, np.int32)
    starts[:, 1:] = np.where(segment[:, 1:] != segment[:, :-1], index[1:], 0)
    return index - np.maximum.accumulate(starts, axis=1)
