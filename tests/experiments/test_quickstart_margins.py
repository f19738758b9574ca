"""The margins of the quickstart's claims: the rows that are repeated, the table, and where a killed command continues."""

import importlib
import os

import pytest

from bam_jax.config import CONFIGS


@pytest.fixture
def margins(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return importlib.import_module("quickstart_margins")


def test_claimed_rows_have_fresh_seeds_where_the_quickstart_claims_something(margins):
    made, quickstart = margins.get_experiment(), {row.label: row for row in margins.QUICKSTART.rows}
    claims = {(claim.label, claim.length) for claim in margins.QUICKSTART.expected}
    measured = {(row.label, length) for row in made.rows for each in row.evaluations for length in each.lengths}
    assert measured == claims
    for row in made.rows:
        assert len(row.seeds) == len(set(row.seeds)) == margins.SETS * len(quickstart[row.label].seeds)
        assert min(row.seeds) >= margins.APART and row.overrides == quickstart[row.label].overrides


def test_the_pages_table_comes_from_the_records_and_nothing_is_measured_again(margins, monkeypatch, capsys):
    monkeypatch.setattr(margins.Sweep, "run", None)
    margins.main(["--runs=nowhere"])
    assert capsys.readouterr().out in (CONFIGS.parent / "docs" / "quickstart.md").read_text()
