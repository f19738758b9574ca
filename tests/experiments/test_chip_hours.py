"""The steps for a GPU that is free for half an hour: their commands, their limit of time, and all of them in the tiny form."""

import shlex
import subprocess
import sys
from pathlib import Path

import chip_hours
import pytest

from bam_jax.experiments import experiment, jobs

ROOT = Path(__file__).parents[2]


def test_the_steps_are_listed_as_commands(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    status, said, _ = command(chip_hours.main, "--list")
    commands = [shlex.split(line.partition(": ")[2]) for line in said.splitlines()]
    assert not status and all(words[:2] == ["python", "-m"] for words in commands)
    assert [line.partition(":")[0] for line in said.splitlines()] == ["parity", *["speed"] * 5, "emergence", "dose"]
    assert not [word for words in commands for word in words if "bam_jax.train" in word], "speed trains nothing"


def test_a_step_needs_a_name_and_a_folder(refused, tmp_path):
    assert "give --out=FOLDER and --step=NAME" in refused(chip_hours.main, f"--out={tmp_path}")
    assert "invalid choice: 'speeds'" in refused(chip_hours.main, "--step=speeds")


def test_a_step_is_stopped_when_its_time_is_over(command, tmp_path, monkeypatch):
    slow = [[["bam_jax.generate", "--help"]], [["http.server", "0"]]]
    monkeypatch.setattr(chip_hours, "commands", lambda *a, **k: [command for each in slow for command in each])
    status, said, _ = command(chip_hours.main, "--step=dose", "--minutes=0.2", f"--out={tmp_path}")
    assert status == 75 and "0.2 minutes are over; the same command goes on" in said


@pytest.mark.parametrize("name", ["emergence", "dose"])
@pytest.mark.parametrize("scale", ["toy", "small", "paper"])
def test_whole_seeds_come_first(name, scale):
    made = experiment.load(ROOT / "experiments" / f"{name}.py", scale=scale)
    planned = jobs.jobs(made)
    seeds = [job.seed for job in planned]
    assert seeds == sorted(seeds) and len(planned) == len(made.rows) * len(made.rows[0].seeds)
    for job in planned:
        parts = job.config.data.parts().values()
        assert name == "dose" or {part.task for _, part in parts} == {"packed"}, "no keys are planted"


@pytest.mark.endurance
def test_all_of_it_in_the_tiny_form(tmp_path):
    arguments = [sys.executable, "experiments/chip_hours.py", "--tiny", f"--out={tmp_path}"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {"parity", "speed", "emergence", "dose"} <= {path.name for path in tmp_path.iterdir()}
    written = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    again = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0
    assert len(written) > 10 and written == {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
