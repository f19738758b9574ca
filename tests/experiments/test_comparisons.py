"""Comparisons of cells that were made up: of one number, as the papers print them, and of many seeds."""

import math

import numpy as np
import pytest

from bam_jax.experiments import statistics
from bam_jax.experiments.cells import TableName
from bam_jax.experiments.comparisons import (
    AnyAbove,
    Better,
    Bound,
    Clusters,
    Count,
    Gain,
    Growth,
    Ratio,
    Reach,
    Shapes,
    Share,
    Some,
)
from bam_jax.experiments.criteria import Criterion, quorum, voted
from bam_jax.experiments.statistics import Kind

TABLE = TableName("a", "b")
NOISE = np.array([-0.03, 0.01, 0.02, -0.01, 0.0, 0.03, -0.02, 0.0])
SOME = {("a", "x"): 1.0, ("a", "y"): 0.5, ("b", "x"): 0.4, ("b", "y"): 0.6, ("c", "x"): 1.0, ("0", "x"): 0.0}


def kind(of):
    """Builds a comparison of one or more rows, in both columns unless others are given."""
    return lambda rows, columns="xy", **fields: of(table=TABLE, rows=rows.split(), columns=[*columns], **fields)


bound, better, ratio, gain, some_above = map(kind, (Bound, Better, Ratio, Gain, AnyAbove))


def growth(row, than, **fields):
    return Growth(table=TABLE, start="x", end="y", rows=[row], than=[than], **fields)


def count(row, equal, **fields):
    return Count(tables=[TABLE, TABLE], columns=["x"], rows=[row], equal=equal, **fields)


def met(check, measured):
    found = [criterion.met for criterion in check.criteria(measured)]
    return None if None in found else all(found)


def p_values(check, measured):
    (criterion,) = check.criteria(measured)
    return criterion.p_met, criterion.p_unmet


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (bound("a", least=0.5, most=1.0), True),
        (bound("a", least=0.6), False),
        (bound("a", least=0.6, tolerance=0.1), True),
        (bound("a", most=0.9), False),
        (bound("a", most=0.9, tolerance=0.1), True),
        (bound("a", above=0.4), True),
        (bound("a", above=0.5), False),
        (bound("c", least=0.6), None),
        (better("a", than=["b"]), True),
        (better("a", than=["b"], each=True), False),
        (better("a", than=["b"], lower=True), False),
        (better("a", than=["b"], margin=0.3), False),
        (better("b", than=["a"], margin=-0.3), True),
        (better("a", than=["c"]), None),
        (better("a", "x", than=["b"], than_table=TABLE), True),
        (ratio("a", over=["b"], least=1.4, most=1.6), True),
        (ratio("a", over=["b"], most=1.4), False),
        (ratio("a", over=["b"], most=1.6, each=True), False),
        (ratio("a", "y", over_columns=["x"], most=0.5), True),
        (ratio("0", "x", over=["0"], most=0.5), False),
        (ratio("0", "x", over=["a"], most=0.5), True),
        (growth("b", "a", below=1.0), False),
        (growth("b", "a", least=2.9, most=3.1), True),
        (growth("a", "c", below=1.0), None),
        (gain("a b", "x", than=["b", "0"]), True),
        (gain("b 0", "x", than=["a", "b"]), False),
        (some_above("a b", above=0.7), True),
        (some_above("a b", above=0.75), False),
        (some_above("a c", above=0.0), None),
        (count("a", 1.0, least=2), True),
        (count("a", 1.0, most=1), False),
        (count("none", 0.0), None),
        (Some(least=1, checks=[bound("a", "x", least=0.6), bound("a", "y", least=0.6)]), True),
        (Some(least=2, checks=[bound("a", "x", least=0.6), bound("a", "y", least=0.6)]), False),
        (Some(least=1, checks=[bound("a", least=0.6), bound("c", least=0.5)]), None),
    ],
)
def test_one_number_meets_a_criterion_or_not(given, check, holds):
    assert met(check, given(SOME)) is holds
    assert all(math.isnan(criterion.shown.low) and criterion.says for criterion in check.criteria(given(SOME)))


def rows(**values):
    """Numbers of rows in the column x."""
    return {(row, "x"): seeds for row, seeds in values.items()}


