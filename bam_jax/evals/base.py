"""What the evaluations share: the cells of a table, and how many rows fit into memory."""

import dataclasses

from bam_jax.config import ModelConfig


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """One number to find: the samples `first` ... `stop` - 1 of a length and a depth.

    Args:
        length: tokens of a sample.
        depth: of a passkey, 0 to 1; None where there is none.
        first, stop: numbers of the samples; those before `first` were measured earlier.
    """

    length: int
    depth: float | None
    first: int
    stop: int

    @property
    def n(self) -> int:
        """Samples to measure."""
        return self.stop - self.first


def rows_within(memory: float, length: int, config: ModelConfig) -> int:
    """How many rows of a length are computed at once, one at least.

    A forward pass keeps one layer's activations: about 8 vectors of the width and 3 of the hidden width for each
    token, in float32, whatever the number of layers (a cache would keep 2 for each layer).

    Args:
        memory: for activations, bytes.
        length: tokens of a row.
        config: the model's sizes.

    >>> rows_within(2**31, 32_000, ModelConfig(width=64, hidden=128))
    18
    """
    return max(1, int(memory // (4 * length * (8 * config.width + 3 * config.hidden))))
