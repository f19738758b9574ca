"""Runs that rows share, and runs that start from others."""

from pathlib import Path

import pytest

from bam_jax import config
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments import jobs
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.experiments.recording import Recorder
from bam_jax.system.errors import UserError

CONFIG = str(config.CONFIGS / "quickstart.py")
NEAR, FAR = Passkey((64,)), Passkey((4096,))


def test_rows_of_one_configuration_are_one_run_with_the_evaluations_of_both():
    other_prompts = Passkey((64,), seed=1)
    rows = (
        Row("a", CONFIG, {"ssmax": "effective"}, evaluations=(NEAR,)),
        Row("b", CONFIG, evaluations=(FAR, NEAR, other_prompts)),  # the file says ssmax=effective itself
        Row("c", CONFIG, {"ssmax": "off"}),
    )
    one, other = jobs.jobs(Experiment("t", rows, shared=True))
    assert one.row.evaluations == (Passkey((64, 4096)), other_prompts)
    assert one.name.startswith("bam-ssmax-2x64-64-seed0-") and other.name.startswith("bam-2x64-64-seed0-")
    assert len(jobs.jobs(Experiment("t", rows))) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_that_starts_from_another_is_done_after_it_in_one_process(shared):
    rows = (
        Row("longer", CONFIG, {"context": 128, "steps": 7}, (0, 1), (FAR,), start="base"),
        Row("base", CONFIG, {}, (0, 1), (NEAR,)),
    )
    made = jobs.jobs(Experiment("t", rows, shared=shared))
    assert sorted(job.seed for job in made) == [0, 1] and {job.row.label for job in made} == {"base"}
    for job in made:
        (after,) = job.then
        commands = job.commands(Path("r"))
        assert [command[0] for command in commands] == ["bam_jax.train", "bam_jax.evaluate"] * 2
        assert f"--workdir=r/{job.name}" in commands[0] and f"--config.start=r/{job.name}" in commands[2]
        assert f"--workdir=r/{after.name}" in commands[2] and f"--run=r/{after.name}" in commands[3]
        assert f"--config.seed={job.seed}" in commands[2] and after.name != job.name
        assert after.config.start == job.name, "the folder of the runs does not change their digests"
        assert job.cost() > jobs.jobs(Experiment("t", (rows[1],)))[0].cost()


def test_a_job_does_what_its_commands_say(tmp_path, monkeypatch):
    """A job trains the configuration that its printed command reads; its evaluations may fetch what the rows name."""
    address = "memory://nowhere/corpus"
    asked = Passkey((64,), depths=2, overrides={"encoding_options.window": 32})
    rows = (
        Row("longer", CONFIG, {"context": 128, "steps": 7, "data.source": address}, evaluations=(asked,), start="base"),
        Row("base", CONFIG, {"encoding": "rope", "encoding_options": {"base": 5e5}}),
    )
    trained, evaluated = [], []
    monkeypatch.setattr(jobs.loop, "train", lambda config, run: (run.mkdir(), trained.append((config, run))))
    monkeypatch.setattr(jobs.measuring, "evaluate", lambda *given, **options: evaluated.append((given, options)) or [])
    (job,) = jobs.jobs(Experiment("t", rows, shared=True))
    Recorder(None, "").work(job, tmp_path)
    commands = [command for command in job.commands(tmp_path) if command[0] == "bam_jax.train"]
    for (made, run), (_, file, *changes, workdir) in zip(trained, commands, strict=True):
        assert made == config.load(file.removeprefix("--config="), config.from_arguments(changes))
        assert workdir == f"--workdir={run}"
    assert trained[1][0].start == str(trained[0][1])
    (((_, evaluation), options),) = evaluated
    assert list(options["allow"]) == [address] and evaluation == asked


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((Row("a", CONFIG, start="b"),), "'a' starts from 'b', which must be a row"),
        ((Row("a", CONFIG, start="a"),), "'a' starts from 'a', which must be a row that starts from none"),
        ((Row("a", CONFIG, start="b"), Row("b", CONFIG, train=False)), "starts from 'b', which is not trained"),
        ((Row("BAM", CONFIG), Row("bam!", CONFIG)), "two rows would be written to bam-seed0"),
        ((Row("BAM", CONFIG, {"stepz": 1}),), "stepz"),
    ],
)
def test_a_wrong_row_is_found_before_anything_runs(rows, message):
    with pytest.raises(UserError, match=message):
        jobs.jobs(Experiment("t", rows))
