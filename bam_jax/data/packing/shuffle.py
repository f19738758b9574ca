"""The order of documents: shuffled without a list of all of them."""

from collections.abc import Iterator

import numpy as np

from bam_jax.data.prepared.documents import Documents
from bam_jax.system.errors import UserError


class Shuffle:
    """Documents in groups of whole shards; the groups, and the documents of each, are shuffled anew every epoch.

    The seed deals out the shards. Memory is that of a group; a corpus of one group is shuffled as a whole.
    Groups hold the same documents in every epoch: what is counted of them once is true for ever.

    Args:
        documents: what to shuffle.
        seed: decides on every order.
        size: documents of a group, at most one shard's more.
    """

    def __init__(self, documents: Documents, seed: int, size: int) -> None:
        self._documents = documents
        self._seed = seed
        counts = np.diff(documents.shards)
        if not len(counts):
            raise UserError("there is no document to make rows of; name a source, or prepare a folder, with some")
        # Shards are dealt out at random: neighbours of a source, which are alike, come into different groups.
        dealt = np.random.default_rng([seed]).permutation(len(counts))
        groups = (np.cumsum(counts[dealt]) - counts[dealt]) // size
        self._groups = [np.sort(shards) for shards in np.split(dealt, np.flatnonzero(np.diff(groups)) + 1)]

    def __len__(self) -> int:
        """Number of groups."""
        return len(self._groups)

    def lengths(self, group: int) -> np.ndarray:
        """The lengths of a group's documents, in the order of their numbers: [documents] int32, tokens."""
        return np.concatenate([self._documents.lengths[first:last] for first, last in self._ranges(group)])

    def groups(self, epoch: int) -> np.ndarray:
        """The groups in the order of an epoch: [groups] int64."""
        return self.rng(epoch, len(self)).permutation(len(self))  # below are the groups' own numbers

    def order(self, epoch: int, group: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents of a group in the order of an epoch: their numbers and their lengths, [documents] both."""
        numbers = np.concatenate([np.arange(first, last) for first, last in self._ranges(group)])
        order = self.rng(epoch, group).permutation(len(numbers))
        return numbers[order], self.lengths(group)[order]

    def rng(self, epoch: int, group: int, purpose: int = 0) -> np.random.Generator:
        """The random numbers of a group in an epoch; `purpose` 0 are those of its order, others are free."""
        return np.random.default_rng([self._seed, epoch, group, purpose])

    def locate(self, numbers: np.ndarray, counts: np.ndarray) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """Yields the groups that rows come from, if a group gives equally many in every epoch.

        Args:
            numbers: [R] int64, rows from 0, epoch after epoch.
            counts: [groups] int64, rows that each group gives.
        """
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
