"""Concatenated documents, cut at any token: the packing concat-then-split."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import numpy as np

from bam_jax.data.packing.rows import Batch, Memo, PackedRows, consecutive_runs, restarted_positions
from bam_jax.data.prepared.documents import Documents, Reader
from bam_jax.system.errors import UserError


class Stream:
    """Concatenated documents, group after group; single documents are located only in groups that are read."""

    def __init__(
        self,
        read: Callable[[np.ndarray], list[np.ndarray]],
        tokens: np.ndarray,
        order: Callable[[int], tuple[np.ndarray, np.ndarray]],
    ) -> None:
        self._read = read
        self._ends = np.cumsum(tokens, dtype=np.int64)
        self._order = order
        self._group = Memo(self._place, size=2)  # a row may begin in one group and end in the next

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def cut(self, first: int, last: int) -> list[np.ndarray]:
        """The tokens from position `first` up to `last`, one piece per document: [tokens] int32 each."""
        pieces: list[np.ndarray] = []
        while first < last:
            group = int(self._ends.searchsorted(first, side="right"))
            numbers, stops = self._group(group)
            start = int(self._ends[group]) - int(stops[-1])  # of the group, in the stream
            stop = min(last, int(self._ends[group]))
            # The documents that contain the first and the last token.
            low, high = stops.searchsorted([first - start, stop - 1 - start], side="right").tolist()
            texts = self._read(numbers[low : high + 1])
            # The last document is cut before the first: if they are the same, its start must still be in place.
            texts[-1] = texts[-1][: stop - start - (int(stops[high]) - len(texts[-1]))]
            texts[0] = texts[0][first - start - (int(stops[low - 1]) if low else 0) :]
            pieces += [text for text in texts if len(text)]
            first = stop
        return pieces

    def _place(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of a group's documents, and the position in the group at which each ends."""
        numbers, lengths = self._order(group)
        return numbers, np.cumsum(lengths, dtype=np.int64)


def in_order(documents: Documents) -> Stream:
    """The stream of all documents in the order of their numbers."""
    ranges = list(itertools.pairwise(documents.shards.tolist()))
    tokens = np.array([documents.lengths[first:last].sum(dtype=np.int64) for first, last in ranges], np.int64)
    return Stream(documents.read, tokens, functools.partial(_range, documents, ranges))


def _range(documents: Documents, ranges: list[tuple[int, int]], group: int) -> tuple[np.ndarray, np.ndarray]:
    first, last = ranges[group]
    return np.arange(first, last), documents.lengths[first:last]


def too_short(tokens: int, context: int) -> UserError:
    return UserError(
        f"the text has {tokens} tokens, fewer than config.context={context} and one more; "
        "give a shorter context or more text"
    )


@dataclasses.dataclass(eq=False)
class Concatenated(PackedRows):
    """Rows of concatenated documents, in a new order every epoch; a document cut by the end of a row continues in the next.

    With `shift` 1, the last target of a row is the first token of the next row, so each token is a target once per epoch.
    """

    _: dataclasses.KW_ONLY
    # predict a document's first token from the last token of the document before it, whatever the mask
    across: bool = False

    def __post_init__(self) -> None:
        self._read = Reader(self.documents)
        groups = range(len(self.shuffle))
        self._tokens = np.array([self.shuffle.lengths(group).sum(dtype=np.int64) for group in groups], np.int64)
        total = int(self._tokens.sum())
        self._rows = (total - self.shift) // self.context
        if self._rows < 1:
            raise too_short(total, self.context)
        self._stream = Memo(self._epoch, size=2)  # a batch may begin in one epoch and end in the next

    def take(self, numbers: np.ndarray) -> Batch:
        epochs, rows = numbers // self._rows, numbers % self._rows
        wide = self.context + self.shift
        tokens = np.empty((len(numbers), wide), np.int32)
        slots = np.empty_like(tokens)
        for part in consecutive_runs(rows, epochs):
            first = int(rows[part][0]) * self.context
            last = int(rows[part][-1]) * self.context + wide
            documents = self._stream(int(epochs[part][0])).cut(first, last)
            slot = np.repeat(np.arange(len(documents), dtype=np.int32), list(map(len, documents)))
            windows = np.lib.stride_tricks.sliding_window_view
            tokens[part] = windows(np.concatenate(documents), wide)[:: self.context]
            slots[part] = windows(slot, wide)[:: self.context]
        here, there = slice(self.context), slice(self.shift, None)
        batch = {"tokens": tokens[:, here], "targets": tokens[:, there]}
        segment = slots[:, here] - slots[:, :1] + 1
        within = slots[:, here] == slots[:, there]
        batch["weights"] = np.where(self.document_mask and not self.across, within, True).astype(np.float32)
        if self.document_mask:
            batch["segment"] = segment
        return batch | ({"position": restarted_positions(segment)} if self.restart else {})

    def _epoch(self, epoch: int) -> Stream:
        groups = self.shuffle.groups(epoch)
        order = lambda place: self.shuffle.order(epoch, int(groups[place]))
        return Stream(self._read, self._tokens[groups], order)
