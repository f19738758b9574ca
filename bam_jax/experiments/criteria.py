"""Criteria: one quantity against one bound, with the p-values for and against it."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from bam_jax.experiments import statistics
from bam_jax.experiments.cells import Series
from bam_jax.experiments.statistics import Interval, Kind

NOTHING = Interval(math.nan, math.nan, math.nan)


@dataclasses.dataclass(frozen=True)
class Criterion:
    """A measured criterion."""

    says: str  # the quantity and its bound, such as "BAM at 32K ≥ 0.8"
    shown: Interval = NOTHING  # the quantity
    n: int = 0  # number of seeds that all its cells have
    met: bool | None = None  # whether the estimate meets it; None: there is no estimate
    agree: int = 0  # the number of seeds that meet it individually
    has_seeds: bool = True
    device: str = ""  # on which a speed was measured
    several: Sequence["Criterion"] = ()  # the criteria that it combines
    p_met: float = 1.0  # the p-value for it (null hypothesis: it is not met)
    p_unmet: float = 1.0  # the p-value against it (null hypothesis: it is met)
    seeds_needed: Callable[[float, bool], float] = lambda alpha, met: math.inf
    """The number of seeds needed for a verdict for or against it, at a level of the one-sided test."""
    unmet: str = ""  # if it is not met: which row does better or worse than the criterion requires


def _certain(criterion: Criterion) -> Criterion:
    """A criterion about a single number, such as a configuration's or a paper's, which is met or not without a test."""
    p_met, p_unmet = (0.0, 1.0) if criterion.met else (1.0, 0.0)
    needed = lambda alpha, met: 0.0 if met is criterion.met else math.inf
    return dataclasses.replace(criterion, p_met=p_met, p_unmet=p_unmet, seeds_needed=needed)


def _mean_above_zero(
    says: str, shown: Interval, margins: np.ndarray, like: Series, *, strict: bool, unmet: str, floor: float = 0.0
) -> Criterion:
    """The criterion that the mean of margins, one for each seed, is above 0 or, unless the bound is strict, at 0."""
    has_seeds = like.kind.has_seeds
    if not margins.size:
        return Criterion(says, has_seeds=has_seeds)
    meets = lambda margin: bool(margin > 0 or (margin == 0 and not strict))
    agree, met = sum(map(meets, margins)), meets(margins.mean())
    made = Criterion(says, shown, margins.size, met, agree, has_seeds, like.device, unmet=unmet)
    if margins.size < 2 or not has_seeds:
        return _certain(made)
    mean = statistics.estimate(margins, floor)
    needed = lambda alpha, wanted: mean.seeds_needed(0.0, alpha) if wanted is met else math.inf
    return dataclasses.replace(made, p_met=mean.p_above(0.0), p_unmet=mean.p_below(0.0), seeds_needed=needed)


def _direction(row: str, kind: Kind, *, upper: bool) -> str:
    if not kind.has_seeds:
        return ""  # more tokens per second are better, more milliseconds are worse
    return f"{row} {'better' if upper == kind.more_is_better else 'worse'}"


def bounded(name: str, row: str, series: Series, bound: float, *, upper: bool, strict: bool = False) -> Criterion:
    """The criterion that a mean over seeds is at a bound or beyond it; for perplexities, the mean of their logarithms."""
    sign = -1 if upper else 1
    says = f"{name} {SIGNS[upper, strict]} {number(bound)}"
    unmet = _direction(row, series.kind, upper=upper)
    if series.kind is Kind.PERPLEXITY and bound > 0:
        margins = sign * (np.log(series.values) - math.log(bound))
        return _mean_above_zero(says, series.interval(), margins, series, strict=strict, unmet=unmet)
    margins = sign * (series.values - bound)
    return _mean_above_zero(says, series.interval(), margins, series, strict=strict, unmet=unmet, floor=series.floor)


def ahead(name: str, mine: Series, theirs: Series, margin: float, *, lower: bool, unmet: str) -> Criterion:
    """The criterion that one mean is better than another by more than a margin, from the differences of each seed.

    Perplexities are compared by their ratio, that is, by the difference of logarithms, unless there is a margin.
    """
    sign = -1 if lower else 1
    if mine.kind is Kind.PERPLEXITY and not margin:
        return compared(name.replace(" minus ", " / "), mine, theirs, 1.0, upper=lower, strict=True, unmet=unmet)
    differences = mine.values - theirs.values
    floor = math.hypot(mine.floor, theirs.floor)
    says = f"{name} {SIGNS[lower, True]} {number(sign * margin or 0.0)}"
    shown = statistics.summarise(differences, floor)
    return _mean_above_zero(says, shown, sign * differences - margin, mine, strict=True, unmet=unmet, floor=floor)


def compared(
    name: str,
    over: Series,
    under: Series,
    bound: float,
    *,
    upper: bool,
    strict: bool = False,
    unmet: str = "",
    row: str = "",
) -> Criterion:
    """The criterion that a mean divided by another is at a bound or beyond it.

    For perplexities, the test uses the difference of logarithms. For other values, it uses the dividend minus the bound times
    the divisor (Fieller), because accuracies may be 0.
    """
    sign = -1 if upper else 1
    says = f"{name} {SIGNS[upper, strict]} {number(bound)}"
    unmet = unmet or _direction(row, over.kind, upper=upper)
    if over.kind is Kind.PERPLEXITY:
        growth = np.log(over.values) - np.log(under.values)
        shown, margins = statistics.summarise(growth).exp(), sign * (growth - math.log(bound))
        return _mean_above_zero(says, shown, margins, over, strict=strict, unmet=unmet)
    margins = sign * (over.values - bound * under.values)
    floor = math.hypot(over.floor, bound * under.floor)
    strict = strict or not under.values.any()  # 0 / 0 meets no bound
    shown = statistics.ratio_interval(over.values, under.values, (over.floor, under.floor))
    return _mean_above_zero(says, shown, margins, over, strict=strict, unmet=unmet, floor=floor)


def voted(says: str, votes: Sequence[bool | None], share: float = 0.5) -> Criterion:
    """The criterion that more than a share of all seeds vote for it."""
    n, agree, against = len(votes), sum(vote is True for vote in votes), sum(vote is False for vote in votes)
    if not votes:
        return Criterion(says)
    shown = statistics.share_interval(agree, n)
    if n < 2:
        return _certain(Criterion(says, shown._replace(low=math.nan, high=math.nan), 1, bool(agree), agree))

    def needed(alpha: float, met: bool) -> float:
        sides = {True: (agree, share), False: (against, 1 - share)}
        count, bound = sides[met]
        return statistics.seeds_for_share(count / n, alpha, bound)

    p_met, p_unmet = statistics.p_share(agree, n, share), statistics.p_share(against, n, 1 - share)
    return Criterion(says, shown, n, agree > share * n, agree, p_met=p_met, p_unmet=p_unmet, seeds_needed=needed)


def quorum(says: str, several: Sequence[Criterion], least: int) -> Criterion:
    """The criterion that at least `least` of m criteria are met; the quantity shown is how many are.

    For all m it is an intersection-union test, whose p-value is the largest; for one of m it is Bonferroni's, the smallest times
    m. Between them is the partial conjunction: (m - least + 1) times the least-th smallest. The criterion is not met if
    m - least + 1 of the m are not met.

    Source: Benjamini and Heller 2008.
    """
    has_seeds = any(each.has_seeds for each in several)
    n = min(each.n for each in several if each.has_seeds or not has_seeds)
    if any(each.met is None for each in several):
        return Criterion(says, n=n, has_seeds=has_seeds, several=several)
    held, others = sum(each.met is True for each in several), len(several) - least + 1
    device = " and ".join(sorted({each.device for each in several if each.device}))
    partial = lambda p, least: min(1.0, (len(p) - least + 1) * sorted(p)[least - 1])

    def needed(alpha: float, met: bool) -> float:
        wanted = least if met else others
        share = alpha / (len(several) - wanted + 1)
        return sorted(each.seeds_needed(share, met) for each in several)[wanted - 1]

    return Criterion(
        says,
        Interval(math.nan, held, math.nan),
        n,
        held >= least,
        has_seeds=has_seeds,
        device=device,
        several=several,
        p_met=partial([each.p_met for each in several], least),
        p_unmet=partial([each.p_unmet for each in several], others),
        seeds_needed=needed,
    )


SIGNS = {(False, False): "≥", (False, True): ">", (True, False): "≤", (True, True): "<"}
"""The sign of a bound, by (whether it is an upper bound, whether it is strict)."""


def number(value: float) -> str:
    """A number in three digits, or in all digits before the point; in five digits from 1 to 10, where bounds of ratios are close.

    >>> number(0.98765), number(1.0045), number(12345.6)
    ('0.988', '1.0045', '12,346')
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.5g}" if 1 <= abs(value) < 10 else f"{value:.3g}"
