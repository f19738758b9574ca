"""Several corpora in one batch, each by its weight."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from bam_jax.data.packing.rows import Batch, RowSource
from bam_jax.system.errors import UserError


def deal(numbers: np.ndarray, weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Deals the rows of a mixture out to its parts, and numbers them within each part.

    Parts are split off one after the other: of the first n rows that are left, floor(n w / W) are the next part's,
    spread as evenly as whole numbers can be; W is the sum of the weights that are left. So of any n rows a part has
    n times its share, up to the number of parts, and each part's rows come in order with none left out.

    Of rows [R] int64 it returns the part [R] and the number within its part [R]; ratios of weights are taken to a millionth.

    >>> part, own = deal(np.arange(8), [3, 1])
    >>> part, own
    (array([1, 0, 0, 0, 1, 0, 0, 0]), array([0, 0, 1, 2, 1, 3, 4, 5]))
    """
    part, own = np.full(len(numbers), len(weights) - 1), np.empty(len(numbers), np.int64)
    left, number = np.arange(len(numbers)), numbers  # the rows not given out yet, and their numbers among these
    for index in range(len(weights) - 1):
        share = Fraction(weights[index] / sum(weights[index:])).limit_denominator(10**6)
        period, place = np.divmod(number, share.denominator)  # apart, so that no product leaves 64 bits
        before = place * share.numerator // share.denominator
        chosen = (place + 1) * share.numerator // share.denominator > before
        before += period * share.numerator
        part[left[chosen]], own[left[chosen]] = index, before[chosen]
        left, number = left[~chosen], (number - before)[~chosen]
    own[left] = number
    return part, own


class Mixture:
    """Rows of several kinds in one order (`deal`); each kind goes through its own epochs.

    Every row has what any kind has: one without segments is a single document, one without positions counts from 0.
    """

    def __init__(self, parts: Mapping[str, tuple[float, RowSource]]) -> None:
        self._weights = [weight for weight, _ in parts.values()]
        self._rows = [rows for _, rows in parts.values()]
        first = {name: rows.take(np.zeros(0, np.int64)) for name, (_, rows) in parts.items()}
        self._empty = {key: values for batch in first.values() for key, values in batch.items()}
        for name, batch in first.items():
            lacking = self._empty.keys() - batch.keys() - FILLED.keys()
            if lacking:
                raise UserError(f"config.data.mixture.{name} gives no {min(lacking)}, and another of the mixture does")

    def take(self, numbers: np.ndarray) -> Batch:
        part, own = deal(numbers, self._weights)
        batch = {key: np.empty((len(numbers), *like.shape[1:]), like.dtype) for key, like in self._empty.items()}
        for index in np.unique(part).tolist():
            here = part == index
            found = self._rows[index].take(own[here])
            for key, values in batch.items():
                values[here] = found[key] if key in found else FILLED[key](values.shape[1])
        return batch


FILLED: dict[str, Callable[[int], np.ndarray]] = {
    "segment": lambda context: np.ones(context, np.int32),
    "position": lambda context: np.arange(context, dtype=np.int32),
}
"""The values that rows without them have."""
