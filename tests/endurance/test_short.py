"""Every figure of reliability in its short form: a few cases, and none of them fails."""

import pytest
from endurance import figures

QUICK = ("flipped", "bombs")
"""Figures whose short form is short; narrower tests have some cases of the others."""


def _param(name):
    marks = {"interruptions": [pytest.mark.endurance]}.get(name, [] if name in QUICK else [pytest.mark.full])
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [*map(_param, figures.NAMES)])
def test_no_case_fails(name, tmp_path):
    figure = figures.find(name)
    try:
        outcome = figure.measure(0, figure.short, tmp_path)
    except figures.Unavailable as reason:
        pytest.skip(str(reason))
    assert outcome.failures == []
    assert outcome.count > 0
