"""The suites that have no part in the default run, as marks of single cases."""

import pytest


def full(*values):
    """A case of `make test-full`."""
    return pytest.param(*values, marks=pytest.mark.full)


def longest(*values):
    """A case of `make test-endurance`: continuous integration has no time for it."""
    return pytest.param(*values, marks=pytest.mark.endurance)
