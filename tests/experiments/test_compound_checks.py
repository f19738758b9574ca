"""Checks across tables, rows and checks, on numbers that were made up: of one seed, and of many."""

import numpy as np
import pytest

from bam_jax.experiments.cells import Cells
from bam_jax.experiments.checks import within
from bam_jax.experiments.compound_checks import (
    better_across,
    count_cells,
    gains_more,
    most_of,
    reaches_times,
    relative_growth,
    reliable,
)
from bam_jax.experiments.criteria import Criterion, quorum
from bam_jax.experiments.statistics import Kind

NOISE = np.array([-0.03, 0.01, 0.02, -0.01, 0.0, 0.03, -0.02, 0.0])
ROWS = {
    "a": (4.0, 8.0),
    "b": (5.0, 20.0),
    "c": (4.0, 4.0),
    "d": (0.0, 1.0),
    "e": (0.9, 0.9),
    "f": (0.9, 0.1),
    "g": (0.1, 0.9),
    "h": (0.1, 0.1),
}
SOME = {(row, column): value for row, values in ROWS.items() for column, value in zip("xy", values, strict=True)}
BOTH, X, Y = Cells("n", "t", ("x", "y")), Cells("n", "t", ("x",)), Cells("n", "t", ("y",))
TOKENS = {"x": 10, "y": 200}
LOW, HIGH, LAST = within(X, "a", least=3), within(X, "a", least=9), within(Y, "a", least=3)


def met(check, measured):
    found = [criterion.met for criterion in check(measured).criteria]
    return None if None in found else all(found)


def p_values(check, measured):
    (criterion,) = check(measured).criteria
    return criterion.p_met, criterion.p_unmet


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (better_across((X, "b"), (X, "a")), True),
        (better_across((X, "b"), (X, "a"), margin=2.0), False),
        (better_across((X, "a"), (Y, "a"), lower=True), True),
        (better_across((X, "b"), (X, "none")), None),
        (gains_more(X, ("b", "a"), ("a", "c")), True),  # 1 and 0
        (gains_more(X, ("a", "c"), ("b", "a")), False),
        (gains_more(Y, ("c", "a"), ("a", "b"), lower=True), False),  # halved, and to two fifths
        (gains_more(Y, ("a", "b"), ("c", "a"), lower=True), True),
        (gains_more(Y, ("a", "b"), ("c", "none")), None),
        (relative_growth(BOTH, "y", "x", "b", "a", least=1.9, most=2.1), True),  # fourfold and twofold
        (relative_growth(BOTH, "y", "x", "b", "a", most=1.9), False),
        (relative_growth(BOTH, "y", "x", "b", "none", most=1.9), None),
        (count_cells([X, Y], "d", equal=0.0, most=1), True),
        (count_cells([X, Y], "d", equal=0.0, most=0), False),
        (count_cells([X, Y], "d", equal=1.0, least=2), False),
        (count_cells([X, Y], "none", equal=0.0), None),
        (most_of([LOW, HIGH, LAST], least=2), True),
        (most_of([LOW, HIGH, LAST], least=3), False),
        (most_of([LOW, within(X, "none", least=3)], least=1), None),
        (reaches_times([X, Y], TOKENS, "e", ("f",), times=0.5), True),  # to 200 tokens and more, below at 200
        (reaches_times([X, Y], TOKENS, "e", ("f",), times=2), False),
        (reaches_times([X, Y], TOKENS, "f", ("e",), times=2), False),
        (reaches_times([X, Y], TOKENS, "e", ("none",), times=2), None),
    ],
)
def test_one_number_meets_a_criterion_or_not(given, check, holds):
    measured = given(SOME, Kind.PERPLEXITY if "growth" in check(given(SOME)).subject else Kind.ACCURACY)
    assert met(check, measured) is holds


def seeds(**rows):
    """Numbers of eight seeds, by row a value for each of the columns x and y."""
    return {
        (row, c): values[k] + NOISE[::sign]
        for (row, values), sign in zip(rows.items(), (1, -1, 1, -1), strict=False)
        for k, c in enumerate("xy")
    }


