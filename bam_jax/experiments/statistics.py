"""Intervals and tests over training seeds: tests are one-sided, intervals two-sided at 95%.

This module adds what scipy lacks: the binomial floor of an accuracy's error, the interval of a ratio, and the number of seeds
needed.
"""

import bisect
import enum
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from scipy import stats

LEVEL = 0.95  # the coverage of intervals
SEEDS = 8  # the minimum number of seeds for a verdict
POWER = 0.8  # the power of a test with the number of seeds that is reported as needed
MAX_SEEDS = 1000  # the largest number of seeds worth reporting

type Values = Sequence[float] | np.ndarray


class Kind(enum.Enum):
    """The kind of a number, which determines how seeds are averaged."""

    ACCURACY = "a share of samples, whose error is at least the binomial one"
    PERPLEXITY = "a positive number, whose logarithm is averaged"
    LOSS = "a number of nats"
    GAIN = "a number of nats that are saved"
    SPEED = "a time or a memory, repeated on one machine"
    CONFIGURATION = "a property of a configuration, or a printed number"

    @property
    def has_seeds(self) -> bool:
        return self in (Kind.ACCURACY, Kind.PERPLEXITY, Kind.LOSS, Kind.GAIN)

    @property
    def more_is_better(self) -> bool:
        """True if the best row has the largest value."""
        return self in (Kind.ACCURACY, Kind.GAIN)


class Interval(NamedTuple):
    """An estimate between the ends of its interval, which are nan if there is no interval."""

    low: float
    middle: float
    high: float

    def clipped(self, least: float, most: float) -> Self:
        return self._replace(low=max(self.low, least), high=min(self.high, most))

    def exp(self) -> Self:
        """The interval of a quantity whose logarithm has this interval; ends beyond the largest float are infinite."""
        largest = math.log(sys.float_info.max) - 1
        return type(self)(*(math.inf if end > largest else math.exp(end) for end in self))


class Estimate(NamedTuple):
    """A mean over n seeds with its standard error."""

    mean: float
    error: float
    n: int

    def interval(self) -> Interval:
        half = float(stats.t.ppf((1 + LEVEL) / 2, self.n - 1)) * self.error
        return Interval(self.mean - half, self.mean, self.mean + half)

    def p_above(self, bound: float) -> float:
        distance = self.mean - bound
        # Seeds that agree to the last bit, as in two rows of the same run, have no error. Equality is then no evidence.
        t = distance / self.error if self.error else math.copysign(math.inf, distance) if distance else 0.0
        return float(stats.t.sf(t, self.n - 1))

    def p_below(self, bound: float) -> float:
        return 1.0 - self.p_above(bound)

    def seeds_needed(self, bound: float, alpha: float) -> float:
        """The smallest n whose t test at level alpha has the power `POWER`; infinite if it is above `MAX_SEEDS`.

            (t_{1 - alpha, n-1} + t_{POWER, n-1}) spread / sqrt(n) <= |mean - bound|

        It assumes that the observed difference and spread are the true ones. Source: Guenther 1981.
        """
        distance, spread = abs(self.mean - bound), self.error * math.sqrt(self.n)

        def is_enough(n: int) -> bool:
            return distance > 0 and stats.t.ppf([1 - alpha, POWER], n - 1).sum() * spread / math.sqrt(n) <= distance

        n = bisect.bisect_left(range(MAX_SEEDS + 1), True, lo=2, key=is_enough)
        return n if n <= MAX_SEEDS else math.inf


def estimate(values: Values, floor: float = 0.0) -> Estimate:
    """The mean of two or more seeds with the standard error s / sqrt(n), which is at least `floor`."""
    numbers = np.asarray(values, np.float64)
    if numbers.size < 2:
        raise ValueError(f"{numbers.size} seeds have no spread; an interval needs two at least")
    # Records may hold numbers whose squares overflow.
    unit = float(np.abs(numbers).max()) or 1.0
    error = (numbers / unit).std(ddof=1) * unit / math.sqrt(numbers.size)
    return Estimate(float(numbers.mean()), max(float(error), floor), numbers.size)


def summarise(values: Values, floor: float = 0.0) -> Interval:
    """The mean and its interval, whose ends are nan for a single value; all are nan without values."""
    if len(values) < 2:
        return Interval(math.nan, float(values[0]) if len(values) else math.nan, math.nan)
    return estimate(values, floor).interval()


