"""Checks of cells that were made up: of one number, as the papers print them, and of many seeds."""

import math

import numpy as np
import pytest

from bam_jax.experiments import statistics
from bam_jax.experiments.cells import Cells
from bam_jax.experiments.checks import above_chance, better, ratio, steadier, within
from bam_jax.experiments.criteria import voted
from bam_jax.experiments.statistics import Kind

CELLS = Cells("a", "b", ("x", "y"))
X, Y = Cells("a", "b", ("x",)), Cells("a", "b", ("y",))
SOME = {("a", "x"): 1.0, ("a", "y"): 0.5, ("b", "x"): 0.4, ("b", "y"): 0.6, ("c", "x"): 1.0, ("0", "x"): 0.0}


def met(check, measured):
    found = [criterion.met for criterion in check(measured).criteria]
    return None if None in found else all(found)


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (within(CELLS, "a", least=0.5, most=1.0), True),
        (within(CELLS, "a", least=0.6), False),
        (within(CELLS, "a", least=0.6, tolerance=0.1), True),
        (within(CELLS, "a", most=0.9), False),
        (within(CELLS, "a", most=0.9, tolerance=0.1), True),
        (within(CELLS, "a", above=0.4), True),
        (within(CELLS, "a", above=0.5), False),
        (within(CELLS, "c", least=0.6), None),
        (better(CELLS, "a", ("b",)), True),
        (better(CELLS, "a", ("b",), each=True), False),
        (better(CELLS, "a", ("b",), lower=True), False),
        (better(CELLS, "b", ("a",), lower=True), True),
        (better(CELLS, "a", ("b",), margin=0.3), False),
        (better(CELLS, "b", ("a",), margin=-0.3), True),
        (better(CELLS, "a", ("c",)), None),
        (ratio((CELLS, "a"), (CELLS, "b"), least=1.4, most=1.6), True),
        (ratio((CELLS, "a"), (CELLS, "b"), most=1.4), False),
        (ratio((CELLS, "a"), (CELLS, "b"), most=1.4, margin=-0.2), True),
        (ratio((CELLS, "a"), (CELLS, "b"), least=1.4, margin=0.2), False),
        (ratio((CELLS, "a"), (CELLS, "c"), most=1.0), None),
        (ratio((X, "0"), (X, "0"), most=0.5), False),
        (ratio((X, "0"), (X, "a"), most=0.5), True),
        (steadier(CELLS, "y", "x", "a", "b"), True),
        (steadier(CELLS, "y", "x", "b", "a"), False),
        (steadier(CELLS, "y", "x", "a", "c"), None),
        (above_chance([CELLS], ("a", "b"), 0.7), True),
        (above_chance([CELLS], ("a", "b"), 0.75), False),
        (above_chance([CELLS], ("a", "c"), 0.0), None),
    ],
)
def test_one_number_meets_a_criterion_or_not(given, check, holds):
    finding = check(given(SOME))
    assert met(check, given(SOME)) is holds
    assert all(math.isnan(criterion.shown.low) for criterion in finding.criteria)
    assert finding.says


def rows(**values):
    """Numbers of rows in the column x."""
    return {(row, "x"): seeds for row, seeds in values.items()}


def p_values(check, measured):
    (criterion,) = check(measured).criteria
    return criterion.p_met, criterion.p_unmet


NOISE = np.array([-0.03, 0.01, 0.02, -0.01, 0.0, 0.03, -0.02, 0.0])


def test_a_bound_is_told_by_seeds_that_are_far_from_it(given):
    keys = given(rows(far=0.9 + NOISE, near=0.8 + NOISE / 10), prompts=100)
    assert p_values(within(X, "far", least=0.8), keys)[0] < 1e-3
    assert p_values(within(X, "far", most=0.8), keys)[1] < 1e-3
    assert p_values(within(X, "near", least=0.8), keys) == pytest.approx((0.5, 0.5))
    (criterion,) = within(X, "far", least=0.8)(keys).criteria
    assert criterion.says == "far at x ≥ 0.8" and (criterion.n, criterion.agree) == (8, 8)
    assert criterion.shown.low < 0.9 < criterion.shown.high < 0.95


def test_perfect_seeds_of_few_prompts_do_not_tell_that_every_key_is_found(given):
    check = within(X, "a", least=1.0, tolerance=0.01)
    assert p_values(check, given(rows(a=[1.0] * 8), prompts=10))[0] > 0.05
    assert p_values(check, given(rows(a=[1.0] * 8), prompts=500))[0] < 0.001
    assert p_values(within(X, "a", least=1.0), given(rows(a=[1.0] * 8), prompts=500)) == (0.5, 0.5)


def test_each_column_and_each_other_is_a_criterion_of_its_own(given):
    assert len(within(CELLS, "a", least=0.1, most=0.9)(given(SOME)).criteria) == 4
    assert len(better(CELLS, "a", ("b", "d"), each=True)(given(SOME)).criteria) == 4
    assert len(better(CELLS, "a", ("b", "d"))(given(SOME)).criteria) == 2


