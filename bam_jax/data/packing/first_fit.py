"""First-fit packing: whole documents, or pieces of the longer ones, where they fit."""

import dataclasses

import numpy as np

from bam_jax.data.packing.base import Batch, Memo, restarted_positions
from bam_jax.data.packing.shuffle import Shuffle
from bam_jax.data.prepared.documents import Documents, Reader
from bam_jax.system.errors import UserError


@dataclasses.dataclass(frozen=True)
class Bins:
    """What first-fit decreasing makes of pieces, told in runs of neighbouring bins that take equally many.

    Args:
        count: number of bins.
        first: [runs] the first bin of each run, in the order in which pieces are given out, longest first.
        bins: [runs] how many bins a run has.
        each: [runs] how many pieces each of them takes.
    """

    count: int
    first: np.ndarray
    bins: np.ndarray
    each: np.ndarray

    def of_pieces(self) -> np.ndarray:
        """The bin of each piece, longest piece first: [pieces] int64."""
        bins = np.repeat(self.first - (np.cumsum(self.bins) - self.bins), self.bins) + np.arange(self.bins.sum())
        return np.repeat(bins, np.repeat(self.each, self.bins))


def first_fit_decreasing(counts: np.ndarray) -> Bins:
    """Puts pieces into bins: the longest first, each into the first bin that has room for it, or else a new one.

    Pieces of one length fill bins with equal room equally, so that bins are handled in runs and the time depends
    on the size of a bin, not on the number of pieces.

    Args:
        counts: [T + 1] how many pieces have each length, 0 ... T; T is the size of a bin.

    >>> first_fit_decreasing(np.array([0, 2, 0, 1, 0, 1])).of_pieces()  # lengths 5, 3, 1, 1
    array([0, 1, 1, 1])
    """
    size = len(counts) - 1
    made = 0
    runs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    first, bins, room = np.zeros((3, 0), np.int64)  # of the runs that have room
    for length in np.flatnonzero(counts)[::-1].tolist():
        if length == 0:
            break
        left = int(counts[length])
        each = room // length
        taken = np.cumsum(each * bins)
        full = int(np.searchsorted(taken, left, side="right"))  # runs of which each bin takes what it can
        left -= int(taken[full - 1]) if full else 0
        taking = np.flatnonzero(each[:full])
        runs.append((first[taking], bins[taking], each[taking]))
        room[:full] -= each[:full] * length
        if left:
            if full == len(bins):  # new bins, of which the last may not be filled
                new = -(-left // (size // length))
                first, bins, room = np.append(first, made), np.append(bins, new), np.append(room, size)
                made += new
            most = int(room[full]) // length
            whole, rest = divmod(left, most)
            # The run comes apart: bins that take all they can, one that takes what is left, bins that take nothing.
            parts = [(whole, most), (min(rest, 1), rest), (int(bins[full]) - whole - min(rest, 1), 0)]
            many, takes = np.array([part for part in parts if part[0]], np.int64).T
            places = first[full] + np.cumsum(many) - many
            taking = np.flatnonzero(takes)
            runs.append((places[taking], many[taking], takes[taking]))
            first, bins, room = (
                np.concatenate([old[:full], new, old[full + 1 :]])
                for old, new in ((first, places), (bins, many), (room, room[full] - takes * length))
            )
        open_ = room > 0
        first, bins, room = first[open_], bins[open_], room[open_]
    columns = zip(*runs, strict=True) if runs else ([np.zeros(0, np.int64)],) * 3
    return Bins(made, *(np.concatenate(column) for column in columns))


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The pieces of a group's rows, row by row."""

    document: np.ndarray  # [pieces]
    start: np.ndarray  # [pieces] place of its first token in the document
    size: np.ndarray  # [pieces] slots
    first: np.ndarray  # [rows + 1] the first piece of each row, and the number of pieces


class FirstFit:
    """Rows of documents that are whole where they can be: first-fit decreasing, group by group of the shuffle.

    A document longer than a row gives full rows, one after the other, and a rest; rests and short documents share
    rows. Rows come in random order, but those that one document fills together, and so do the pieces of a row. What
    no piece fills is padded with 0: weight 0, segment 0. With `shift` 1 a slot holds a token and the one that
    follows it in its document: an epoch has each token of a document but the first as a target exactly once, and
    no slot is lost where documents meet.

    The number of rows of a group follows from its lengths alone and holds for all epochs. So opening costs one
    pass over the lengths, and resuming anywhere the plan of a group: about a second for a million documents.

    Args: as those of `Concatenated`.

    Raises:
        UserError: no document has a token to predict.
    """

    def __init__(
        self,
        documents: Documents,
        shuffle: Shuffle,
        context: int,
        *,
        shift: int = 1,
        document_mask: bool = True,
        restart: bool = False,
    ) -> None:
        self._read = Reader(documents)
        self._shuffle = shuffle
        self._context, self._shift = context, shift
        self._document_mask, self._restart = document_mask, restart
        self._rows = np.array([self._count(group) for group in range(len(shuffle))], np.int64)
        if not self._rows.sum():
            raise UserError("no document has a token to predict; give more text")
        self._plan = Memo(self._make_plan, size=2)

    def take(self, numbers: np.ndarray) -> Batch:
        """See `RowSource`: tokens, targets, weights, segment, and position if it is wanted."""
        tokens, targets, segment = np.zeros((3, len(numbers), self._context), np.int32)
        for epoch, group, chosen, rows in self._shuffle.locate(numbers, self._rows):
            self._fill(self._plan(epoch, group), rows, chosen, tokens, targets, segment)
        batch = {"tokens": tokens, "targets": targets, "weights": (segment > 0).astype(np.float32)}
        position = {"position": restarted_positions(segment)} if self._restart else {}
        return batch | {"segment": segment if self._document_mask else np.minimum(segment, 1)} | position

    def _fill(self, plan, rows, places, tokens, targets, segment) -> None:
        """Writes rows of a plan into places of the arrays."""
        firsts, lasts = plan.first[rows], plan.first[rows + 1]
        pieces = np.concatenate([np.arange(first, last) for first, last in zip(firsts, lasts, strict=True)])
        found = iter(self._read(plan.document[pieces]))
        starts, sizes = iter(plan.start[pieces].tolist()), iter(plan.size[pieces].tolist())
        for row, count in zip(places.tolist(), (lasts - firsts).tolist(), strict=True):
            at = 0
            for number in range(1, count + 1):
                ids, start, size = next(found), next(starts), next(sizes)
                tokens[row, at : at + size] = ids[start : start + size]
                targets[row, at : at + size] = ids[start + self._shift : start + self._shift + size]
                segment[row, at : at + size] = number
                at += size

    def _count(self, group: int) -> int:
        slots = np.maximum(self._shuffle.lengths(group) - self._shift, 0)
        rests = np.bincount(slots % self._context, minlength=self._context + 1)
        return int((slots // self._context).sum(dtype=np.int64)) + first_fit_decreasing(rests).count

    def _make_plan(self, epoch: int, group: int) -> _Plan:
        context = self._context
        numbers, lengths = self._shuffle.order(epoch, group)
        slots = np.maximum(lengths - self._shift, 0)
        full, rest = slots // context, slots % context
        # A document's place in the order stands for it until the end.
        whole = np.repeat(np.arange(len(slots)), full)
        index = np.arange(len(whole)) - np.repeat(np.cumsum(full) - full, full)
        partial = np.argsort(-rest, kind="stable")[: np.count_nonzero(rest)]  # longest first, as they are given out
        bins = first_fit_decreasing(np.bincount(rest, minlength=context + 1))
        bin_ = bins.of_pieces()
        opener = np.empty(bins.count, np.int64)
        opener[bin_[::-1]] = partial[::-1]
        # Bins favour the first of equally long pieces: rows, and pieces in them, go by another order of the documents.
        # Rows go by the document that opened them: those that a long one fills stand together.
        key = self._shuffle.rng(epoch, group, purpose=1).permutation(len(slots))
        row = np.empty(len(whole) + bins.count, np.int64)
        row[np.argsort(key[np.concatenate([whole, opener])], kind="stable")] = np.arange(len(row))
        place = np.concatenate([whole, partial])
        rows = np.concatenate([row[: len(whole)], row[len(whole) :][bin_]])
        start = np.concatenate([index * context, full[partial].astype(np.int64) * context])
        size = np.concatenate([np.full(len(whole), context), rest[partial]])
        order = np.lexsort((key[place], rows))
        first = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(row)))])
        return _Plan(numbers[place[order]], start[order], size[order].astype(np.int32), first)
