"""The table of methods: every encoding, and what is said of it."""

import inspect
from pathlib import Path

import jax.numpy as jnp
import pytest

from bam_jax import biases
from bam_jax import methods as methods_command
from bam_jax.analysis import methods
from bam_jax.config import published
from bam_jax.config.published import METHODS
from bam_jax.encodings import ENCODINGS, Encoding, learned
from bam_jax.system.errors import UserError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "encodings.md"


def cells(name):
    return dict(zip(methods.COLUMNS, methods.row(name), strict=True))


def test_the_page_has_the_table_of_the_code(capsys):
    methods_command.main([])
    table = capsys.readouterr().out
    assert len(table.splitlines()) == len(ENCODINGS) + len(METHODS) + 2
    assert table in PAGE.read_text()


@pytest.mark.parametrize(
    ("name", "count"),
    [("nope", "0"), ("fire", f"{2 / 16 + 64 / 16 + 33:.1f}"), ("cable", str(2 * 768)), ("cope", "192")],
)
def test_parameters_of_a_head(name, count):
    """FIRE's hidden layer, c and L belong to all heads; CoPE's 64 vectors of 48 numbers, too."""
    assert cells(name)["per head"] == count


def test_backends_are_those_that_do_not_refuse():
    assert cells("bam")["backends"] == "all"
    assert cells("sandwich")["backends"] == "all but pallas_gpu"
    assert cells("cope")["backends"] == "reference, rows"


def test_what_comes_with_a_name_is_of_encodings_that_there_are(capsys):
    assert {*published.SSMAX} <= {*ENCODINGS} and not {*METHODS} & {*ENCODINGS}
    assert {each.changes["encoding"] for each in METHODS.values()} <= {*ENCODINGS}
    for name in METHODS:
        methods_command.main([name])
        said = capsys.readouterr().out
        assert "--config.ssmax=on" in said and "init" in said and "Source: BAM appendix C" in said
        assert cells(name)["formula"] == cells("bam")["formula"] and cells(name)["source"] == "BAM appendix C"


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_command_explains_each_option(name, capsys):
    methods_command.main([name])
    said = capsys.readouterr().out
    for option in inspect.signature(ENCODINGS[name].__init__).parameters.keys() - {"self", "dims", "rngs"}:
        assert option in said
    with pytest.raises(UserError, match=f"no encoding '{name}x'; did you mean '{name}'"):
        methods_command.main([f"{name}x"])


def test_formulas_are_the_docstrings():
    assert cells("dape_kerple")["formula"].endswith("b(i, j) = -r1 * log(1 + r2 * abs(i - j))`")
    assert cells("dape_kerple")["formula"].startswith("`logits = s + b + conv2(")
    assert cells("rope_pi")["formula"] == "`rate_n = base ** (-2 n / D) / factor`"


def test_one_of_your_own_has_a_row(monkeypatch):
    @biases.bias
    class Mine(biases.Bias):
        """A prior of one's own.

            b(i, j) = -w * abs(i - j)

        Source: a notebook.
        """

        w: jnp.ndarray

        def __call__(self, i, j):
            return -self.w * jnp.abs(i - j)

    monkeypatch.setitem(ENCODINGS, "mine", learned(Mine, w=1.0))
    assert methods.row("mine") == ["`mine`", "`b(i, j) = -w * abs(i - j)`", "a notebook", "", "1", "untested", "all"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("Mine.", "Mine names no source"), ("Mine. Source: me.", "no docstring of Mine has an equation")],
)
def test_a_docstring_without_source_or_equation_is_an_error(text, message, monkeypatch):
    class Bare(biases.Bias):
        """Without an equation."""

    class Mine(Encoding):
        __doc__ = text

        def bias(self):
            return biases.bias(Bare)()

    monkeypatch.setitem(ENCODINGS, "mine", Mine)
    monkeypatch.setattr(methods, "_backends", lambda encoding: "")
    with pytest.raises(UserError, match=message):
        methods.row("mine")
