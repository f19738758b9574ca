"""Every figure of reliability in its short form: few cases, and none of them fails."""

import pytest
from endurance import figures, page

MARKS = {
    "configurations": [pytest.mark.full],  # tests/test_fuzz.py has some of them
    "malformed_files": [pytest.mark.full],  # tests/data/test_fuzz.py has some of them
    "malformed_runs": [pytest.mark.full],  # tests/test_damage.py has some of them
    "strangers": [pytest.mark.full],  # tests/test_strangers.py has some of them
    "hostile": [pytest.mark.full],  # tests/system/test_regular.py has some of them
    "preemptions": [pytest.mark.endurance],  # tests/parallel has a signal in the default suite
    "memory": [pytest.mark.full],
    "out_of_memory": [pytest.mark.full],
}
"""Figures whose short form is long, too."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS[name] if name in MARKS else []) for name in figures.NAMES]
)
def test_no_case_fails(name, tmp_path):
    figure = figures.find(name)
    try:
        outcome = figures.short(figure, tmp_path)
    except figures.Unavailable as reason:
        pytest.skip(str(reason))
    assert outcome.failures == []
    assert outcome.count > 0


def test_the_page_says_which_suite_has_how_many():
    suites = [MARKS[name][0].name if name in MARKS else "test" for name in figures.NAMES]
    counts = {suite: suites.count(suite) for suite in ("test", "full", "endurance")}
    assert counts == {"test": 4, "full": 7, "endurance": 1} and MARKS["preemptions"] == [pytest.mark.endurance]
    said = "`make test` has four of the twelve, `make test-full` seven, and `make test-endurance` that of preemptions."
    assert said in page.PAGE.read_text()
