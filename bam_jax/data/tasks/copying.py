"""Copying: a marker and a string among fillers, then the marker again and the string once more.

Source: the task of Jelassi et al. 2024 (Repeat after me, arXiv 2402.01032); there the string fills the row.
"""

import numpy as np

from bam_jax.data.tasks.synthetic import SyntheticTask, draw_different, scatter


class Copy(SyntheticTask):
    """Rows with one string, of symbols that are all different, so that each tells the next; all of its symbols are answers."""

    name = "copy"
    cost = 2

    def symbols(self) -> range:
        """Keys and values."""
        return range(self.alphabet.values.stop)

    @property
    def chance(self) -> float:
        """One symbol of all."""
        return 1 / len(self.symbols())

    @property
    def answers(self) -> np.ndarray:
        """The string's second time."""
        return np.arange(-self.items, 0)

    def draw(self, rng: np.random.Generator, length: int) -> np.ndarray:
        """See `SyntheticTask`."""
        string = draw_different(rng, self.symbols(), self.items)
        marked = np.concatenate([[self.alphabet.marker], string])
        before = scatter(rng, marked[None], self.alphabet, length - len(marked))
        return np.concatenate([before, marked], dtype=np.int32)
