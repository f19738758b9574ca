"""The list of fields against the dataclasses, in the help and on the page."""

from pathlib import Path

import pytest

from bam_jax import config as configs
from bam_jax import train
from bam_jax.config import description

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_every_field_has_a_text_and_its_default():
    found = list(description.fields())
    assert {field.name: field.default for field in found} == dict(configs.to_fields(configs.Config()))
    assert not [field.name for field in found if not field.text.endswith(".") and len(field.text) < 10]


def test_the_help_of_train_lists_them(capsys):
    with pytest.raises(SystemExit):
        train.main(["--help"])
    said = capsys.readouterr().out
    assert "  model.kv_heads  (int, 0)\n      Key and value heads" in said
    assert all(f"  {field.name}  ({field.kind.__name__}" in said for field in description.fields())


def test_the_page_has_the_table():
    assert description.to_markdown() in PAGE.read_text(), "python -m bam_jax.config --markdown has another table"