def seeds(**by_row):
    """Numbers of eight seeds, by row a value for each of the columns x and y."""
    signs = dict(zip(by_row, (1, -1, 1, -1), strict=False))
    return {(r, c): by_row[r][n] + NOISE[:: signs[r]] for r in by_row for n, c in enumerate("xy")}


KEYS = rows(far=0.9 + NOISE, near=0.8 + NOISE / 10, perfect=[1.0] * 8, zero=[0.0] * 8)
GAINS = seeds(a=(0.9, 0.9), b=(0.5, 0.5), c=(0.6, 0.6), d=(0.5, 0.5))
TEXTS = seeds(a=(4.0, 8.0), b=(5.0, 20.0), c=(4.0, 8.0), d=(4.0, 4.0))
LOSSES = rows(a=1.9 + NOISE, b=1.9256 + NOISE * 1.01)


@pytest.mark.parametrize(
    ("check", "numbers", "kind", "prompts", "likely"),
    [
        (bound("far", "x", least=0.8), KEYS, Kind.ACCURACY, 100, True),
        (bound("far", "x", most=0.8), KEYS, Kind.ACCURACY, 100, False),
        (bound("near", "x", least=0.8), KEYS, Kind.ACCURACY, 100, None),
        # Perfect seeds of few prompts do not show that every key is retrieved.
        (bound("perfect", "x", least=1.0, tolerance=0.01), KEYS, Kind.ACCURACY, 10, None),
        (bound("perfect", "x", least=1.0, tolerance=0.01), KEYS, Kind.ACCURACY, 500, True),
        (bound("perfect", "x", least=1.0), KEYS, Kind.ACCURACY, 500, None),
        (better("perfect", "x", than=["perfect"]), KEYS, Kind.ACCURACY, 20, None),
        # A loss is no share of samples: no number of prompts bounds its error.
        (better("a", "x", than=["b"], lower=True), LOSSES, Kind.LOSS, 15, True),
        (ratio("zero", "x", over=["far"], most=0.5), KEYS, Kind.ACCURACY, 20, True),
        (ratio("far", "x", over=["zero"], most=0.5), KEYS, Kind.ACCURACY, 20, False),
        (ratio("zero", "x", over=["zero"], most=0.5), KEYS, Kind.ACCURACY, 20, None),
        (gain("a b", than=["c", "d"]), GAINS, Kind.ACCURACY, 1000, True),
        (gain("c d", than=["a", "b"]), GAINS, Kind.ACCURACY, 1000, False),
        (gain("d a", than=["c", "b"], lower=True), TEXTS, Kind.PERPLEXITY, 0, False),
        (growth("b", "a", least=1.5), TEXTS, Kind.PERPLEXITY, 0, True),
        (growth("b", "a", most=1.5), TEXTS, Kind.PERPLEXITY, 0, False),
        (growth("d", "b", below=1.0), TEXTS, Kind.PERPLEXITY, 0, True),
    ],
)
def test_seeds_far_from_a_bound_have_a_small_p_value(given, check, numbers, kind, prompts, likely):
    p_met, p_unmet = p_values(check, given(numbers, kind, prompts=prompts))
    if likely is None:
        assert min(p_met, p_unmet) > 0.05
    else:
        assert (p_met if likely else p_unmet) < 1e-3


def test_a_criterion_shows_its_interval_seeds_and_words(given):
    (criterion,) = bound("far", "x", least=0.8).criteria(given(KEYS, prompts=100))
    assert criterion.says == "far at x ≥ 0.8" and (criterion.n, criterion.agree) == (8, 8)
    assert criterion.shown.low < 0.9 < criterion.shown.high < 0.95
    (criterion,) = better("perfect", "x", than=["perfect"]).criteria(given(KEYS, prompts=20))
    assert criterion.p_met == criterion.p_unmet == 0.5 and criterion.seeds_needed(0.025, False) == math.inf
    assert criterion.shown.low < 0 < criterion.shown.high
    (criterion,) = better("a", "x", than=["b"], lower=True).criteria(given(LOSSES, Kind.LOSS))
    assert criterion.says == "a minus b at x < 0" and statistics.interval(Kind.LOSS, [1.8, 2.0], 15).high > 2.0
    (criterion,) = ratio("zero", "x", over=["far"], most=0.5).criteria(given(KEYS, prompts=20))
    assert criterion.shown.low == 0.0 and criterion.shown.high < 0.1
    measured = given({("a", "x"): [4.0] * 2, ("a", "y"): [9.0] * 2}, Kind.PERPLEXITY)
    (criterion,) = ratio("a", over_columns=["x"], least=1.5).criteria(measured)
    assert criterion.shown.middle == pytest.approx(1.5), "the mean of perplexities is that of their logarithms"


