"""Multi-query associative recall: pairs of key and value among fillers, then every key again, each before its value.

Source: Arora et al. 2023 (Zoology, arXiv 2312.04927). There the queries are strewn over the row; here they stand at its end, so
that the length of a row is the distance to the pairs.
"""

from typing import ClassVar

import numpy as np

from bam_jax.data.tasks.synthetic import SyntheticTask, draw_any, draw_different, scatter


class Recall(SyntheticTask):
    """Rows of pairs at random places and of queries at the end, in another order; an answer is the value of its key.

    Class attributes:
        writes: times that each key is written, each time with a value of its own; the last one counts.
    """

    writes: ClassVar[int] = 1
    name = "recall"
    cost = 4

    def symbols(self) -> range:
        """The keys."""
        return self.alphabet.keys

    @property
    def chance(self) -> float:
        """One value of all."""
        return 1 / len(self.alphabet.values)

    @property
    def answers(self) -> np.ndarray:
        """Every other token of the queries."""
        return np.arange(-2 * self.items, 0)[1::2]

    def draw(self, rng: np.random.Generator, length: int) -> np.ndarray:
        """See `SyntheticTask`."""
        keys = draw_different(rng, self.alphabet.keys, self.items)
        writes = rng.permutation(np.repeat(np.arange(self.items), self.writes))
        values = draw_any(rng, self.alphabet.values, len(writes))
        last = np.empty_like(keys)
        last[writes] = values  # of equal indices the last one is kept
        pairs = np.stack([keys[writes], values], axis=1)
        order = rng.permutation(self.items)
        queries = np.stack([keys, last], axis=1)[order].ravel()
        return np.concatenate([scatter(rng, pairs, self.alphabet, length - len(queries)), queries], dtype=np.int32)