def test_differences_of_differences_are_told_seed_by_seed(given):
    keys = given(seeds(a=(0.9, 0.9), b=(0.5, 0.5), c=(0.6, 0.6), d=(0.5, 0.5)), prompts=1000)
    assert p_values(gains_more(BOTH, ("a", "b"), ("c", "d")), keys)[0] < 1e-4
    assert p_values(gains_more(BOTH, ("c", "d"), ("a", "b")), keys)[1] < 1e-4
    assert p_values(better_across((X, "a"), (Y, "b"), margin=0.3), keys)[0] < 1e-3
    text = given(seeds(a=(4.0, 8.0), b=(5.0, 20.0), c=(4.0, 8.0), d=(4.0, 4.0)), Kind.PERPLEXITY)
    assert p_values(relative_growth(BOTH, "y", "x", "b", "a", least=1.5), text)[0] < 1e-6
    assert p_values(relative_growth(BOTH, "y", "x", "b", "a", most=1.5), text)[1] < 1e-6
    assert p_values(gains_more(BOTH, ("d", "a"), ("c", "b"), lower=True), text)[1] < 1e-6


def test_a_reach_that_the_ends_of_the_table_hide_speaks_for_neither_side(given):
    measured = given({key: [value] * 8 for key, value in SOME.items()})
    check = lambda row, *others, times: reaches_times([X, Y], TOKENS, row, others, times=times)(measured).criteria[0]
    far = check("e", "h", times=15)  # to 200 tokens and more, below from 10 on
    assert far.p_met == 0.5**8 and far.agree == 8
    for hidden in (check("e", "h", times=25), check("e", "e", times=2), check("f", "h", times=2)):
        assert hidden.p_met == 1.0 == hidden.p_unmet
    assert (
        check("f", "e", times=2).p_unmet == 0.5**8 == check("e", "f", times=2).p_met or check("f", "e", times=2).against
    )


def test_a_reach_is_held_against_every_other_and_against_keys_that_are_found_again(given):
    measured = given({key: [value] * 8 for key, value in SOME.items()})
    check = lambda row, *others, times: reaches_times([X, Y], TOKENS, row, others, times=times)(measured).criteria[0]
    assert check("e", "h", times=15).met and not check("e", "h", "g", times=15).met
    assert check("f", "g", times=0.1).against == 8  # which is below at 10 and not at 200
    assert check("f", "h", "g", times=0.1).against == 8 and check("f", "h", times=0.1).agree == 8


def test_cells_are_counted_seed_by_seed(given):
    measured = given({("d", "x"): [0.0] * 6 + [1.0] * 2, ("d", "y"): [1.0] * 8})
    (criterion,) = count_cells([X, Y], "d", equal=1.0, least=2)(measured).criteria
    assert (criterion.agree, criterion.against, criterion.n) == (2, 6, 8) and not criterion.met


@pytest.mark.parametrize(("failing", "p_met"), [(0, 0.9**40), (1, 0.9**40 + 40 * 0.9**39 * 0.1)])
def test_a_share_of_all_models_is_tested_over_rows_of_their_own(given, failing, p_met):
    good, bad = [0.95] * 20, [0.95] * (20 - failing) + [0.89] * failing
    measured = given({("d", "x"): good, ("e", "x"): bad, ("f", "x"): [0.95] * 7})
    (criterion,) = reliable([(X, "d"), (X, "e")], least=0.9, share=0.9)(measured).criteria
    assert (criterion.agree, criterion.against, criterion.n) == (40 - failing, failing, 40)
    assert criterion.met and criterion.p_met == pytest.approx(p_met)
    assert criterion.p_unmet == pytest.approx(1 - 0.9**40 if failing else 1.0)
    assert reliable([(X, "d"), (X, "f")], least=0.9, share=0.9)(measured).criteria[0].n == 0  # a row lacks seeds


def test_a_quorum_is_between_all_and_one(given):
    """The p-values of a partial conjunction, in either direction."""
    far, near, off = (
        within(X, row, least=0.8)(
            given({("a", "x"): 0.9 + NOISE, ("b", "x"): 0.82 + NOISE, ("c", "x"): 0.7 + NOISE}, prompts=1000)
        ).criteria[0]
        for row in "abc"
    )
    p = [far.p_met, near.p_met, off.p_met]
    several = [off, far, near]
    assert quorum("all", several, 3).p_met == max(p) and quorum("one", several, 1).p_met == pytest.approx(3 * min(p))
    assert quorum("two", several, 2).p_met == pytest.approx(2 * near.p_met)
    assert quorum("all", several, 3).p_unmet == pytest.approx(3 * off.p_unmet)
    assert quorum("one", several, 1).p_unmet == max(each.p_unmet for each in several)
    two = quorum("two", several, 2)
    assert two.met and two.shown.middle == 2 and two.n == 8
    assert two.seeds_to_tell(0.025, met=True) == near.seeds_to_tell(0.0125, met=True)
    assert two.seeds_to_tell(0.025, met=False) == np.inf
    assert quorum("two", [*several, Criterion("none")], 2).met is None
