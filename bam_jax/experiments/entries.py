"""A cell of a paper's table with what was measured of it, seed by seed."""

import dataclasses
import enum
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from bam_jax.experiments import statistics
from bam_jax.experiments.experiment import DASH, Column
from bam_jax.experiments.statistics import Interval, Kind
from bam_jax.system.errors import UserError

FACTORS = {"K": Decimal(10) ** 3, "M": Decimal(10) ** 6, "B": Decimal(10) ** 9}


class State(enum.Enum):
    """The state of a cell of a table in one seed."""

    MEASURED = "all that the column asks for is there"
    MISSING = "nothing is there"
    PARTIAL = "some samples are not there"
    STOPPED = "given up, since no prompt was answered at the lengths before"
    UNMEASURABLE = "the paper has a dash there"
    NOT_ASKED = "no evaluation measures it"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A cell of a table in one seed."""

    state: State
    value: float | None = None  # in the column's unit; None unless measured
    remark: str = ""  # how many samples there are, or why there are none
    seed: int = 0
    n: int = 0  # samples of the value; where it was given up, those that would have been asked
    speed: Mapping[str, Any] | None = None  # the record of a speed or a memory


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cell of a table in all seeds: an outcome for each, or one alone where no seed matters."""

    row: str
    column: Column
    paper: str  # as printed; "": nothing
    outcomes: tuple[Outcome, ...]

    @property
    def ours(self) -> tuple[float, ...]:
        """The values of the seeds that have been measured."""
        return tuple(outcome.value for outcome in self.outcomes if outcome.value is not None)

    @property
    def by_seed(self) -> dict[int, float]:
        """The value of each seed that is settled, of which one that was given up has 0."""
        settled = [outcome for outcome in self.outcomes if outcome.value is not None or outcome.state is State.STOPPED]
        return {outcome.seed: outcome.value or 0.0 for outcome in settled}

    @property
    def samples(self) -> int:
        """The number of samples, such as prompts, behind the values of all seeds in `by_seed`."""
        return sum(outcome.n for outcome in self.outcomes)

    @property
    def kind(self) -> Kind:
        """The kind of its number."""
        if self.column.speed is not None:
            return Kind.SPEED
        if self.column.evaluation is None:
            return Kind.CONFIGURATION
        return Kind[self.column.evaluation.quantity.upper()]

    @property
    def interval(self) -> Interval | None:
        """The interval over `by_seed` in the column's unit; None of fewer than two seeds, or without any."""
        return statistics.interval(self.kind, list(self.by_seed.values()), self.samples, self.column.unit)

    @property
    def mean(self) -> float | None:
        """The mean over the seeds that have been measured; None where there are none."""
        return float(np.mean(self.ours)) if self.ours else None

    @property
    def asked(self) -> bool:
        """True where a run or a comparison of speeds must measure it."""
        measured = self.column.evaluation is not None or self.column.speed is not None
        return measured and self.paper != DASH

    @property
    def stopped(self) -> bool:
        """True where some seed was given up."""
        return any(outcome.state is State.STOPPED for outcome in self.outcomes)

    @property
    def settled(self) -> bool:
        """True where nothing is left to measure: each seed has its value, or was given up."""
        done = (State.MEASURED, State.STOPPED)
        return bool(self.outcomes) and all(outcome.state in done for outcome in self.outcomes)

    @property
    def score(self) -> float | None:
        """The mean over all seeds, of which one that was given up has 0; None where it is not settled."""
        return sum(self.by_seed.values()) / len(self.outcomes) if self.settled else None


def parse_number(printed: str) -> Decimal | None:
    """The number that a paper printed; None where it has nothing or a dash.

    >>> [str(parse_number(text)) for text in ("17.00", "~25M", "2 × 768", "32.84 ± 0.40", ">0.8", "—")]
    ['17.00', '25000000', '1536', '32.84', '0.8', 'None']
    >>> parse_number("1 × 10^-3")
    Decimal('0.001')
    """
    if printed in ("", DASH):
        return None
    product = Decimal(1)
    for factor in printed.partition("±")[0].lstrip("~<>").split("×"):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?:\^(-?\d+))?([KMB]?)\s*", factor)
        if found is None:
            raise UserError(f"{printed!r} is not a number as tables print them")
        base, power, unit = found.groups()
        product *= Decimal(base) ** int(power or 1) * (FACTORS[unit] if unit else 1)
    return product
