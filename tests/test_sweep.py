"""A sweep runs what is missing, in processes of their own, and goes on after a failure."""

import json
import shlex
from pathlib import Path

import pytest

from bam_jax import errors, sweep, tables
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


PAPER = f"""
from bam_jax.experiment import Column, Evaluation, Row, Step, Table, tabled

def get_experiment(scale):
    steps = {{"toy": 2, "paper": 3}}[scale]
    tiny = (f"--config.steps={{steps}}", "--config.batch=2", "--config.encoding_options={{}}", "--config.model.vocab=0")
    rows = (
        Row("Short", {CONFIG!r}, tiny),
        Row("Long", {CONFIG!r}, (*tiny, "--config.context=128"), start="Short"),
        Row("Never", {CONFIG!r}, (*tiny, "--config.seed=1")),
    )
    columns = (
        Column("keys", Evaluation("passkey", (64,), depths=2)),
        Column("end", Evaluation("perplexity", (128,), tokens=256), position=128),
        Column("speed", quantity="tokens_per_second"),
    )
    missing = (Column("answers", missing="not measurable yet"),)
    tables = (
        Table("Table 1", columns, {{"Short": (), "Long": ()}}),
        Table("Table 2", missing, {{"Never": ()}}),
    )
    return tabled("A paper", rows, tables, platform="cpu", steps=(Step("timeit", ("-n1", "-r1", "1 / 0")),))
"""


@pytest.fixture
def paper(tmp_path):
    """An experiment of a paper's tables, whose only step fails."""
    path = tmp_path / "paper.py"
    path.write_text(PAPER)
    return path


def test_printed_commands_do_all_of_it_and_the_tables_find_it(paper, tmp_path, capsys):
    folder = tmp_path / "runs"
    assert sweep.main([str(paper), "--scale=toy", f"--runs={folder}", "--print"]) == 0
    said = capsys.readouterr()
    assert "first: python -m timeit" in said.err and not folder.exists()
    (line,) = said.out.splitlines()
    python, dash, module, *arguments = shlex.split(line)
    assert (python, dash, module) == ("python", "-m", "bam_jax.sweep") and "--scale=toy" in arguments
    assert sweep.main(arguments) == 0
    capsys.readouterr()
    tables.main([str(paper), f"--runs={folder}"])
    assert "6 of 6 cells measured" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"tables", *(each.name for each in folder.glob("bam-ssmax-*"))}
    assert len(list(folder.glob("bam-ssmax-*"))) == 2
    tables.main([str(paper), f"--runs={folder}", "--scale=paper"])
    assert "0 of 6 cells measured" in capsys.readouterr().out


def test_a_dry_run_says_what_it_would_cost_and_does_nothing(paper, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert sweep.main([str(paper), "--scale=paper", "--dry-run", "--chip=v5e", "--utilisation=0.5"]) == 0
    said = capsys.readouterr().out
    assert "A paper: 2 runs; hours on one v5e at 50% of its peak" in said and len(said.splitlines()) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["paper.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scale=big"], "--scale=big is unknown; known: paper, toy"),
        (["--dry-run", "--chip=h1000"], "did you mean 'h100'"),
        (["--source=x"], "--source=x: .*takes no corpus"),
    ],
)
def test_bad_arguments_of_a_paper_are_named(paper, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        sweep.main([str(paper), *arguments])
    assert not (tmp_path / "runs").exists()


def test_an_experiment_of_one_scale_says_so(experiment):
    with pytest.raises(UserError, match="--scale=paper: .*two.py has one scale only"):
        sweep.main([str(experiment), "--source=x", "--scale=paper"])