def binomial_floor(accuracy: float, prompts: int) -> float:
    """A lower bound of the standard error of an accuracy: even if all seeds agree, the number of prompts limits the precision.

        sqrt(p (1 - p) / (n + 4)),   p = (n accuracy + 2) / (n + 4)

    Source: Agresti and Coull 1998. The adjusted p keeps the error above 0 for accuracies of 1.0 and 0.0.
    """
    # A value above 1 is not a share: it is a mean of accuracies and a word perplexity.
    adjusted = (prompts * min(max(accuracy, 0.0), 1.0) + 2) / (prompts + 4)
    return math.sqrt(adjusted * (1 - adjusted) / (prompts + 4))


def accuracy_interval(values: Values, prompts: int) -> Interval:
    """The interval of a mean accuracy, from the values of two or more seeds and the total number of their prompts."""
    return estimate(values, binomial_floor(float(np.mean(values)), prompts)).interval().clipped(0.0, 1.0)


def positive_interval(values: Values) -> Interval:
    """The interval of the geometric mean of perplexities or ratios, of two seeds or more."""
    return estimate(np.log(values)).interval().exp()


def interval(kind: Kind, values: Values, prompts: int, unit: float = 1.0) -> Interval | None:
    """The interval over seeds of a table's cell; None for fewer than two seeds, and for kinds without seeds."""
    if len(values) < 2 or not kind.has_seeds:
        return None
    if kind is Kind.PERPLEXITY:
        return positive_interval(values)
    if kind in (Kind.LOSS, Kind.GAIN):
        return estimate(values).interval()
    return Interval(*(end / unit for end in accuracy_interval(np.multiply(values, unit), prompts)))


def ratio_interval(over: Values, under: Values, floors: tuple[float, float] = (0.0, 0.0)) -> Interval:
    """The interval of the ratio of two means over the same seeds, either of which may be 0 in some seed.

        all r >= 0 with |mean(over - r under)| <= t_{(1 + LEVEL) / 2, n - 1} error(over - r under)

    It is unbounded if the divisor may be 0. `floors` are lower bounds of the standard errors. Source: Fieller 1954.
    """
    both = np.array([over, under], np.float64)
    n = both.shape[1]
    if not both[1].any():
        return Interval(0.0 if n > 1 else math.nan, math.nan, math.inf if n > 1 else math.nan)
    unit = np.abs(both).max()  # cancels, and keeps squares small
    dividend, divisor = (both.mean(axis=1) / unit).tolist()
    if n < 2:
        return Interval(math.nan, dividend / divisor, math.nan)
    covariance = np.cov(both / unit) / n
    variances = np.maximum(np.diag(covariance), np.square(np.divide(floors, unit)))
    square = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) ** 2
    # The ends are the roots of a r**2 - 2 b r + c.
    a = divisor**2 - square * variances[1]
    b = dividend * divisor - square * covariance[0, 1]
    c = dividend**2 - square * variances[0]
    if a <= 0:
        return Interval(0.0, dividend / divisor, math.inf)
    half = math.sqrt(max(b * b - a * c, 0.0))
    return Interval(max((b - half) / a, 0.0), dividend / divisor, (b + half) / a)


def share_interval(k: int, n: int) -> Interval:
    """The exact Clopper-Pearson interval of a share of seeds, from k of n seeds."""
    low, high = stats.binomtest(k, n).proportion_ci(LEVEL)
    return Interval(float(low), k / n, float(high))


def p_share(k: int, n: int, share: float = 0.5) -> float:
    """The p-value for a true share of seeds above `share`, from k of n seeds; at a half, the sign test."""
    return float(stats.binomtest(k, n, share, alternative="greater").pvalue)


def seeds_for_share(seen: float, alpha: float, share: float = 0.5) -> float:
    """The smallest n whose test of a share has the power `POWER` if `seen` is the true share; infinite above `MAX_SEEDS`."""
    n = np.arange(2, MAX_SEEDS + 1)
    critical = stats.binom.isf(alpha, n, share) + 1
    enough = stats.binom.sf(critical - 1, n, seen) >= POWER
    # The power of a discrete test is not monotonic in n; this returns the first n that is enough.
    return int(n[enough.argmax()]) if enough.any() else math.inf