def test_rows_are_compared_seed_by_seed(given):
    """Differences by seed are free of what a seed does to both rows; a seed that one row lacks is left out."""
    common = np.linspace(1.0, 20.0, 8)
    measured = given(rows(a=common * 1.01 * np.exp(NOISE / 100), b=common), Kind.PERPLEXITY)
    assert p_values(better("b", "x", than=["a"], lower=True), measured)[0] < 1e-6
    (criterion,) = better("a", "x", than=["b"], lower=True).criteria(measured)
    assert criterion.says == "a / b at x < 1" and criterion.shown.middle == pytest.approx(1.01) and not criterion.met
    paired = {seed: value for seed, value in enumerate(common) if seed != 3}
    lacking = given(rows(a=paired, b=common), Kind.PERPLEXITY)
    (criterion,) = better("a", "x", than=["b"], lower=True).criteria(lacking)
    assert criterion.n == 7 and criterion.p_met == 0.5
    # With a margin, perplexities are compared by their differences.
    (criterion,) = better("b", "x", than=["a"], lower=True, margin=-0.1).criteria(measured)
    assert criterion.says == "b minus a at x < 0.1" and criterion.p_met < 0.025


def test_some_row_above_chance_is_bonferroni_s(given):
    measured = given(rows(a=0.3 + NOISE, b=0.25 + NOISE, c=[0.25] * 8, s=[0.9] * 3), prompts=100)
    assert p_values(some_above("a b", "x", above=0.25), measured)[0] < 0.05
    assert some_above("a b s", "x", above=0.25).criteria(measured)[0].n == 3  # the fewest
    assert some_above("a n", "x", above=0.25).criteria(measured)[0].n == 0


@pytest.mark.parametrize(
    ("check", "kind", "direction"),
    [
        (bound("a", "x", most=0.5), Kind.ACCURACY, "a better"),
        (bound("a", "x", least=2.0), Kind.ACCURACY, "a worse"),
        (growth("b", "a", most=0.9), Kind.PERPLEXITY, "b worse"),
        (better("b", "x", than=["a"]), Kind.ACCURACY, "b worse than a"),
        (better("a", "y", than=["a"], than_table=TABLE), Kind.ACCURACY, "a better than b"),
        (bound("a", "x", most=0.5), Kind.SPEED, ""),
    ],
)
def test_a_criterion_that_is_not_met_says_which_row_does_better_or_worse(given, check, kind, direction):
    (criterion,) = check.criteria(given(SOME, kind))
    assert not criterion.met and criterion.unmet == direction


def test_a_speed_is_one_number(given):
    (criterion,) = ratio("a", "x", over=["b"], most=2.0).criteria(given(rows(a=[3.0], b=[2.0]), Kind.SPEED))
    assert not criterion.has_seeds and criterion.met and criterion.shown.middle == 1.5
    assert (criterion.p_met, criterion.p_unmet) == (0.0, 1.0) and criterion.seeds_needed(0.05, False) == math.inf


def test_votes_are_counted():
    criterion = voted("it does", [True] * 7 + [None])
    assert (criterion.met, criterion.agree, criterion.n) == (True, 7, 8)
    assert criterion.seeds_needed(0.025, True) == 12
    assert voted("it does", []).met is None and voted("it does", [True]).met


ENDS = {"e": (0.9, 0.9), "f": (0.9, 0.1), "g": (0.1, 0.9), "h": (0.1, 0.1)}
LENGTHS = {"tables": [TABLE, TABLE], "columns": [["x"], ["y"]], "tokens": [10, 200]}


