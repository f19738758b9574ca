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
    """Builds a comparison of a row, in both columns unless others are given."""
    return lambda row, columns="xy", **fields: of(table=TABLE, rows=[row], columns=[*columns], **fields)


bound, better, ratio = map(kind, (Bound, Better, Ratio))


def growth(row, than, **fields):
    return Growth(table=TABLE, start="x", end="y", rows=[row], than=[than], **fields)


def gain(pair, than, columns="x", **fields):
    return Gain(table=TABLE, columns=[*columns], rows=[*pair], than=[*than], **fields)


def chance(rows, above, columns="x"):
    return AnyAbove(table=TABLE, columns=[*columns], rows=[*rows], above=above)


def count(row, equal, **fields):
    return Count(tables=[TABLE, TABLE], columns=["x"], rows=[row], equal=equal, **fields)


def reach(row, *than, times):
    lengths = {"tables": [TABLE, TABLE], "columns": [["x"], ["y"]], "tokens": [10, 200]}
    return Reach(**lengths, rows=[row], than=[*than], times=times, least=0.8)


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
        (better("b", than=["a"], lower=True), True),
        (better("a", than=["b"], margin=0.3), False),
        (better("b", than=["a"], margin=-0.3), True),
        (better("a", than=["c"]), None),
        (better("a", "x", than=["b"], than_table=TABLE), True),
        (better("a", "x", than=["b"], than_columns=["y"]), True),
        (better("a", "y", than=["b"], than_columns=["y"]), False),
        (ratio("a", over=["b"], least=1.4, most=1.6), True),
        (ratio("a", over=["b"], most=1.4), False),
        (ratio("a", over=["b"], most=1.6, each=True), False),
        (ratio("a", over=["c"], most=1.0), None),
        (ratio("a", "y", over_columns=["x"], most=0.5), True),
        (ratio("0", "x", over=["0"], most=0.5), False),
        (ratio("0", "x", over=["a"], most=0.5), True),
        (growth("a", "b", below=1.0), True),
        (growth("b", "a", below=1.0), False),
        (growth("b", "a", least=2.9, most=3.1), True),
        (growth("b", "a", most=2.9), False),
        (growth("a", "c", below=1.0), None),
        (gain("ab", "b0"), True),
        (gain("b0", "ab"), False),
        (gain("ac", "ab", columns="y"), None),
        (chance("ab", 0.7, "xy"), True),
        (chance("ab", 0.75, "xy"), False),
        (chance("ac", 0.0, "xy"), None),
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
    return {
        (r, c): value + NOISE[:: signs[r]]
        for r, values in by_row.items()
        for c, value in zip("xy", values, strict=True)
    }


def test_a_bound_is_told_by_seeds_that_are_far_from_it(given):
    keys = given(rows(far=0.9 + NOISE, near=0.8 + NOISE / 10), prompts=100)
    assert p_values(bound("far", "x", least=0.8), keys)[0] < 1e-3
    assert p_values(bound("far", "x", most=0.8), keys)[1] < 1e-3
    assert p_values(bound("near", "x", least=0.8), keys) == pytest.approx((0.5, 0.5))
    (criterion,) = bound("far", "x", least=0.8).criteria(keys)
    assert criterion.says == "far at x ≥ 0.8" and (criterion.n, criterion.agree) == (8, 8)
    assert criterion.shown.low < 0.9 < criterion.shown.high < 0.95


def test_perfect_seeds_of_few_prompts_do_not_show_that_every_key_is_retrieved(given):
    check = bound("a", "x", least=1.0, tolerance=0.01)
    assert p_values(check, given(rows(a=[1.0] * 8), prompts=10))[0] > 0.05
    assert p_values(check, given(rows(a=[1.0] * 8), prompts=500))[0] < 0.001
    assert p_values(bound("a", "x", least=1.0), given(rows(a=[1.0] * 8), prompts=500)) == (0.5, 0.5)


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


