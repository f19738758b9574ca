"""Marks that move single cases from the default run to a longer suite."""

import pytest


def full(*values):
    """A case of `make test-full`."""
    return pytest.param(*values, marks=pytest.mark.full)


def longest(*values):
    """A case of `make test-endurance`: continuous integration has no time for it."""
    return pytest.param(*values, marks=pytest.mark.endurance)
