"""First-fit packing: whole documents, or pieces of the longer ones, where they fit."""

import dataclasses

import numpy as np

from bam_jax.data.packing.rows import Batch, Memo, PackedRows, restarted_positions
from bam_jax.data.prepared.documents import Reader
from bam_jax.system.errors import UserError


@dataclasses.dataclass(frozen=True)
class Bins:
    """The bins that first-fit decreasing fills, as runs of neighbouring bins that take equally many pieces."""

    count: int
    first: np.ndarray  # [runs] the first bin of each run, in the order in which pieces are assigned, longest first
    bins: np.ndarray  # [runs] number of bins of a run
    pieces: np.ndarray  # [runs] number of pieces in each of these bins

    def of_pieces(self) -> np.ndarray:
        """The bin of each piece, longest piece first: [pieces] int64."""
        bins = np.repeat(self.first - (np.cumsum(self.bins) - self.bins), self.bins) + np.arange(self.bins.sum())
        return np.repeat(bins, np.repeat(self.pieces, self.bins))


class _OpenRuns:
    """The runs of neighbouring bins with equal room, in the order of their bins; full bins are dropped."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.made = 0  # bins so far
        self._first, self._bins, self._room = np.zeros((3, 0), np.int64)

    def take(self, length: int, count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Put pieces of one length into the first bins with room for them, then into new ones; return the columns of `Bins`."""
        most = self._room // length  # pieces that each bin of a run can take
        given = np.cumsum(most * self._bins)
        filled = int(np.searchsorted(given, count, side="right"))  # runs in which each bin takes as many as it can
        left = count - (int(given[filled - 1]) if filled else 0)
        taking = np.flatnonzero(most[:filled])
        taken = [(self._first[taking], self._bins[taking], most[taking])]
        self._room[:filled] -= most[:filled] * length
        if left:
            if filled == len(self._bins):
                new = -(-left // (self._size // length))
                self._first, self._bins = np.append(self._first, self.made), np.append(self._bins, new)
                self._room = np.append(self._room, self._size)
                self.made += new
            taken.append(self._divide_run(filled, length, left))
        still = self._room > 0
        self._first, self._bins, self._room = self._first[still], self._bins[still], self._room[still]
        return taken

    def _divide_run(self, run: int, length: int, left: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Divide a run into bins that take as many pieces as they can, one that takes the others, and bins that take none."""
        most = int(self._room[run]) // length
        whole, rest = divmod(left, most)
        partial = min(rest, 1)
        divided = [(whole, most), (partial, rest), (int(self._bins[run]) - whole - partial, 0)]
        bins, pieces = np.array([(count, each) for count, each in divided if count], np.int64).T
        first = self._first[run] + np.cumsum(bins) - bins
        room = self._room[run] - pieces * length
        self._first = np.concatenate([self._first[:run], first, self._first[run + 1 :]])
        self._bins = np.concatenate([self._bins[:run], bins, self._bins[run + 1 :]])
        self._room = np.concatenate([self._room[:run], room, self._room[run + 1 :]])
        taking = np.flatnonzero(pieces)
        return first[taking], bins[taking], pieces[taking]


def first_fit_decreasing(counts: np.ndarray) -> Bins:
    """Assign pieces to bins: the longest first, each to the first bin that has room for it, or else to a new one.

    `counts` [T + 1] is the number of pieces of each length; T is the size of a bin. Pieces of one length fill bins with equal
    room in the same way, so bins are processed in runs. The time depends on the size of a bin, not on the number of pieces.

    >>> first_fit_decreasing(np.array([0, 2, 0, 1, 0, 1])).of_pieces()  # lengths 5, 3, 1, 1
    array([0, 1, 1, 1])
    """
    open_runs = _OpenRuns(len(counts) - 1)
    taken = [(np.zeros(0, np.int64),) * 3]
    for length in range(len(counts) - 1, 0, -1):
        if counts[length]:
            taken += open_runs.take(length, int(counts[length]))
    first, bins, pieces = (np.concatenate(column) for column in zip(*taken, strict=True))
    return Bins(open_runs.made, first, bins, pieces)


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """The pieces of documents that fill a group's rows, row by row."""

    document: np.ndarray  # [pieces]
    start: np.ndarray  # [pieces] position of its first token in the document
    size: np.ndarray  # [pieces] slots
    first: np.ndarray  # [rows + 1] the first piece of each row, and the number of pieces


@dataclasses.dataclass(eq=False)
class FirstFit(PackedRows):
    """Rows that keep documents whole if possible: first-fit decreasing, within each group of the shuffle.

    A document longer than a row fills consecutive full rows and leaves a remainder. Remainders and short documents share rows, in
    random order. Padding is 0, with weight 0 and segment 0. With `shift` 1, a slot has a token and the next token of its
    document. Each token except a document's first is then a target once per epoch, and no slot is lost between documents.

    The number of rows of a group depends only on its lengths and is the same in all epochs. Opening takes one pass over the
    lengths, and resuming takes planning one group: about a second for a million documents.
    """

    def __post_init__(self) -> None:
        self._read = Reader(self.documents)
        self._rows = np.array([self._count_rows(group) for group in range(len(self.shuffle))], np.int64)
        if not self._rows.sum():
            raise UserError("no document has a token to predict; give more text")
        # Two: a batch may begin in one group and end in the next.
        self._pieces = Memo(self._arrange, size=2)

    def take(self, numbers: np.ndarray) -> Batch:
        tokens, targets, segment = np.zeros((3, len(numbers), self.context), np.int32)
        for epoch, group, chosen, rows in self.shuffle.locate(numbers, self._rows):
            pieces = self._pieces(epoch, group)
            firsts, lasts = pieces.first[rows], pieces.first[rows + 1]
            wanted = np.concatenate([np.arange(first, last) for first, last in zip(firsts, lasts, strict=True)])
            documents = iter(self._read(pieces.document[wanted]))  # all at once: the reader groups them by shard
            starts, sizes = iter(pieces.start[wanted].tolist()), iter(pieces.size[wanted].tolist())
            for row, count in zip(chosen.tolist(), (lasts - firsts).tolist(), strict=True):
                at = 0
                for number in range(1, count + 1):
                    ids, start, size = next(documents), next(starts), next(sizes)
                    tokens[row, at : at + size] = ids[start : start + size]
                    targets[row, at : at + size] = ids[start + self.shift : start + self.shift + size]
                    segment[row, at : at + size] = number
                    at += size
        batch = {"tokens": tokens, "targets": targets, "weights": (segment > 0).astype(np.float32)}
        position = {"position": restarted_positions(segment)} if self.restart else {}
        return batch | {"segment": segment if self.document_mask else np.minimum(segment, 1)} | position

    def _count_rows(self, group: int) -> int:
        slots = np.maximum(self.shuffle.lengths(group) - self.shift, 0)
        rests = np.bincount(slots % self.context, minlength=self.context + 1)
        return int((slots // self.context).sum(dtype=np.int64)) + first_fit_decreasing(rests).count

    def _arrange(self, epoch: int, group: int) -> _Pieces:
        """The pieces of a group's rows in an epoch: first-fit decides what shares a row, and the order of rows is random."""
        context = self.context
        numbers, lengths = self.shuffle.order(epoch, group)
        slots = np.maximum(lengths - self.shift, 0)
        full, rest = slots // context, slots % context
        # Until the end, a document is represented by its index in the order.
        whole = np.repeat(np.arange(len(slots)), full)
        index = np.arange(len(whole)) - np.repeat(np.cumsum(full) - full, full)
        partial = np.argsort(-rest, kind="stable")[: np.count_nonzero(rest)]  # longest first, as they are assigned
        bins = first_fit_decreasing(np.bincount(rest, minlength=context + 1))
        bin_of = bins.of_pieces()
        opener = np.empty(bins.count, np.int64)
        opener[bin_of[::-1]] = partial[::-1]  # reversed: of several writes to a bin, the last is kept, its first piece
        # Bins favour the first of equally long pieces, so rows, and the pieces in them, are sorted by another order of the
        # documents. Rows are sorted by the document that opened them, so the rows that a long document fills are adjacent.
        key = self.shuffle.rng(epoch, group, purpose=1).permutation(len(slots))
        row = np.empty(len(whole) + bins.count, np.int64)
        row[np.argsort(key[np.concatenate([whole, opener])], kind="stable")] = np.arange(len(row))
        place = np.concatenate([whole, partial])
        rows = np.concatenate([row[: len(whole)], row[len(whole) :][bin_of]])
        start = np.concatenate([index * context, full[partial].astype(np.int64) * context])
        size = np.concatenate([np.full(len(whole), context), rest[partial]])
        order = np.lexsort((key[place], rows))
        first = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(row)))])
        return _Pieces(numbers[place[order]], start[order], size[order].astype(np.int32), first)
