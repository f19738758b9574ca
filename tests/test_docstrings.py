"""Every example in a docstring is true; ruff sees that public names have docstrings."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import bam_jax

MODULES = [
    module.name
    for module in pkgutil.walk_packages(bam_jax.__path__, "bam_jax.")
    if ">>>" in Path(module.module_finder.find_spec(module.name).origin).read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name):
    found = doctest.testmod(importlib.import_module(name))
    assert not found.failed


def test_there_are_examples():
    assert (
        sum(
            doctest.testmod(importlib.import_module(name)).attempted for name in ("bam_jax.biases", "bam_jax.attention")
        )
        >= 8
    )
