"""Every public name says what it is, and every example in a docstring is true."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import bam_jax

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(bam_jax.__path__, "bam_jax.")
    if not module.name.endswith("__main__")
)


def own(holder, module):
    """Public classes and functions that are defined in this module."""
    for name, value in vars(holder).items():
        value = getattr(value, "__func__", value)
        is_own = getattr(value, "__module__", None) == module.__name__
        if not name.startswith("_") and is_own and (inspect.isclass(value) or inspect.isfunction(value)):
            yield name, value


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_described(name):
    module = importlib.import_module(name)
    assert module.__doc__ or name.endswith("__init__"), f"{name} has no docstring"
    for label, value in own(module, module):
        text = value.__doc__ or ""
        assert text and not text.startswith(f"{label}("), f"{name}.{label} has no docstring"
        assert text.strip().split("\n")[0].rstrip()[-1] in ".:?!", f"{name}.{label}: the first line is one sentence"
        if inspect.isclass(value):
            for method, _ in own(value, module):
                assert inspect.getdoc(getattr(value, method)), f"{name}.{label}.{method} has no docstring"


def bare_arrays(function):
    """Arguments annotated as an array without its shape."""
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if getattr(p.annotation, "__name__", p.annotation) in ("Array", "ndarray")
    ]


@pytest.mark.parametrize("name", MODULES)
def test_public_functions_state_the_shapes_of_arrays(name):
    """In the annotation (jaxtyping) or, where that cannot say it, in the docstring."""
    module = importlib.import_module(name)
    for label, value in own(module, module):
        if inspect.isfunction(value) and bare_arrays(value):
            text = inspect.getdoc(value) or ""
            assert "[" in text or "`" in text, f"{name}.{label}: no shape of {bare_arrays(value)}"


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
