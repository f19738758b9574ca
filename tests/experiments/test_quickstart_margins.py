"""The margins of the quickstart's claims: the rows that are repeated, the verdicts, and where a killed command goes on."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bam_jax.config import CONFIGS
from bam_jax.data.tasks import passkey
from bam_jax.experiments import jobs

ROOT = CONFIGS.parent
FILE = ROOT / "experiments" / "quickstart_margins.py"


@pytest.fixture
def margins(tmp_path, monkeypatch):
    """The experiment's module, with three sets and two, and files of its own."""
    spec = importlib.util.spec_from_file_location("quickstart_margins", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SETS", 3)
    monkeypatch.setattr(module, "OTHER_SETS", 2)
    monkeypatch.setattr(module, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(module, "ARITHMETICS", module.ARITHMETICS[1:4])
    monkeypatch.setattr(module, "MARGINS", tmp_path / "margins.json")
    monkeypatch.setattr(module, "machine", lambda: {"device": "cpu"})
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return module


def invent(sweep):
    """Runs that find every key, but for one seed of the first row, which finds half of them."""
    (made,), folder = sweep.experiments, sweep.folder
    folder.mkdir(parents=True)
    for job in jobs.row_jobs(made):
        value = 0.5 if (job.row.label, job.seed) == (made.rows[0].label, 1000) else 1.0
        lines = [
            {"eval": "passkey", "length": length, "depth": depth, "value": value, "n": each.trials, "first": 0}
            | {"unit": "", "step": job.config.steps, "overrides": {}, "commit": "abc1234"}
            | each.required({}, job.config)
            for each in job.row.evaluations
            for length in each.lengths
            for depth in passkey.depths(each.depths)
        ]
        (folder / job.name).mkdir()
        (folder / job.name / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_claimed_rows_have_fresh_seeds_where_the_quickstart_claims_something(margins):
    made, quickstart = margins.get_experiment(), {row.label: row for row in margins.QUICKSTART.rows}
    claims = {(claim.label, claim.length) for claim in margins.QUICKSTART.expected}
    measured = {(row.label, length) for row in made.rows for each in row.evaluations for length in each.lengths}
    assert measured == claims
    for row in made.rows:
        assert len(row.seeds) == len(set(row.seeds)) == margins.SETS * len(quickstart[row.label].seeds)
        assert min(row.seeds) >= margins.APART and row.overrides == quickstart[row.label].overrides


def test_a_killed_command_goes_on_with_the_arithmetics_that_the_file_lacks(margins, tmp_path, monkeypatch, capsys):
    swept, run = [], []

    def sweep(sweep, die_at=2):
        swept.append((os.environ["XLA_FLAGS"].partition("=")[2], int(os.environ["NPROC"])))
        if len(swept) == die_at:
            raise KeyboardInterrupt
        run.append(len(sweep.rows))
        invent(sweep)

    monkeypatch.setattr(margins.Sweep, "run", sweep)
    with pytest.raises(KeyboardInterrupt):
        margins.main([f"--runs={tmp_path / 'runs'}"])
    assert "3 of 3 arithmetics are missing: 7 sets x 4 models" in capsys.readouterr().out
    margins.main([f"--runs={tmp_path / 'runs'}"])
    assert swept == [*margins.ARITHMETICS[:2], *margins.ARITHMETICS[1:]] and run == [12, 8, 8]
    kept = json.loads(margins.MARGINS.read_text())
    assert [line["set"] for line in kept["table"]] == [1, 2, 3, 1, 2, 1, 2] and len(kept["arithmetics"]) == 3
    first = kept["table"][0]["claims"][0]
    assert first["accuracy"] == {"1000": 0.5, "1001": 1.0, "1002": 1.0} and not first["met"]
    assert kept["table"][1]["claims"][0]["met"] and kept["arithmetics"][0]["commits"] == ["abc1234"]
    said = capsys.readouterr().out
    assert "| 1 of 2 | 0.83 to 1.00 | 0.50 to 1.00 |" in said and "2 of 3 arithmetics are missing" in said
    margins.main([f"--runs={tmp_path / 'runs'}"])  # nothing is left
    assert len(swept) == 4


def test_margins_of_other_claims_are_not_taken_for_these(margins, capsys):
    described = margins.describe()
    margins.write_margins(margins.read_margins(described) | {"table": [{"set": 1}]})
    assert margins.read_margins(json.loads(json.dumps(described)))["table"] == [{"set": 1}]
    assert margins.read_margins(described | {"claims": []})["table"] == []
    assert "begins anew" in capsys.readouterr().out


def test_the_pages_table_is_that_of_the_committed_margins(margins, monkeypatch):
    monkeypatch.setattr(margins, "MARGINS", FILE.with_suffix(".json"))
    monkeypatch.setattr(margins, "SETS", 8)
    kept = margins.read_margins(json.loads(json.dumps(margins.describe())))
    assert len(kept["table"]) == 8 + 5 * 2, "not of the quickstart's claims and rows, or not whole"
    assert margins.to_markdown(kept) in (ROOT / "docs" / "quickstart.md").read_text()


QUICK = '''"""The quickstart's main row with few steps and one claim."""
import dataclasses, runpy

made = runpy.run_path({path!r})["get_experiment"]()
(row,) = [dataclasses.replace(row, seeds=(0,), overrides={{**row.overrides, "steps": 4}}) for row in made.rows[:1]]
evaluations = tuple(dataclasses.replace(each, lengths=(64,), depths=2) for each in row.evaluations[:1])


def get_experiment():
    claim = dataclasses.replace(made.expected[0], length=64, least=0.0)
    return dataclasses.replace(made, rows=(dataclasses.replace(row, evaluations=evaluations),), expected=(claim,))
'''


@pytest.mark.endurance
def test_the_command_runs_where_the_quickstart_is_short_and_survives_a_kill(tmp_path):
    (tmp_path / "quickstart.py").write_text(QUICK.format(path=str(FILE.with_name("quickstart.py"))))
    text = (
        FILE.read_text()
        .replace("SETS, OTHER_SETS = 8, 2\n", "SETS, OTHER_SETS = 2, 2\n")
        .replace('("AVX2", "AVX", "SSE4_2")', '("AVX2",)')
    )
    (tmp_path / FILE.name).write_text(text)
    command = [sys.executable, str(tmp_path / FILE.name), f"--runs={tmp_path / 'runs'}"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{FILE.parent}"}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    record = tmp_path / "quickstart_margins.json"
    deadline = time.monotonic() + 500
    while not record.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)  # most likely within the second arithmetic
    assert "2 of 2 arithmetics are missing: 4 sets x 1 models" in first.communicate()[0]
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert again.returncode == 0, again.stderr
    kept = json.loads(record.read_text())
    sets = [(line["isa"], line["threads"], line["set"]) for line in kept["table"]]
    assert sets == [("AVX2", 1, 1), ("AVX2", 1, 2), ("AVX2", 2, 1), ("AVX2", 2, 2)]
    values = [value for line in kept["table"] for each in line["claims"] for value in each["accuracy"].values()]
    assert len(values) == 4 and all(0 <= value <= 1 for value in values)
    assert again.stdout.count("| 2 of 2 |") == 2
