"""The margins of the quickstart's claims: the rows that are repeated, the table, and where a killed command continues."""

import importlib
import os

import pytest

from bam_jax.config import CONFIGS
from bam_jax.experiments import jobs


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


def test_what_the_records_lack_is_measured_under_its_own_arithmetic(margins, tmp_path, monkeypatch):
    swept = []

    def run(sweep):
        swept.append((os.environ["XLA_FLAGS"], os.environ["NPROC"], len(jobs.row_jobs(sweep.experiments[0]))))
        raise KeyboardInterrupt

    first = f"{margins.ARITHMETICS[0].isa}-{margins.ARITHMETICS[0].threads}"
    (tmp_path / first).symlink_to(margins.RECORDS / first)
    monkeypatch.setattr(margins, "RECORDS", tmp_path)
    monkeypatch.setattr(margins.Sweep, "run", run)
    with pytest.raises(KeyboardInterrupt):
        margins.main([f"--runs={tmp_path / 'runs'}"])
    assert swept == [("--xla_cpu_max_isa=AVX", "1", 2 * 4)] and not (tmp_path / "runs").exists()
