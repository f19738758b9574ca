"""Criteria: one quantity against one bound, with the evidence of seeds that it is met and that it is not."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from bam_jax.experiments import statistics
from bam_jax.experiments.cells import Series, summarise
from bam_jax.experiments.statistics import Estimate, Interval, Kind

NOTHING = Interval(math.nan, math.nan, math.nan)


@dataclasses.dataclass(frozen=True)
class Criterion:
    """A criterion that one number meets or not: a paper's, a configuration's, a speed, or that of one seed alone.

    Args:
        says: the quantity and its bound, such as "BAM at 32K ≥ 0.8".
        shown: the quantity, between the ends of its interval where there is one.
        n: seeds that all its cells have.
        met: whether the estimate meets it; None: there is none.
        agree: how many seeds meet it by themselves.
        has_seeds: False of what is not measured seed by seed, so that one number is all there is.
        device: on which a speed was measured.
        several: those that it is made of, if it is made of others.
    """

    says: str
    shown: Interval = NOTHING
    n: int = 0
    met: bool | None = None
    agree: int = 0
    has_seeds: bool = True
    device: str = ""
    several: Sequence["Criterion"] = ()

    @property
    def p_met(self) -> float:
        """The p-value that speaks for it; H0: it is not met."""
        return 0.0 if self.met else 1.0

    @property
    def p_unmet(self) -> float:
        """The p-value that speaks against it; H0: it is met."""
        return 1.0 if self.met else 0.0

    def seeds_to_tell(self, alpha: float, *, met: bool) -> float:
        """The number of seeds that would tell in a direction; infinite: too many, or the estimate is on the other side.

        Args:
            alpha: the level of the one-sided test.
            met: whether they would tell that it is met, or that it is not.
        """
        return 0.0 if self.met is met else math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanCriterion(Criterion):
    """A criterion that is met where a mean over seeds is above 0.

    Args:
        margin: that mean: by how much the criterion is met.
    """

    margin: Estimate

    @property
    def p_met(self) -> float:
        """See `Criterion`."""
        return self.margin.p_above(0.0)

    @property
    def p_unmet(self) -> float:
        """See `Criterion`."""
        return self.margin.p_below(0.0)

    def seeds_to_tell(self, alpha: float, *, met: bool) -> float:
        """See `Criterion`."""
        return self.margin.seeds_to_tell(0.0, alpha) if self.met is met else math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteCriterion(Criterion):
    """A criterion that each seed meets or not, and that is met where more than a share of all seeds would meet it.

    Args:
        against: how many seeds do not meet it for certain; where a value is censored a seed may count on neither side.
        share: the half, if most seeds are asked for.
    """

    against: int
    share: float = 0.5

    @property
    def p_met(self) -> float:
        """See `Criterion`; seeds that count on neither side count against it."""
        return statistics.p_share(self.agree, self.n, self.share)

    @property
    def p_unmet(self) -> float:
        """See `Criterion`; seeds that count on neither side count for it."""
        return statistics.p_share(self.against, self.n, 1 - self.share)

    def seeds_to_tell(self, alpha: float, *, met: bool) -> float:
        """See `Criterion`."""
        if met:
            return statistics.seeds_for_share(self.agree / self.n, alpha, self.share)
        return statistics.seeds_for_share(self.against / self.n, alpha, 1 - self.share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuorumCriterion(Criterion):
    """A criterion that is met where at least so many of several are.

    With all of m it is an intersection-union test, whose p-value is the greatest; with one of m it is Bonferroni's, the least
    times m. Between them stands the partial conjunction: (m - least + 1) times the least-th smallest. That it is not met is
    that m - least + 1 of them are not.

    Args:
        least: how many of `several`.

    Source: Benjamini and Heller 2008.
    """

    least: int

    @property
    def p_met(self) -> float:
        """See `Criterion`."""
        return _partial([each.p_met for each in self.several], self.least)

    @property
    def p_unmet(self) -> float:
        """See `Criterion`."""
        return _partial([each.p_unmet for each in self.several], len(self.several) - self.least + 1)

    def seeds_to_tell(self, alpha: float, *, met: bool) -> float:
        """See `Criterion`."""
        least = self.least if met else len(self.several) - self.least + 1
        share = alpha / (len(self.several) - least + 1)
        return sorted(each.seeds_to_tell(share, met=met) for each in self.several)[least - 1]


def _partial(p: Sequence[float], least: int) -> float:
    """The p-value that speaks for at least so many of several."""
    return min(1.0, (len(p) - least + 1) * sorted(p)[least - 1])


def quorum(says: str, several: Sequence[Criterion], least: int) -> Criterion:
    """The criterion that at least so many of several are met; what is shown is how many are.

    Args:
        says: the criterion.
        several: the others, one at least.
        least: how many of them.
    """
    has_seeds = any(each.has_seeds for each in several)
    n = min(each.n for each in several if each.has_seeds or not has_seeds)
    if any(each.met is None for each in several):
        return Criterion(says, n=n, has_seeds=has_seeds, several=several)
    held = sum(each.met is True for each in several)
    shown = Interval(math.nan, held, math.nan)
    device = " and ".join(sorted({each.device for each in several if each.device}))
    one = Criterion(says, shown, n, held >= least, has_seeds=has_seeds, device=device, several=several)
    return QuorumCriterion(**vars(one), least=least)


def _decide(
    says: str, shown: Interval, margins: np.ndarray, like: Series, *, strict: bool, floor: float = 0.0
) -> Criterion:
    """The criterion that seeds meet by their margins, each of which is above 0, or at 0 where the bound itself will do."""
    if not margins.size:
        return Criterion(says, has_seeds=has_seeds(like))
    meets = lambda margin: bool(margin > 0 or (margin == 0 and not strict))
    agree, met = sum(map(meets, margins)), meets(margins.mean())
    one = Criterion(says, shown, margins.size, met, agree, has_seeds(like), like.device)
    if margins.size < 2 or not one.has_seeds:
        return one
    return MeanCriterion(**vars(one), margin=statistics.estimate(margins, floor))


def has_seeds(series: Series) -> bool:
    """True of what is measured of trained models, seed by seed.

    Args:
        series: some values.
    """
    return series.kind in (Kind.ACCURACY, Kind.PERPLEXITY, Kind.LOSS)


def bounded(name: str, series: Series, bound: float, *, lower: bool, strict: bool = False) -> Criterion:
    """The criterion that a mean over seeds is at a bound or beyond it; of perplexities that of their logarithms.

    Args:
        name: of the quantity.
        series: its values.
        bound: in their unit.
        lower: whether the bound is the greatest, not the least.
        strict: whether the bound itself is too little.
    """
    sign = -1 if lower else 1
    says = f"{name} {SIGNS[lower, strict]} {number(bound)}"
    if series.kind is Kind.PERPLEXITY and bound > 0:
        margins = sign * (np.log(series.values) - math.log(bound))
        return _decide(says, series.interval(), margins, series, strict=strict)
    margins = sign * (series.values - bound)
    return _decide(says, series.interval(), margins, series, strict=strict, floor=series.floor)


def ahead(name: str, mine: Series, theirs: Series, margin: float, *, lower: bool) -> Criterion:
    """The criterion that one mean is better than another by more than a margin, over differences seed by seed.

    Perplexities are compared by their quotient, that is by the difference of logarithms, unless there is a margin.

    Args:
        name: of both, such as "BAM minus ALiBi".
        mine, theirs: values of the same seeds.
        margin: in their unit.
        lower: whether less is better.
    """
    sign = -1 if lower else 1
    if mine.kind is Kind.PERPLEXITY and not margin:
        return compared(name.replace(" minus ", " / "), mine, theirs, 1.0, lower=lower, strict=True)
    differences = mine.values - theirs.values
    floor = math.hypot(mine.floor, theirs.floor)
    says = f"{name} {SIGNS[lower, True]} {number(sign * margin or 0.0)}"
    return _decide(says, summarise(differences, floor), sign * differences - margin, mine, strict=True, floor=floor)


def compared(name: str, over: Series, under: Series, bound: float, *, lower: bool, strict: bool = False) -> Criterion:
    """The criterion that a mean divided by another is at a bound or beyond it.

    Perplexities by the difference of their logarithms; accuracies, which may be 0, by the dividend less the bound times the
    divisor, as Fieller has it; others by their quotient.

    Args:
        name: of the quotient.
        over, under: values of the same seeds.
        bound: of the quotient.
        lower: whether the bound is the greatest, not the least.
        strict: whether the bound itself is too little.
    """
    sign = -1 if lower else 1
    says = f"{name} {SIGNS[lower, strict]} {number(bound)}"
    if over.kind is Kind.PERPLEXITY:
        growth = np.log(over.values) - np.log(under.values)
        return _decide(says, summarise(growth).exp(), sign * (growth - math.log(bound)), over, strict=strict)
    margins = sign * (over.values - bound * under.values)
    floor = math.hypot(over.floor, bound * under.floor)
    # A quotient of nothing and nothing is at no bound.
    strict = strict or not under.values.any()
    shown = statistics.quotient_interval(over.values, under.values, (over.floor, under.floor))
    return _decide(says, shown, margins, over, strict=strict, floor=floor)


def voted(says: str, votes: Sequence[bool | None], share: float = 0.5) -> Criterion:
    """The criterion that more than a share of all seeds do something.

    Args:
        says: what they do.
        votes: one for each seed; None: it cannot be said.
        share: the half, if most seeds are asked for.
    """
    agree = sum(vote is True for vote in votes)
    if not votes:
        return Criterion(says)
    shown = statistics.share_interval(agree, len(votes))
    if len(votes) < 2:
        return Criterion(says, shown._replace(low=math.nan, high=math.nan), 1, bool(agree), agree)
    against = sum(vote is False for vote in votes)
    return VoteCriterion(says, shown, len(votes), agree > share * len(votes), agree, against=against, share=share)


SIGNS = {(False, False): "≥", (False, True): ">", (True, False): "≤", (True, True): "<"}
"""The sign of a bound, by whether it is the greatest and whether it is too little itself."""


def number(value: float) -> str:
    """A number in three digits, or in all those before the point; in five from 1 to 10, where ratios have close bounds.

    >>> number(0.98765), number(1.0045), number(12345.6)
    ('0.988', '1.0045', '12,346')

    Args:
        value: any.
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.5g}" if 1 <= abs(value) < 10 else f"{value:.3g}"