@pytest.mark.parametrize(
    ("row", "than", "times", "p_met", "p_unmet"),
    [
        ("e", "h", 15, 0.5**8, 1.0),  # to 200 tokens and more, below from 10 on
        ("e", "h", 25, 1.0, 1.0),  # the table's ends hide it
        ("f", "h", 2, 1.0, 1.0),
        ("f", "h", 0.1, 0.5**8, 1.0),
        ("e", "f", 0.5, 0.5**8, 1.0),
        ("f", "e", 2, 1.0, 0.5**8),
        ("f", "g", 0.1, 1.0, 0.5**8),  # which is below at 10 and not at 200
        ("f", "hg", 0.1, 1.0, 0.5**8),  # each other counts
    ],
)
def test_a_length_that_the_ends_of_the_table_hide_counts_for_neither_side(given, row, than, times, p_met, p_unmet):
    measured = given({(r, c): [value] * 8 for r, values in ENDS.items() for c, value in zip("xy", values, strict=True)})
    reach = Reach(**LENGTHS, rows=[row], than=[*than], times=times, least=0.8)
    assert p_values(reach, measured) == (p_met, p_unmet)


def test_cells_are_counted_seed_by_seed(given):
    measured = given({("d", "x"): [0.0] * 6 + [1.0] * 2, ("d", "y"): [1.0] * 8})
    counted = Count(tables=[TABLE], columns=["x", "y"], rows=["d"], equal=1.0, least=2)
    (criterion,) = counted.criteria(measured)
    assert (criterion.agree, criterion.n) == (2, 8) and not criterion.met


@pytest.mark.parametrize(("failing", "p_met"), [(0, 0.9**20), (1, 0.9**20 + 20 * 0.9**19 * 0.1)])
def test_a_share_of_all_models_is_tested_over_tables_of_their_own(given, failing, p_met):
    class ByTable(given):
        def seed_values(self, table, row, column):
            return super().seed_values(table, row, table.title)

    first = [0.95] * (10 - failing) + [0.89] * failing
    apart = ByTable({("d", "x"): first, ("d", "y"): [0.95] * 10, ("f", "x"): [0.95] * 7})
    share = lambda row: Share(
        tables=[TableName("a", c) for c in "xy"], columns=["64×"], rows=[row], least=0.9, share=0.9
    )
    (criterion,) = share("d").criteria(apart)
    assert (criterion.agree, criterion.n) == (20 - failing, 20) and criterion.met
    assert criterion.p_met == pytest.approx(p_met)
    assert criterion.p_unmet == pytest.approx(1 - 0.9**20 if failing else 1.0)
    assert share("f").criteria(apart)[0].n == 0


@pytest.mark.parametrize(
    ("shapes", "negative", "clustered"),
    [
        ([-1.0, -0.5, 0.0, 0.5, 2.0], True, True),
        ([-1.0, -2.0, 0.0, 0.5, 2.0], True, False),
        ([-0.05, 0.0, 0.5, 2.0], False, False),
    ],
)
def test_learned_shapes_vote(given, shapes, negative, clustered):
    measured = given({"a": [np.array([shapes])] * 8, "none": []})
    assert met(Shapes(file="a", rows=["a"], below=-0.1), measured) is negative
    assert met(Clusters(file="a", rows=["a"], bounds=(-0.6, 0.0)), measured) is clustered
    assert met(Shapes(file="a", rows=["none"], below=-0.1), measured) is None


def test_a_quorum_is_between_all_and_one(given):
    """The p-values of a partial conjunction, in either direction."""
    measured = given(rows(a=0.9 + NOISE, b=0.82 + NOISE, c=0.7 + NOISE), prompts=1000)
    far, near, off = (bound(row, "x", least=0.8).criteria(measured)[0] for row in "abc")
    p = [far.p_met, near.p_met, off.p_met]
    several = [off, far, near]
    assert quorum("all", several, 3).p_met == max(p) and quorum("one", several, 1).p_met == pytest.approx(3 * min(p))
    assert quorum("two", several, 2).p_met == pytest.approx(2 * near.p_met)
    assert quorum("all", several, 3).p_unmet == pytest.approx(3 * off.p_unmet)
    assert quorum("one", several, 1).p_unmet == max(each.p_unmet for each in several)
    two = quorum("two", several, 2)
    assert two.met and two.shown.middle == 2 and two.n == 8
    assert two.seeds_needed(0.025, True) == near.seeds_needed(0.0125, True)
    assert two.seeds_needed(0.025, False) == np.inf
    assert quorum("two", [*several, Criterion("none")], 2).met is None
