"""A sweep does nothing that its records hold, and adds to them what it does."""

import sys
import types

import numpy as np
import pytest

from bam_jax import config, sweep
from bam_jax.config import CONFIGS
from bam_jax.experiments import experiment, jobs, recorded_runs, recording, runner
from bam_jax.experiments.recording import Recorder
from bam_jax.system import jsonl
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder

MACHINE = {"device": "cpu", "processor": "abacus", "cores": 2, "versions": {"jax": "0.1"}}
EXPERIMENT = """
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row

def get_experiment(scale):
    asked = (Passkey(LENGTHS, depths=2),)
    return Experiment("t", (
        Row("First", CONFIG, {"steps": 10}, (0, 1), asked),
        Row("Next", CONFIG, {"steps": 10, "batch": 2, "context": 128}, evaluations=asked, start="Base"),
        Row("Base", CONFIG, {"steps": 10, "batch": 2}, evaluations=asked),
    ))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An experiment whose trainings and evaluations take no time; `done` lists them."""
    path = tmp_path / "study.py"
    done = []

    def write(lengths=(64,)):
        text = EXPERIMENT.replace("CONFIG", repr(str(CONFIGS / "quickstart.py")))
        path.write_text(text.replace("LENGTHS", repr(lengths)))

    def train(made, run):
        if run_folder.latest_step(run) < made.steps:
            done.append(run.name)
            (run / run_folder.CHECKPOINTS / str(made.steps)).mkdir(parents=True)
            (run / run_folder.CONFIG).write_text(config.to_json(made))
            (run / run_folder.METRICS).write_text(jsonl.line({"step": made.steps, "loss": 1.5, "seconds": 2.0}) + "\n")

    def evaluate(run, evaluation, **options):
        done.append(f"{run.name} {evaluation.name} {evaluation.lengths}")
        common = {"eval": "passkey", "value": 1.0, "n": 1, "step": 10, "unit": "u", "overrides": {}, "prompt": "toy"}
        for length in evaluation.lengths:
            for depth in (0.0, 1.0):
                where = {"length": length, "depth": depth, "seed": run_folder.read_config(run).seed}
                jsonl.append(run / "results.jsonl", common | where)
        return []

    def work(waiting, named, folder, slots, platform):
        for job in waiting:
            sweep.main([*named, f"--runs={folder}", f"--only={job.name}"])
        return []

    monkeypatch.setattr(jobs.loop, "train", train)
    monkeypatch.setattr(jobs.measuring, "evaluate", evaluate)
    monkeypatch.setattr(runner, "run", work)
    monkeypatch.setattr(recording, "machine", lambda: MACHINE)
    monkeypatch.setattr(recording.git, "describe", lambda: "abc1234")
    monkeypatch.setattr(recorded_runs, "checkpoint", types.SimpleNamespace(restore_model=lambda *run, step: (0, 0, 0)))
    monkeypatch.setattr(recorded_runs, "head_parameters", lambda decoder: {"shape": np.zeros((1, 2))})
    write()
    return types.SimpleNamespace(path=path, write=write, done=done, file=tmp_path / "records" / "paper" / "study")


def run(place, folder, *options):
    place.done.clear()
    return sweep.main([str(place.path), "--scale=paper", f"--runs={place.path.parent / folder}", *options])


def test_what_is_recorded_is_not_done_again_without_the_folders(place, capsys):
    assert run(place, "one") == 0
    assert len(place.done) == 8 and f"{place.file} holds 0 of 3 rows whole" in capsys.readouterr().err
    found = recorded_runs.read(place.file)
    assert sorted(each.name for each in found.values()) == ["base-seed0", "first-seed0", "first-seed1", "next-seed0"]
    source = next(iter(found.values())).source
    assert source["command"] == f"python -m bam_jax.sweep {place.path} --scale=paper" and source["machine"] == MACHINE
    parts = {*place.file.iterdir()}
    assert run(place, "two") == 0
    assert not place.done and {*place.file.iterdir()} == parts
    assert f"{place.file} holds 3 of 3 rows whole\n" in capsys.readouterr().err
    assert run(place, "two", "--only=first-seed1") == 0 and not place.done
    assert run(place, "two", "--print") == 0 and not capsys.readouterr().out
    assert run(place, "one", "--records=") == 0
    assert all(" " in each for each in place.done), "the folders have the trained models; nothing is recorded"


@pytest.mark.parametrize("options", [[], ["--only=first-seed0"]], ids=["all", "one"])
def test_without_pyarrow_nothing_is_trained_for_the_records(place, monkeypatch, options):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs the package pyarrow: pip install"):
        run(place, "one", *options)
    assert not place.done and run(place, "one", "--records=", *options) == 0


def test_a_dry_run_says_what_the_records_lack(place, capsys):
    costs = lambda: [line.rsplit(maxsplit=4) for line in capsys.readouterr().out.splitlines()[2:]]
    assert run(place, "one", "--dry-run") == 0
    *_, every, left = costs()
    assert (every[0], left[0]) == ("all", "not in the records") and every[1:] == left[1:]
    assert run(place, "one", "--only=first-seed0") == 0
    capsys.readouterr()
    assert run(place, "one", "--dry-run") == 0
    *runs, again, left = costs()
    missing = [float(cells[1]) for cells in runs if cells[0] != "first-seed0"]
    assert again == every and missing and float(left[1]) == pytest.approx(sum(missing), rel=0.01)
    assert run(place, "one", "--dry-run", "--records=") == 0
    assert costs()[-1] == every, "nothing is recorded there, so nothing is said of it"


def test_the_rest_is_done_and_a_run_without_weights_is_trained_again(place, capsys):
    assert run(place, "one", "--only=first-seed0") == 0
    assert run(place, "two") == 0
    assert not any("first-seed0" in each for each in place.done) and len(place.done) == 6
    place.write((64, 128))
    capsys.readouterr()
    assert run(place, "three", "--only=first-seed1") == 0
    assert place.done == ["first-seed1", "first-seed1 passkey (64, 128)"]
    assert "first-seed1 is trained again: " in capsys.readouterr().err
    assert run(place, "four", "--only=first-seed1") == 0 and not place.done


def test_a_run_that_others_start_from_is_trained_for_its_weights_alone(place):
    assert run(place, "one", "--only=base-seed0") == 0
    (part,) = [each for each in place.file.iterdir() if "next-seed0" in repr(recorded_runs.read(each))]
    part.unlink()
    assert run(place, "two", "--only=base-seed0") == 0
    assert place.done == ["base-seed0", "next-seed0", "next-seed0 passkey (64,)"]


def test_another_configuration_does_not_count(place, capsys):
    assert run(place, "one") == 0
    capsys.readouterr()
    text = place.path.read_text()
    place.path.write_text(text.replace('{"steps": 10}, (0, 1)', '{"steps": 10, "optimizer.rate": 0.01}, (0, 1)'))
    assert run(place, "two", "--print") == 0
    said = capsys.readouterr()
    assert "; 2 runs of other configurations do not count: first-seed0, first-seed1\n" in said.err
    assert len(said.out.splitlines()) == 2


def test_records_stand_beside_the_experiment_but_not_at_the_toy_scale(place):
    load = lambda **options: experiment.load(place.path, **options).records
    assert load() is load(scale="toy") is load(scale="paper", records="") is None
    assert load(scale="paper") == place.file and str(load(records="x")) == "x"
    assert experiment.find_records(place.path, "paper", shared=True) == place.file.with_name("shared")
    assert not Recorder(None, "").is_done(jobs.row_jobs(experiment.load(place.path))[0])
