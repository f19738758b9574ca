"""Intervals, tests and sizes of samples where training seeds are the sample: pure functions of numbers.

A seed's value is estimated by prompts or by text; the spread of that estimate is part of the spread between seeds. All tests
are one-sided, all intervals two-sided at 95%.
"""

import bisect
import enum
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from scipy import special, stats

LEVEL = 0.95
"""The coverage of intervals."""

SEEDS = 8
"""The least number of seeds for a verdict."""

POWER = 0.8
"""The chance of a verdict with the number of seeds that is said to tell."""

MOST_SEEDS = 1000
"""The greatest number of seeds that is worth saying."""


_LARGEST_LOG = math.log(sys.float_info.max) - 1


class Kind(enum.Enum):
    """The kind of a number, which says how seeds are summed up."""

    ACCURACY = "a share of samples, whose error is at least the binomial one"
    PERPLEXITY = "a positive number, whose logarithm is averaged"
    LOSS = "a number of nats, which is averaged as it is"
    SPEED = "a time or a memory, which has repetitions and no seeds"
    CONFIGURATION = "told by a configuration or a paper, and not measured"


class Interval(NamedTuple):
    """An estimate between the ends of its interval."""

    low: float
    middle: float
    high: float

    def clipped(self, least: float, most: float) -> Self:
        """The same interval within the bounds of what can be.

        Args:
            least, most: the bounds.
        """
        return self._replace(low=max(self.low, least), high=min(self.high, most))

    def exp(self) -> Self:
        """The interval of a positive quantity whose logarithm has this one; an end that no number holds is infinite."""
        return type(self)(*(math.exp(end) if not end > _LARGEST_LOG else math.inf for end in self))


class Estimate(NamedTuple):
    """A mean over seeds.

    Args:
        mean: of the seeds' values.
        error: its standard error.
        n: the number of seeds, two at least.
    """

    mean: float
    error: float
    n: int

    def interval(self) -> Interval:
        """The t interval: mean ± t_{(1 + LEVEL) / 2, n - 1} error.

        Source: Student 1908.
        """
        half = _t_quantile((1 + LEVEL) / 2, self.n) * self.error
        return Interval(self.mean - half, self.mean, self.mean + half)

    def p_above(self, bound: float) -> float:
        """The p-value that speaks for a mean above a bound: P(T_{n-1} >= (mean - bound) / error), H0: it is not above.

        Args:
            bound: in the unit of the mean.
        """
        distance = self.mean - bound
        # Seeds that agree to the last bit, as those of two rows that are one run, have no error: equality tells nothing.
        t = distance / self.error if self.error else math.copysign(math.inf, distance) if distance else 0.0
        return float(special.stdtr(self.n - 1, -t))

    def p_below(self, bound: float) -> float:
        """The p-value that speaks for a mean below a bound, H0: it is not below.

        Args:
            bound: in the unit of the mean.
        """
        return 1.0 - self.p_above(bound)

    def seeds_to_tell(self, bound: float, alpha: float) -> float:
        """The least number of seeds whose one-sided test rejects with the chance `POWER`; infinite: above `MOST_SEEDS`.

            n:  (t_{1 - alpha, n-1} + t_{POWER, n-1}) spread / sqrt(n) <= |mean - bound|,   spread = error sqrt(n now)

        It takes the distance and the spread that were seen for the true ones, so it is a guide and no promise.

        Args:
            bound: in the unit of the mean.
            alpha: the level of the test.

        Source: the usual approximation to the power of the t test; Guenther 1981.
        """
        distance, spread = abs(self.mean - bound), self.error * math.sqrt(self.n)
        quantiles = lambda n: _t_quantile(1 - alpha, n) + _t_quantile(POWER, n)
        tells = lambda n: distance > 0 and quantiles(n) * spread / math.sqrt(n) <= distance
        n = bisect.bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=tells)
        return n if n <= MOST_SEEDS else math.inf


def _t_quantile(level: float, n: int) -> float:
    """The quantile of Student's t of n seeds; `stats.t`, which says the same, takes a hundred times as long."""
    return float(special.stdtrit(n - 1, level))


def estimate(values: Sequence[float] | np.ndarray, floor: float = 0.0) -> Estimate:
    """The mean over seeds with the standard error s / sqrt(n).

    Args:
        values: one for each seed, two at least.
        floor: the least standard error.

    Raises:
        ValueError: fewer than two values.
    """
    numbers = np.asarray(values, np.float64)
    if numbers.size < 2:
        raise ValueError(f"{numbers.size} seeds have no spread; an interval needs two at least")
    # Records may hold numbers whose squares are too large.
    unit = float(np.abs(numbers).max()) or 1.0
    error = (numbers / unit).std(ddof=1) * unit / math.sqrt(numbers.size)
    return Estimate(float(numbers.mean()), max(float(error), floor), numbers.size)


def binomial_floor(accuracy: float, prompts: int) -> float:
    """The least standard error of an accuracy: seeds that all agree leave as much doubt as their prompts do.

        sqrt(p (1 - p) / (n + 4)),   p = (n accuracy + 2) / (n + 4)

    Ten seeds that find every key have no spread, and yet the next prompt may fail. The adjusted p keeps the error of 1.0
    and of 0.0 above nothing.

    Args:
        accuracy: the mean over seeds, from 0 to 1.
        prompts: of all seeds together.

    Source: Agresti and Coull 1998.
    """
    # What exceeds 1 is no share: a mean of accuracies and of a perplexity of words.
    adjusted = (prompts * min(max(accuracy, 0.0), 1.0) + 2) / (prompts + 4)
    return math.sqrt(adjusted * (1 - adjusted) / (prompts + 4))


