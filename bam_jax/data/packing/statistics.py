"""Statistics of the lengths of a corpus's documents, and of the rows packed from them."""

import dataclasses

import numpy as np

from bam_jax.data.packing.first_fit import first_fit_decreasing


@dataclasses.dataclass(frozen=True)
class PackingStatistics:
    """The rows that a packing makes of a corpus in an epoch."""

    rows: int
    filled: float  # fraction of their places that hold a token
    predicted: float  # fraction of their places whose target counts, if no document predicts the next
    whole: float  # fraction of the documents that stand in one row


def packing_statistics(lengths: np.ndarray, context: int) -> dict[str, PackingStatistics]:
    """The statistics of both packings, from the lengths of documents alone, end tokens included.

    Concatenated documents are cut wherever a row ends: a document of n tokens by chance (n - 1) / context. First-fit is that of
    all documents together; the loader's, group by group of a large corpus, has a row or two more a group.

    >>> packing_statistics(np.array([5, 3, 3]), 4)["first_fit"]
    PackingStatistics(rows=2, filled=1.0, predicted=1.0, whole=1.0)
    """
    tokens, documents = int(lengths.sum(dtype=np.int64)), len(lengths)
    slots = np.maximum(lengths - 1, 0)  # of a token and the one that follows it
    concat = PackingStatistics(
        rows=max(tokens - 1, 0) // context,
        filled=1.0,
        predicted=float(slots.sum(dtype=np.int64) / max(tokens, 1)),
        whole=float(np.maximum(1 - slots / context, 0).mean()) if documents else 1.0,
    )
    rests = first_fit_decreasing(np.bincount(slots % context, minlength=context + 1)).count
    rows = int((slots // context).sum(dtype=np.int64)) + rests
    filled = float(slots.sum(dtype=np.int64) / max(rows * context, 1))
    whole = float((slots <= context).mean()) if documents else 1.0
    return {"concat": concat, "first_fit": PackingStatistics(rows, filled, filled, whole)}


def octaves(lengths: np.ndarray) -> dict[range, tuple[int, int]]:
    """Documents and tokens by length, in ranges from a power of two to the next; length 0 counts to the first range.

    >>> octaves(np.array([1, 2, 3, 9]))
    {range(1, 2): (1, 1), range(2, 4): (2, 5), range(4, 8): (0, 0), range(8, 16): (1, 9)}
    """
    place = np.frexp(np.maximum(lengths, 1))[1] - 1
    documents, tokens = np.bincount(place), np.bincount(place, weights=lengths)
    first = int(place.min()) if len(place) else 0
    return {range(2**k, 2 ** (k + 1)): (int(documents[k]), int(tokens[k])) for k in range(first, len(documents))}
