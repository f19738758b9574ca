"""The table of methods: every encoding, and what is said of it."""

import inspect
import re
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
    assert cells("sandwich")["backends"] == "all"
    assert cells("cope")["backends"] == "reference, rows"


def test_what_comes_with_a_name_is_of_encodings_that_there_are(capsys):
    assert {*published.SSMAX} <= {*ENCODINGS} and not {*METHODS} & {*ENCODINGS}
    assert {each.changes["encoding"] for each in METHODS.values()} <= {*ENCODINGS}
    for name in METHODS:
        methods_command.main([name])
        said = capsys.readouterr().out
        assert "--config.ssmax=on" in said and "init" in said and "Source: BAM appendix C" in said
        assert cells(name)["formula"] == cells("bam")["formula"] and cells(name)["source"] == "BAM appendix C"


def test_the_command_explains_each_option(capsys):
    for name, encoding in ENCODINGS.items():
        methods_command.main([name])
        said = capsys.readouterr().out
        assert {*inspect.signature(encoding.__init__).parameters} - {"self", "dims", "rngs"} <= {
            *re.findall(r"\w+", said)
        }
    with pytest.raises(UserError, match="no encoding 'bamx'; did you mean 'bam'"):
        methods_command.main(["bamx"])


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


def test_a_docstring_without_source_or_equation_is_an_error(monkeypatch):
    class Mine(Encoding):
        """Without an equation."""

        def bias(self):
            return biases.Uniform()

    monkeypatch.setitem(ENCODINGS, "mine", Mine)
    monkeypatch.setattr(biases.Uniform, "__doc__", "")
    for text, message in (("Mine.", "Mine names no source"), ("Source: me.", "no docstring of Mine has an equation")):
        monkeypatch.setattr(Mine, "__doc__", text)
        with pytest.raises(UserError, match=message):
            methods.row("mine")
