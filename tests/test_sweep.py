"""A sweep runs what is missing, in processes of their own, and goes on after a failure."""

import json
from pathlib import Path

import pytest

from bam_jax import errors, sweep
from bam_jax.errors import UserError

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
EXPERIMENT = f"""
from bam_jax.experiment import Evaluation, Experiment, Row

def get_experiment(source, runs):
    tiny = ("--config.steps=2", "--config.batch=2", "--config.encoding_options={{}}")
    rows = (
        Row("Good", {CONFIG!r}, tiny, evaluations=(Evaluation("passkey", (64,), depths=2),)),
        Row("Bad", {CONFIG!r}, (*tiny, "--config.encoding=alibo")),
    )
    return Experiment("Two rows", rows, notes=(source,))
"""


STEPS = """
import sys
from bam_jax.experiment import Experiment, Step

def get_experiment(source, runs):
    say = lambda text, makes: Step("timeit", ("-n1", "-r1", text), makes)
    steps = (
        say(f"open({str(runs / 'order')!r}, 'a').write('made ')", str(runs / "order")),
        say(f"open({str(runs / 'order')!r}, 'a').write({source!r} + ' ')", ""),
        say("1 / (" + repr(source) + " != 'bad')", ""),
    )
    return Experiment("No rows", (), steps=steps)
"""


@pytest.fixture
def experiment(tmp_path):
    """An experiment with a row that works and one that does not; every process that loads it needs a corpus."""
    path = tmp_path / "two.py"
    path.write_text(EXPERIMENT)
    return path


def test_a_failing_row_is_reported_and_stops_no_other(experiment, tmp_path, capfd):
    folder = tmp_path / "runs"
    assert sweep.main([str(experiment), "--source=A text.", f"--runs={folder}", "--jobs=2"]) == 1
    said = capfd.readouterr().err
    assert "good-seed0: done" in said
    assert "bad-seed0: FAILED: error: no encoding 'alibo'" in said and str(folder / "logs" / "bad-seed0.log") in said
    assert "1 of 2 rows failed" in said
    cells = [json.loads(line) for line in (folder / "good-seed0" / "results.jsonl").read_text().splitlines()]
    assert [(cell["length"], cell["depth"]) for cell in cells] == [(64, 0.0), (64, 1.0)]
    manifest = json.loads((folder / "experiment.json").read_text())
    assert [run["name"] for run in manifest["runs"]] == ["good-seed0", "bad-seed0"]
    assert manifest["notes"] == ["A text."]

    before = (folder / "good-seed0" / "results.jsonl").read_text()
    assert sweep.main([str(experiment), "--source=A text.", f"--runs={folder}", "--only=good-seed0"]) == 0
    assert "nothing to do" in capfd.readouterr().out
    assert (folder / "good-seed0" / "results.jsonl").read_text() == before


def test_steps_come_before_the_rows_and_make_what_is_missing(tmp_path, capfd):
    path, folder = tmp_path / "steps.py", tmp_path / "runs"
    path.write_text(STEPS)
    for _ in range(2):
        sweep.main([str(path), f"--runs={folder}", "--source=text"])
    assert (folder / "order").read_text() == "made text text "
    manifest = json.loads((folder / "experiment.json").read_text())
    assert manifest["command"] == f"python -m bam_jax.sweep {path} --source=text --runs={folder}"
    with pytest.raises(UserError, match="this failed: python -m timeit .*bad"):
        sweep.main([str(path), f"--runs={folder}", "--source=bad"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [("--jobs=0", "--jobs=0 must be 1 or more"), ("--only=god-seed0", "'good-seed0'")],
)
def test_bad_arguments_are_named(experiment, tmp_path, argument, message):
    with pytest.raises(UserError, match=message):
        sweep.main([str(experiment), "--source=A text.", f"--runs={tmp_path / 'runs'}", argument])
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_made_is_one_line(experiment, capsys):
    with pytest.raises(SystemExit) as exit:
        errors.run(sweep.main, [str(experiment), "--source=A text.", f"--runs={experiment}/runs"])
    said = capsys.readouterr().err
    assert exit.value.code == 2 and f"{experiment}/runs" in said and said.count("\n") == 1
