"""Every figure of reliability in its short form: few cases, and none of them fails."""

import pytest
from endurance import figures

MARKS = {
    "configurations": [pytest.mark.full],  # tests/test_fuzz.py has some of them
    "malformed_files": [pytest.mark.full],  # tests/data/test_fuzz.py has some of them
    "malformed_runs": [pytest.mark.full],  # tests/test_damage.py has some of them
    "strangers": [pytest.mark.full],  # tests/test_strangers.py has some of them
    "hostile": [pytest.mark.full],  # tests/system/test_regular.py has some of them
    "full_disk": [pytest.mark.full],  # tests/system/test_files.py has one of them
    "kills": [pytest.mark.full],  # tests/training/test_checkpoint.py has some of them
    "interruptions": [pytest.mark.endurance],  # tests/parallel/test_processes.py has some of them
    "memory": [pytest.mark.full],
    "out_of_memory": [pytest.mark.full],
    "op": [pytest.mark.full],  # tests/attention/test_parity.py has other cases
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
