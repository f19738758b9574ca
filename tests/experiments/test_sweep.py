"""A sweep runs what is missing, in processes of their own, and goes on after a failure."""

import importlib.util
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bam_jax import sweep, tables
from bam_jax.experiments import jobs, runner
from bam_jax.experiments.experiment import Fetch, Preparation, load
from bam_jax.system import errors, jsonl, lock
from bam_jax.system.errors import UserError

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart.py"
CONFIG = str(QUICKSTART.parents[1] / "configs" / "quickstart.py")
EXPERIMENT = f"""
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row

def get_experiment(source, runs):
    tiny = {{"steps": 2, "batch": 2, "encoding_options": {{}}}}
    rows = (
        Row("Good", {CONFIG!r}, tiny, evaluations=(Passkey((64,), depths=2),)),
        Row("Bad", {CONFIG!r}, tiny | {{"encoding": "alibo"}}),
    )
    return Experiment("Two rows", rows, notes=(source,))
"""


STEPS = """
from bam_jax.experiments.experiment import Experiment, Preparation

def get_experiment(source, runs):
    say = lambda text, makes="": Preparation("timeit", ("-n1", "-r1", text), makes)
    write = lambda word: f"open({str(runs / 'order')!r}, 'a').write({word + ' '!r})"
    steps = (say(write("made"), str(runs / "order")), say(write(source)), say(f"1 / ({source!r} != 'bad')"))
    return Experiment("No rows", (), preparations=steps)
"""


@pytest.fixture
def experiment(tmp_path):
    """An experiment with a row that works and one that does not; every process that loads it needs a corpus."""
    path = tmp_path / "two.py"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.full
def test_a_failing_row_is_reported_and_stops_no_other(experiment, tmp_path, capfd):
    folder = tmp_path / "runs"
    assert sweep.main([str(experiment), "--source=A text.", f"--runs={folder}", "--jobs=2"]) == 1
    said = capfd.readouterr().err
    assert "good-seed0: done" in said
    assert "bad-seed0: FAILED: error: no encoding 'alibo'" in said and str(folder / "logs" / "bad-seed0.log") in said
    assert "1 of 2 rows failed: bad-seed0" in said and "2 rows, of which 1 failed, in " in said
    cells = [json.loads(line) for line in (folder / "good-seed0" / "results.jsonl").read_text().splitlines()]
    assert [(cell["length"], cell["depth"]) for cell in cells] == [(64, 0.0), (64, 1.0)]
    description = json.loads((folder / "experiment.json").read_text())
    assert [run["name"] for run in description["runs"]] == ["good-seed0", "bad-seed0"]
    assert description["notes"] == ["A text."]

    before = (folder / "good-seed0" / "results.jsonl").read_text()
    assert sweep.main([str(experiment), "--source=A text.", f"--runs={folder}", "--only=good-seed0"]) == 0
    assert "nothing to do" in capfd.readouterr().out
    assert (folder / "good-seed0" / "results.jsonl").read_text() == before


def test_files_of_the_user_are_missed_before_a_long_preparation(tmp_path):
    later = Preparation("timeit", ("-n1", "-r1", f"open({str(tmp_path / 'made')!r}, 'w')"))
    needed = Fetch(str(tmp_path / "questions"), "hf download someone/questions")
    with pytest.raises(UserError, match="questions is missing; first: hf download someone/questions"):
        runner.prepare([later, needed])
    assert not (tmp_path / "made").exists()
    (tmp_path / "questions").mkdir()
    runner.prepare([later, needed])
    assert (tmp_path / "made").exists()


def test_steps_come_before_the_rows_and_make_what_is_missing(tmp_path, capfd):
    path, folder = tmp_path / "steps.py", tmp_path / "runs"
    path.write_text(STEPS)
    for _ in range(2):
        sweep.main([str(path), f"--runs={folder}", "--source=text"])
    assert (folder / "order").read_text() == "made text text "
    description = json.loads((folder / "experiment.json").read_text())
    assert description["command"] == f"python -m bam_jax.sweep {path} --source=text --runs={folder}"
    with pytest.raises(UserError, match="this failed: python -m timeit .*bad"):
        sweep.main([str(path), f"--runs={folder}", "--source=bad"])


def test_a_folder_is_of_one_experiment_and_one_sweep_at_a_time(experiment, sharing, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "run", lambda *_: [])
    folder = tmp_path / "runs"
    own = [str(experiment), "--source=text", f"--runs={folder}"]
    sweep.main(own)
    sweep.main(own)
    other = tmp_path / "other.py"
    other.write_text(experiment.read_text().replace("Two rows", "Rows of another"))
    before = (folder / "experiment.json").read_text()
    with pytest.raises(UserError, match="runs of 'Two rows', and this is 'Rows of another'; give another --runs"):
        sweep.main([str(other), *own[1:]])
    assert (folder / "experiment.json").read_text() == before
    with lock.hold(folder / lock.NAME):
        with pytest.raises(UserError, match="another sweep works in .*; wait"):
            sweep.main(own)
        capsys.readouterr()
        sweep.main([*map(str, sharing), f"--runs={folder}"])  # which may have other runs than that one
    assert f"another sweep works in {folder}" in capsys.readouterr().err


