"""Numbers that were made up in place of what runs measured."""

import sys
from pathlib import Path

import numpy as np
import pytest

from bam_jax.experiments.cells import Measured, SeedValues
from bam_jax.experiments.statistics import Kind

sys.path.append(str(Path(__file__).parents[2] / "experiments"))  # as where an experiment file is loaded


class Given(Measured):
    """Numbers by row and column: one, or one for each seed."""

    def __init__(self, numbers, kind=Kind.ACCURACY, *, prompts=0):
        self.numbers, self.kind, self.prompts = numbers, kind, prompts

    def seed_values(self, table, row, column):
        values = self.numbers[row, column] if (row, column) in self.numbers else []
        values = values if isinstance(values, dict) else dict(enumerate(np.atleast_1d(values).tolist()))
        return SeedValues(values, self.kind, self.prompts * len(values))

    def learned_shapes(self, name, row):
        return self.numbers[row]


@pytest.fixture
def given():
    return Given
