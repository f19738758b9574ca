"""Every figure of reliability in its short form: few cases, and none of them fails."""

import pytest
from endurance import figures


@pytest.mark.parametrize("name", figures.NAMES)
def test_no_case_fails(name, tmp_path):
    figure = figures.find(name)
    try:
        outcome = figures.short(figure, tmp_path)
    except figures.Unavailable as reason:
        pytest.skip(str(reason))
    assert outcome.failures == []
    assert outcome.count > 0