PAPER = f"""
import shlex

from bam_jax import config
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.benchmark import Benchmark
from bam_jax.experiments.experiment import Column, Preparation, Row, Speed, Table, tabled

def get_experiment(scale):
    tiny = {{"steps": 2 if scale == "toy" else 3, "batch": 2, "encoding_options": {{}}, "model.vocab": 0}}
    rows = (
        Row("Short", {CONFIG!r}, tiny),
        Row("Long", {CONFIG!r}, tiny | {{"context": 128}}, start="Short"),
        Row("Never", {CONFIG!r}, tiny | {{"seed": 1}}),
    )
    columns = (
        Column("keys", Passkey((64,), depths=2)),
        Column("end", Perplexity((128,), tokens=256), position=128),
        Column("time", speed=Speed("inference", 32)),
    )
    missing = (Column("answers", missing="not measurable yet"),)
    tables = (Table("Table 1", columns, {{"Short": (), "Long": ()}}), Table("Table 2", missing, {{"Never": ()}}))
    models = (f"--contender={{shlex.join(config.arguments(row.overrides))}}" for row in rows[:2])
    benchmark = Benchmark("speed-a", "benchmarks.speed", ("--config={CONFIG}", *models), (("inference", 32),), 6.0)
    failing = (Preparation("timeit", ("-n1", "-r1", "1 / 0")),)
    return tabled("A paper", rows, tables, platform="cpu", preparations=failing, benchmarks=(benchmark,))
"""


@pytest.fixture
def paper(tmp_path):
    """An experiment of a paper's tables, whose only step fails."""
    path = tmp_path / "paper.py"
    path.write_text(PAPER)
    return path


def test_speed_is_compared_in_a_clone(paper, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="benchmarks.speed, which is not installed; start in a clone"):
        sweep.main([str(paper), f"--runs={tmp_path / 'runs'}"])


@pytest.mark.parametrize(
    ("file", "arguments", "message"),
    [
        ("experiment", ["--source=x", "--scale=paper"], "--scale=paper: .*two.py has one scale only"),
        ("experiment", ["--source=x", "--only=god-seed0"], "'good-seed0'"),
        ("paper", ["--scale=big"], "--scale=big is unknown; known: paper, small, toy"),
        ("paper", ["--dry-run", "--chip=h1000"], "did you mean 'h100'"),
        ("paper", ["--source=x"], "--source=x: .*takes no corpus"),
        ("paper", ["--jobs=0"], "--jobs=0 must be 1 or more"),
        ("paper", [str(QUICKSTART)], "quickstart.py has a folder of runs and a report of its own; give it alone"),
    ],
)
def test_bad_arguments_are_named(request, tmp_path, file, arguments, message):
    with pytest.raises(UserError, match=message):
        sweep.main([str(request.getfixturevalue(file)), *arguments, f"--runs={tmp_path / 'runs'}"])
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_made_is_one_line(experiment, refused):
    assert f"{experiment}/runs" in refused(sweep.main, experiment, "--source=A text.", f"--runs={experiment}/runs")


@pytest.mark.full
def test_printed_commands_do_all_of_it_and_the_tables_find_it(paper, tmp_path, capsys):
    folder = tmp_path / "runs"
    assert sweep.main([str(paper), "--scale=toy", f"--runs={folder}", "--print"]) == 0
    said = capsys.readouterr()
    assert "first: python -m timeit" in said.err and not folder.exists()
    lines = said.out.splitlines()
    rows, compared = map(shlex.split, lines)  # a row with what goes on from it, and all rows side by side
    assert rows[:3] == ["python", "-m", "bam_jax.sweep"] and "--scale=toy" in rows
    assert compared[:3] == ["python", "-m", "benchmarks.speed"]
    for command in (rows, compared):
        subprocess.run([sys.executable, *command[1:]], check=True)
    capsys.readouterr()
    tables.main([str(paper), f"--runs={folder}"])
    assert "6 of 6 cells measured" in capsys.readouterr().out
    (compared,) = folder.glob("speed-*")
    assert {each["measure"] for each in jsonl.read(compared / "results.jsonl")} == {"inference"}
    runs = {each.name for each in folder.glob("bam-ssmax-*")}
    assert len(runs) == 2 and {path.name for path in folder.iterdir()} == {"tables", compared.name, *runs}
    tables.main([str(paper), f"--runs={folder}", "--scale=paper"])
    assert "0 of 6 cells measured" in capsys.readouterr().out