def test_losses_are_compared_as_they_are(given):
    """A loss is no share of samples: no number of prompts bounds its error, and it may be above 1."""
    paired = given(rows(a=1.9 + NOISE, b=1.9256 + NOISE * 1.01), Kind.LOSS, prompts=15)
    (criterion,) = better("a", "x", than=["b"], lower=True).criteria(paired)
    assert criterion.says == "a minus b at x < 0" and criterion.p_met < 1e-6
    (criterion,) = bound("a", "x", most=2.0).criteria(paired)
    assert criterion.shown.high > criterion.shown.middle == pytest.approx(1.9, abs=0.02)
    assert statistics.interval(Kind.LOSS, [1.8, 2.0], 15).high > 2.0


def test_equal_rows_are_inconclusive(given):
    measured = given(rows(a=[1.0] * 8, b=[1.0] * 8), prompts=20)
    (criterion,) = better("a", "x", than=["b"]).criteria(measured)
    assert criterion.p_met == criterion.p_unmet == 0.5 and criterion.seeds_needed(0.025, False) == math.inf
    assert criterion.shown.low < 0 < criterion.shown.high


def test_the_mean_of_perplexities_is_that_of_their_logarithms(given):
    measured = given({("a", "x"): [4.0] * 2, ("a", "y"): [9.0] * 2}, Kind.PERPLEXITY)
    (criterion,) = ratio("a", over_columns=["x"], least=1.5).criteria(measured)
    assert criterion.shown.middle == pytest.approx(1.5)


def test_a_ratio_of_accuracies_may_be_of_zeros(given):
    measured = given(rows(low=[0.0] * 8, high=0.9 + NOISE), prompts=20)
    assert p_values(ratio("low", "x", over=["high"], most=0.5), measured)[0] < 1e-6
    assert p_values(ratio("high", "x", over=["low"], most=0.5), measured)[1] < 1e-6
    (nothing,) = ratio("low", "x", over=["low"], most=0.5).criteria(measured)
    assert nothing.p_met == 0.5 and not nothing.met
    (criterion,) = ratio("low", "x", over=["high"], most=0.5).criteria(measured)
    assert criterion.shown.low == 0.0 and criterion.shown.high < 0.1


def test_growth_and_gains_are_compared_seed_by_seed(given):
    keys = given(seeds(a=(0.9, 0.9), b=(0.5, 0.5), c=(0.6, 0.6), d=(0.5, 0.5)), prompts=1000)
    assert p_values(gain("ab", "cd", "xy"), keys)[0] < 1e-4
    assert p_values(gain("cd", "ab", "xy"), keys)[1] < 1e-4
    text = given(seeds(a=(4.0, 8.0), b=(5.0, 20.0), c=(4.0, 8.0), d=(4.0, 4.0)), Kind.PERPLEXITY)
    assert p_values(growth("b", "a", least=1.5), text)[0] < 1e-6
    assert p_values(growth("b", "a", most=1.5), text)[1] < 1e-6
    assert p_values(growth("d", "b", below=1.0), text)[0] < 1e-6
    assert p_values(gain("da", "cb", "xy", lower=True), text)[1] < 1e-6


def test_some_row_above_chance_is_bonferroni_s(given):
    measured = given(rows(a=0.3 + NOISE, b=0.25 + NOISE, c=[0.25] * 8, short=[0.9] * 3), prompts=100)
    assert p_values(chance("ab", 0.25), measured)[0] < 0.05
    (criterion,) = chance(["a", "b", "short"], 0.25).criteria(measured)
    assert criterion.n == 3  # the fewest
    assert chance(["a", "none"], 0.25).criteria(measured)[0].n == 0


@pytest.mark.parametrize(
    ("check", "kind", "direction"),
    [
        (bound("a", "x", most=0.5), Kind.ACCURACY, "a better"),
        (bound("a", "x", least=2.0), Kind.ACCURACY, "a worse"),
        (ratio("a", "x", over=["b"], most=0.9), Kind.PERPLEXITY, "a worse"),
        (growth("b", "a", most=0.9), Kind.PERPLEXITY, "b worse"),
        (growth("a", "b", least=1.5), Kind.PERPLEXITY, "a better"),
        (better("b", "x", than=["a"]), Kind.ACCURACY, "b worse than a"),
        (better("a", "y", than=["a"], than_table=TABLE, than_columns=["x"]), Kind.ACCURACY, "a better than b"),
        (bound("a", "x", most=0.5), Kind.SPEED, ""),
    ],
)
def test_a_criterion_that_is_not_met_says_which_row_does_better_or_worse(given, check, kind, direction):
    (criterion,) = check.criteria(given(SOME, kind))
    assert not criterion.met and criterion.unmet == direction


