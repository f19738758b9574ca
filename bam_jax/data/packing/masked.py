"""Masked language modelling: tokens to predict, hidden in the text (Devlin et al. 2019, section 3.1)."""

import numpy as np

from bam_jax.data.packing.rows import Batch, RowSource
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system.errors import UserError

HIDDEN, REPLACED = 0.8, 0.1
"""Shares of the tokens to predict that the mask stands for, and that another token stands for; the rest stays."""


class Masked:
    """Rows in which a fraction of the tokens is to be predicted: 80% masked, 10% replaced by a random token, 10% kept.

    Special tokens and pads are neither chosen nor put in. What happens to a row depends on the seed and its number.
    """

    def __init__(self, rows: RowSource, tokenizer: Tokenizer, *, fraction: float, seed: int) -> None:
        if tokenizer.mask is None:
            raise UserError(
                f"tokenizer '{tokenizer.name}' has no mask token for the task 'masked'; give one that has, such as bert"
            )
        self._rows = rows
        self._mask = tokenizer.mask
        self._text = np.ones(tokenizer.size, bool)
        self._text[[*tokenizer.special]] = False
        self._fraction, self._seed = fraction, seed

    def take(self, numbers: np.ndarray) -> Batch:
        batch = self._rows.take(numbers)
        targets = batch["targets"]
        ordinary = np.flatnonzero(self._text).astype(np.int32)
        chance, other = np.empty(targets.shape), np.empty_like(targets)
        # A row's own random numbers: it is the same in any batch, on any host.
        for row, number in enumerate(numbers.tolist()):
            rng = np.random.default_rng([self._seed, number])
            chance[row] = rng.random(targets.shape[1])
            other[row] = ordinary[rng.integers(0, len(ordinary), targets.shape[1])]
        chosen = (chance < self._fraction) & self._text[targets]
        if "segment" in batch:
            chosen &= batch["segment"] > 0
        kind = np.select([chance < HIDDEN * self._fraction, chance < (HIDDEN + REPLACED) * self._fraction], [0, 1], 2)
        tokens = np.select([chosen & (kind == 0), chosen & (kind == 1)], [np.int32(self._mask), other], targets)
        return batch | {"tokens": tokens, "targets": targets, "weights": chosen.astype(np.float32)}