def accuracy_interval(values: Sequence[float] | np.ndarray, prompts: int) -> Interval:
    """The interval of a mean accuracy: that of t, whose error is at least `binomial_floor`, within 0 and 1.

    Args:
        values: one for each seed, fractions, two at least.
        prompts: of all seeds together.
    """
    return estimate(values, binomial_floor(float(np.mean(values)), prompts)).interval().clipped(0.0, 1.0)


def positive_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """The interval of a perplexity or a ratio: that of t for the mean of logarithms; its middle is the geometric mean.

    Args:
        values: one for each seed, positive, two at least.
    """
    return estimate(np.log(values)).interval().exp()


def interval(kind: Kind, values: Sequence[float], prompts: int, unit: float = 1.0) -> Interval | None:
    """The interval over seeds of a cell of a table; None of fewer than two seeds, and of what has no seeds.

    Args:
        kind: of the cell.
        values: one for each seed.
        prompts: of all seeds together.
        unit: of accuracies: 0.01 for percent.
    """
    if len(values) < 2 or kind in (Kind.SPEED, Kind.CONFIGURATION):
        return None
    if kind is Kind.PERPLEXITY:
        return positive_interval(values)
    if kind is Kind.LOSS:
        return estimate(values).interval()
    return Interval(*(end / unit for end in accuracy_interval(np.multiply(values, unit), prompts)))


def quotient_interval(
    over: Sequence[float] | np.ndarray,
    under: Sequence[float] | np.ndarray,
    floors: tuple[float, float] = (0.0, 0.0),
) -> Interval:
    """The interval of a mean divided by another of the same seeds, either of which may be 0 in some seed.

        all r >= 0 with |mean(over - r under)| <= t_{(1 + LEVEL) / 2, n - 1} error(over - r under)

    It goes to infinity where the divisor may be 0. The ends are nan of fewer than two seeds, the middle where both are 0.

    Args:
        over, under: a value for each seed, in the same order.
        floors: the least standard errors of their means.

    Source: Fieller 1954.
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
    square = _t_quantile((1 + LEVEL) / 2, n) ** 2
    # The ends are the roots of a r**2 - 2 b r + c.
    a = divisor**2 - square * variances[1]
    b = dividend * divisor - square * covariance[0, 1]
    c = dividend**2 - square * variances[0]
    if a <= 0:
        return Interval(0.0, dividend / divisor, math.inf)
    half = math.sqrt(max(b * b - a * c, 0.0))
    return Interval(max((b - half) / a, 0.0), dividend / divisor, (b + half) / a)


def share_interval(k: int, n: int) -> Interval:
    """The exact interval of the share of seeds that do something, of which k of n were seen to.

    Args:
        k: seeds that do.
        n: all seeds.

    Source: Clopper and Pearson 1934.
    """
    tail = (1 - LEVEL) / 2
    low = float(stats.beta.ppf(tail, k, n - k + 1)) if k else 0.0
    high = float(stats.beta.ppf(1 - tail, k + 1, n - k)) if k < n else 1.0
    return Interval(low, k / n, high)


def p_share(k: int, n: int, share: float = 0.5) -> float:
    """The p-value that speaks for more than a share of all seeds doing something: P(Binomial(n, share) >= k).

    Half of them, "most seeds", makes it the sign test.

    Args:
        k: seeds that do.
        n: all seeds.
        share: of all seeds that could be drawn.
    """
    return float(stats.binom.sf(k - 1, n, share))


def seeds_for_share(seen: float, alpha: float, share: float = 0.5) -> float:
    """The least number of seeds whose test of a share rejects with the chance `POWER`; infinite: above `MOST_SEEDS`.

    Args:
        seen: the share of seeds that do something, taken for the true one.
        alpha: the level of the test.
        share: see `p_share`.
    """
    n = np.arange(2, MOST_SEEDS + 1)
    critical = stats.binom.isf(alpha, n, share) + 1
    enough = stats.binom.sf(critical - 1, n, seen) >= POWER
    # The power of a discrete test goes up and down with n; the first n that is enough is named.
    return int(n[enough.argmax()]) if enough.any() else math.inf


def false_discoveries(p: Sequence[float] | np.ndarray, q: float = 0.05) -> np.ndarray:
    """The hypotheses that are rejected, as booleans: among them at most a share q is expected to be true.

        reject the k smallest p-values, k the greatest with p_(k) <= q k / m

    The step-up procedure is proven for p-values that are independent or positively dependent. Claims that share a row of a
    table are correlated in either direction; `tests/experiments/test_statistics.py` simulates such a page. The correction
    of Benjamini and Yekutieli for any dependence would divide q by 1 + 1/2 + ... + 1/m, about 5.2 for 100 claims, and leave
    8 seeds little to tell.

    Args:
        p: two-sided p-values.
        q: the share.

    Source: Benjamini and Hochberg 1995; Benjamini and Yekutieli 2001 and 2005 for dependence and directions.
    """
    numbers = np.asarray(p, np.float64)
    order = np.argsort(numbers)
    passed = np.flatnonzero(numbers[order] <= q * np.arange(1, numbers.size + 1) / max(numbers.size, 1))
    rejected = np.zeros(numbers.size, bool)
    rejected[order[: passed[-1] + 1 if passed.size else 0]] = True
    return rejected