@pytest.fixture
def sharing(tmp_path):
    """Two experiments with one run in common, of which each asks something else, and one run that only the second has."""

    def write(name, evaluation, *labels):
        path = tmp_path / f"{name}.py"
        path.write_text(f"""
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Preparation, Row, Table, tabled

def get_experiment(scale):
    tiny = {{"steps": 60, "batch": 2, "encoding_options": {{}}, "checkpoint_every": 20, "log_every": 5}}
    rows = [Row("One", {CONFIG!r}, tiny), Row("Other", {CONFIG!r}, tiny, seeds=(1,))]
    steps = tuple(Preparation("timeit", ("-n1", "-r1", text)) for text in ("1", {repr(name)!r}))
    table = Table("T", (Column("a", {evaluation}),), {dict.fromkeys(labels, ())})
    return tabled("t", rows, [table], preparations=steps)
""")
        return str(path)

    first = write("first", "Passkey((64, 128), depths=2)", "One")
    return [first, write("second", "Perplexity((64,), tokens=256)", "Other", "One")]


def test_several_experiments_are_one_queue(sharing, tmp_path, capsys):
    folder = tmp_path / "runs"
    assert sweep.main([*sharing, f"--runs={folder}", "--print"]) == 0
    said = capsys.readouterr()
    assert said.err.count("first: ") == 3, "equal steps once"
    lines = said.out.splitlines()
    assert len(lines) == 2, "equal runs once"
    assert all(f"{sharing[0]} {sharing[1]} --runs" in line for line in lines)
    found = jobs.jobs(*(load(path) for path in sharing))
    asked = {job.row.label: [each.name for each in job.row.evaluations] for job in found}
    assert asked == {"One": ["passkey", "perplexity"], "Other": ["perplexity"]}
    assert sweep.main([*sharing, f"--runs={folder}", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 experiments: 2 runs;") and len(said.splitlines()) == 5
    assert not folder.exists()


def records(folder):
    """What the runs of a folder found: their losses, and the cells' values."""
    steps, cells = {}, {}
    for run in folder.glob("bam-*"):
        steps |= {(run.name, each["step"]): each["loss"] for each in jsonl.read(run / "metrics.jsonl")}
        for each in jsonl.read(run / "results.jsonl"):
            at = run.name, each["eval"], each["length"], each["depth"]
            assert at not in cells, "measured once"
            cells[at] = each["value"], each["n"]
    return steps, cells


def kill_when(command, folder, enough):
    """Start a sweep and kill it, and it alone, as soon as its files show enough."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not enough(*records(folder)):
            assert process.poll() is None, "it ended too early for this test"
            time.sleep(0.02)
        process.kill()
    time.sleep(1)  # its rows end with it


@pytest.mark.endurance
def test_a_sweep_killed_in_training_and_in_evaluations_comes_to_the_same(sharing, tmp_path):
    command = lambda folder: [sys.executable, "-m", "bam_jax.sweep", *sharing, f"--runs={folder}", "--jobs=1"]
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    assert subprocess.run(command(whole)).returncode == 0
    steps, cells = records(whole)
    assert len(steps) == 2 * 12 and len(cells) == 4 + 2
    for enough in (lambda steps, cells: len(steps) >= 6, lambda steps, cells: len(cells) >= 2):
        kill_when(command(folder), folder, enough)
        before = records(folder)
        assert enough(*before) and before[1] != cells, "killed in the middle"
    assert subprocess.run(command(folder)).returncode == 0
    assert records(folder) == (steps, cells)
    assert before[1].items() <= cells.items()


def test_a_dry_run_that_needs_a_tokenizer_says_what_makes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = QUICKSTART.with_name("encoder_rates.py")
    with pytest.raises(UserError, match="bpe.json.*; or first python -m bam_jax.data.make_retrieval --source=stdlib"):
        sweep.main([str(search), "--dry-run"])


def test_a_dry_run_says_what_it_would_cost_and_does_nothing(paper, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert sweep.main([str(paper), "--scale=paper", "--dry-run", "--chip=v5e", "--utilisation=0.5"]) == 0
    said = capsys.readouterr().out
    assert "A paper: 2 runs; hours on one v5e at 50% of its peak" in said and len(said.splitlines()) == 7
    assert "compared in speed 1 times" in said
    assert [path.name for path in tmp_path.iterdir()] == ["paper.py"]


@pytest.mark.full
def test_a_sweep_that_is_told_to_stop_has_its_rows_save(tmp_path):
    path, folder = tmp_path / "long.py", tmp_path / "runs"
    long = '{"steps": 10**6, "batch": 2, "log_every": 1}'
    path.write_text(
        "from bam_jax.experiments.experiment import Experiment, Row\n"
        f"def get_experiment():\n    return Experiment('One', (Row('One', {CONFIG!r}, {long}),))\n"
    )
    command = [sys.executable, "-m", "bam_jax.sweep", str(path), f"--runs={folder}", "--jobs=1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        while started.poll() is None and not list(jsonl.read(folder / "one-seed0" / "metrics.jsonl")):
            time.sleep(0.2)
        started.terminate()
        said = started.communicate(timeout=120)[1]
    assert started.returncode == errors.AGAIN and "stopped by SIGTERM, after its rows had saved" in said
    assert "stopped at step" in (folder / "logs" / "one-seed0.log").read_text()
    assert [each for each in (folder / "one-seed0" / "checkpoints").iterdir() if each.name.isdecimal()]