def test_rows_are_compared_seed_by_seed(given):
    """Differences by seed are free of what a seed does to both rows; a seed that one row lacks is left out."""
    common = np.linspace(1.0, 20.0, 8)
    measured = given(rows(a=common * 1.01 * np.exp(NOISE / 100), b=common), Kind.PERPLEXITY)
    assert p_values(better(X, "b", ("a",), lower=True), measured)[0] < 1e-6
    (criterion,) = better(X, "a", ("b",), lower=True)(measured).criteria
    assert criterion.says == "a / b at x < 1" and criterion.shown.middle == pytest.approx(1.01) and not criterion.met
    paired = {seed: value for seed, value in enumerate(common) if seed != 3}
    (criterion,) = better(X, "a", ("b",), lower=True)(given(rows(a=paired, b=common), Kind.PERPLEXITY)).criteria
    assert criterion.n == 7 and criterion.p_met == 0.5
    # With a margin, perplexities are compared by their differences.
    (criterion,) = better(X, "b", ("a",), lower=True, margin=-0.1)(measured).criteria
    assert criterion.says == "b minus a at x < 0.1" and criterion.p_met < 0.025


def test_losses_are_compared_as_they_are(given):
    """A loss is no share of samples: no number of prompts bounds its error, and it may be above 1."""
    paired = given(rows(a=1.9 + NOISE, b=1.9256 + NOISE * 1.01), Kind.LOSS, prompts=15)
    (criterion,) = better(X, "a", ("b",), lower=True)(paired).criteria
    assert criterion.says == "a minus b at x < 0" and criterion.p_met < 1e-6
    (criterion,) = within(X, "a", most=2.0)(paired).criteria
    assert criterion.shown.high > criterion.shown.middle == pytest.approx(1.9, abs=0.02)
    assert statistics.interval(Kind.LOSS, [1.8, 2.0], 15).high > 2.0


def test_equal_rows_are_not_told_apart(given):
    measured = given(rows(a=[1.0] * 8, b=[1.0] * 8), prompts=20)
    assert p_values(better(X, "a", ("b",)), measured) == (0.5, 0.5)
    (criterion,) = better(X, "a", ("b",))(measured).criteria
    assert criterion.seeds_to_tell(0.025, met=False) == math.inf and criterion.shown.low < 0 < criterion.shown.high


def test_the_mean_of_perplexities_is_that_of_their_logarithms(given):
    measured = given({("a", "x"): [4.0] * 2, ("a", "y"): [9.0] * 2}, Kind.PERPLEXITY)
    (criterion,) = ratio((CELLS, "a"), (X, "a"), least=1.5)(measured).criteria
    assert criterion.shown.middle == pytest.approx(1.5)


def test_a_ratio_of_accuracies_may_be_of_zeros(given):
    measured = given(rows(low=[0.0] * 8, high=0.9 + NOISE), prompts=20)
    assert p_values(ratio((X, "low"), (X, "high"), most=0.5), measured)[0] < 1e-6
    assert p_values(ratio((X, "high"), (X, "low"), most=0.5), measured)[1] < 1e-6
    nothing = ratio((X, "low"), (X, "low"), most=0.5)(measured).criteria[0]
    assert nothing.p_met == 0.5 and not nothing.met
    (criterion,) = ratio((X, "low"), (X, "high"), most=0.5)(measured).criteria
    assert criterion.shown.low == 0.0 and criterion.shown.high < 0.1


def test_growth_is_compared_seed_by_seed(given):
    numbers = {("a", "x"): 4 + NOISE, ("a", "y"): 5 + NOISE, ("b", "x"): 4 + NOISE, ("b", "y"): 6 + NOISE}
    measured = given(numbers, Kind.PERPLEXITY)
    assert p_values(steadier(CELLS, "y", "x", "a", "b"), measured)[0] < 1e-6
    assert p_values(steadier(CELLS, "y", "x", "b", "a"), measured)[1] < 1e-6


def test_some_model_does_the_task_where_one_is_above_chance(given):
    measured = given(rows(a=0.05 + NOISE, b=0.3 + NOISE, c=0.25 + NOISE, short=[0.3] * 3), prompts=100)
    assert p_values(above_chance([X], ("a", "b"), 0.25), measured)[0] < 0.05
    assert p_values(above_chance([X], ("a", "c"), 0.25), measured) == pytest.approx((1.0, 0.5))
    (criterion,) = above_chance([X], ("a", "b", "short"), 0.25)(measured).criteria
    assert criterion.n == 3  # the fewest
    assert above_chance([X], ("a", "none"), 0.25)(measured).criteria[0].n == 0


def test_a_speed_is_one_number(given):
    (criterion,) = ratio((X, "a"), (X, "b"), least=0.9, most=2.0)(given(rows(a=[3.0], b=[2.0]), Kind.SPEED)).criteria[
        1:
    ]
    assert not criterion.has_seeds and criterion.met and criterion.shown.middle == 1.5
    assert (criterion.p_met, criterion.p_unmet) == (0.0, 1.0) and criterion.seeds_to_tell(0.05, met=False) == math.inf


def test_votes_are_counted():
    criterion = voted("it does", [True] * 7 + [None])
    assert (criterion.met, criterion.agree, criterion.n) == (True, 7, 8)
    assert criterion.seeds_to_tell(0.025, met=True) == 12
    assert voted("it does", []).met is None and voted("it does", [True]).met