def test_a_speed_is_one_number(given):
    (_, criterion) = ratio("a", "x", over=["b"], least=0.9, most=2.0).criteria(
        given(rows(a=[3.0], b=[2.0]), Kind.SPEED)
    )
    assert not criterion.has_seeds and criterion.met and criterion.shown.middle == 1.5
    assert (criterion.p_met, criterion.p_unmet) == (0.0, 1.0) and criterion.seeds_needed(0.05, False) == math.inf


def test_votes_are_counted():
    criterion = voted("it does", [True] * 7 + [None])
    assert (criterion.met, criterion.agree, criterion.n) == (True, 7, 8)
    assert criterion.seeds_needed(0.025, True) == 12
    assert voted("it does", []).met is None and voted("it does", [True]).met


ENDS = {"e": (0.9, 0.9), "f": (0.9, 0.1), "g": (0.1, 0.9), "h": (0.1, 0.1)}


@pytest.mark.parametrize(
    ("row", "than", "times", "p_met", "p_unmet"),
    [
        ("e", "h", 15, 0.5**8, 1.0),  # to 200 tokens and more, below from 10 on
        ("e", "h", 25, 1.0, 1.0),  # the table's ends hide it
        ("e", "e", 2, 1.0, 1.0),
        ("f", "h", 2, 1.0, 1.0),
        ("f", "h", 0.1, 0.5**8, 1.0),
        ("e", "f", 0.5, 0.5**8, 1.0),
        ("f", "e", 2, 1.0, 0.5**8),
        ("f", "g", 0.1, 1.0, 0.5**8),  # which is below at 10 and not at 200
        ("e", "hg", 15, 1.0, 1.0),  # each other counts
        ("f", "hg", 0.1, 1.0, 0.5**8),
    ],
)
def test_a_length_that_the_ends_of_the_table_hide_counts_for_neither_side(given, row, than, times, p_met, p_unmet):
    measured = given({(r, c): [value] * 8 for r, values in ENDS.items() for c, value in zip("xy", values, strict=True)})
    assert p_values(reach(row, *than, times=times), measured) == (p_met, p_unmet)


def test_cells_are_counted_seed_by_seed(given):
    tables = {"tables": [TABLE], "columns": ["x", "y"], "rows": ["d"]}
    measured = given({("d", "x"): [0.0] * 6 + [1.0] * 2, ("d", "y"): [1.0] * 8})
    (criterion,) = Count(**tables, equal=1.0, least=2).criteria(measured)
    assert (criterion.agree, criterion.n) == (2, 8) and not criterion.met


@pytest.mark.parametrize(("failing", "p_met"), [(0, 0.9**20), (1, 0.9**20 + 20 * 0.9**19 * 0.1)])
def test_a_share_of_all_models_is_tested_over_tables_of_their_own(given, failing, p_met):
    measured = given(
        {("d", "x"): [0.95] * (10 - failing) + [0.89] * failing, ("d", "y"): [0.95] * 10, ("f", "x"): [0.95] * 7}
    )

    class ByTable(type(measured)):
        def seed_values(self, table, row, column):
            return super().seed_values(table, row, table.title)

    apart = ByTable(measured.numbers)
    share = Share(tables=[TableName("a", "x"), TableName("a", "y")], columns=["64×"], rows=["d"], least=0.9, share=0.9)
    (criterion,) = share.criteria(apart)
    assert (criterion.agree, criterion.n) == (20 - failing, 20) and criterion.met
    assert criterion.p_met == pytest.approx(p_met)
    assert criterion.p_unmet == pytest.approx(1 - 0.9**20 if failing else 1.0)
    lacking = Share(
        tables=[TableName("a", "x"), TableName("a", "y")], columns=["64×"], rows=["f"], least=0.9, share=0.9
    )
    assert lacking.criteria(apart)[0].n == 0


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
