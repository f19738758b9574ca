"""Every figure of reliability in its short form: few cases, and none of them fails."""

import pytest
from endurance import figures

LONG = ("preemptions",)
"""Trainings in processes, one after another, even in the short form; tests/parallel has a signal in the default suite."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.endurance] * (name in LONG)) for name in figures.NAMES]
)
def test_no_case_fails(name, tmp_path):
    figure = figures.find(name)
    try:
        outcome = figures.short(figure, tmp_path)
    except figures.Unavailable as reason:
        pytest.skip(str(reason))
    assert outcome.failures == []
    assert outcome.count > 0
