"""Experiment files, and the jobs they make."""

import contextlib
import json
import re
import sys
from pathlib import Path

import pytest

from bam_jax import config, sweep, tables
from bam_jax.config import CONFIGS
from bam_jax.evals.harness import Harness
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments import experiment, jobs
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.experiments.recording import Recorder
from bam_jax.experiments.sweep import Sweep
from bam_jax.system.errors import UserError

CONFIG = str(CONFIGS / "quickstart.py")
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no experiment file"),
        ("x = 1", "defines no get_experiment"),
        ("x =", "is not Python"),
        ("get_experiment = lambda: 1 / 0", "experiment.py fails at line 1: ZeroDivisionError: division by zero; mend"),
        ("get_experiment = lambda: 3", "returned int, not an Experiment"),
    ],
)
def test_what_is_no_experiment_file_is_named(tmp_path, text, message):
    path = tmp_path / "experiment.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message):
        experiment.load(path)


def test_a_file_imports_the_modules_of_its_folder_and_of_no_other(tmp_path):
    text = "import shared_part\nfrom bam_jax.experiments.experiment import Experiment\n"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shared_part.py").write_text(f"title = {name!r}")
        (tmp_path / name / "file.py").write_text(text + "get_experiment = lambda: Experiment(shared_part.title, ())")
        assert experiment.load(tmp_path / name / "file.py").title == name
    assert "shared_part" not in sys.modules and str(tmp_path / "one") not in sys.path


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ("Expected('ALiBo', 64)", "'ALiBo'; did you mean 'ALiBi'"),
        ("Expected('ALiBi', 65)", "at 65 tokens, and measured at 64, 128"),
        ("Expected('BAM', 64)", "'BAM'"),  # whose perplexity is measured alone
        ("Expected('Windowed', 128)", ""),
    ],
)
def test_what_is_expected_is_measured(tmp_path, expected, says):
    path = tmp_path / "experiment.py"
    path.write_text(f"""
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

keys = (Passkey((64, 128)), Passkey((128,), overrides={{"encoding_options.window": 8}}, label="Windowed"))
rows = (Row("ALiBi", {CONFIG!r}, evaluations=keys), Row("BAM", {CONFIG!r}, evaluations=(Perplexity((64,)),)))
get_experiment = lambda: Experiment("Expectations", rows, expected=({expected},))
""")
    with pytest.raises(UserError, match=says) if says else contextlib.nullcontext():
        Sweep.load([str(path)])


def test_an_experiment_about_a_corpus_is_told_where_it_is(tmp_path):
    path = tmp_path / "experiment.py"
    path.write_text(
        "from bam_jax.experiments.experiment import Experiment\n"
        "get_experiment = lambda source, runs: Experiment(f'{source} in {runs}', ())\n"
    )
    assert experiment.load(path, source="corpus", runs=tmp_path / "x").title == f"corpus in {tmp_path / 'x'}"
    with pytest.raises(UserError, match="experiment.py needs --source=PATH"):
        experiment.load(path)


def test_a_job_is_the_commands_a_person_would_type():
    asked = (
        Passkey((64, 128), depths=5, overrides={"encoding_options.window": 64}),
        Ruler((4096,), tasks=("niah_single_1", "niah_multikey_3"), essays="FOLDER"),
        Harness((512,), tasks=("mmlu",), data="FOLDER"),
    )
    (job,) = jobs.jobs(Experiment("t", (Row("BAM SSMax (spread)", CONFIG, {"steps": 3}, (7,), asked),)))
    run = "runs/bam-ssmax-spread-seed7"
    assert job.config.steps == 3 and job.config.seed == 7
    train = f"--config={CONFIG} --config.steps=3 --config.seed=7 --workdir={run}"
    evaluations = (
        "--eval=passkey --lengths=64,128 --depths=5 --trials=1 --patience=0 --config.encoding_options.window=64",
        "--eval=ruler --lengths=4096 --tasks=niah_single_1,niah_multikey_3 --samples=50 --essays=FOLDER",
        "--eval=harness --lengths=512 --tasks=mmlu --questions=100000 --shots=0 --data=FOLDER --longer=cut",
    )
    wanted = [["bam_jax.evaluate", f"--run={run}", *each.split()] for each in evaluations]
    assert job.commands(Path("runs")) == [["bam_jax.train", *train.split()], *wanted]


def test_progress_is_read_from_the_files(tmp_path):
    row = Row("BAM", CONFIG, evaluations=(Passkey((4096,), depths=2),))
    (job,) = jobs.jobs(Experiment("t", (row,)))
    assert job.spent(tmp_path) == 0 and job.status(tmp_path) == "starting"
    (tmp_path / job.name).mkdir()
    line = json.dumps({"step": job.config.steps, "loss": 1.5, "seconds": 9.0})
    (tmp_path / job.name / "metrics.jsonl").write_text(f"{line}\n")
    assert job.status(tmp_path) == f"step {job.config.steps} of {job.config.steps}, loss 1.500"
    before = job.spent(tmp_path)
    cell = {"eval": "passkey", "length": 4096, "n": 1, "value": 1.0, "prompt": "toy", "seed": 0, "unit": "accuracy"}
    cell |= {"step": job.config.steps, "overrides": {}}
    lines = [json.dumps(cell | {"depth": depth}) + "\n" for depth in (0.0, 1.0, 0.0)]  # one of them twice
    (tmp_path / job.name / "results.jsonl").write_text("".join(lines))
    assert job.status(tmp_path) == "passkey at 4096 tokens"
    assert 0 < before < job.spent(tmp_path) == pytest.approx(job.cost())


@pytest.mark.parametrize("form", ["wiki.{}.raw", "wiki.{}.tokens", "{}.txt", "deep/{}-00000-of-00001.parquet"])
def test_wikitext2_is_trained_on_one_part_and_evaluated_on_the_other(tmp_path, form):
    load = lambda: experiment.load(EXPERIMENTS / "wikitext2.py", source=str(tmp_path), runs=Path("runs/x"))
    with pytest.raises(UserError, match="hf download Salesforce/wikitext .*--local-dir"):
        load()
    (tmp_path / "deep").mkdir()
    valid, test = (tmp_path / form.format(name) for name in ("validation" if "parquet" in form else "valid", "test"))
    valid.touch()
    test.touch()
    made = load()
    bpe, *prepared = made.preparations
    assert bpe.makes == "runs/x/data/bpe.json" and f"--source={valid}" in bpe.arguments
    outs = {argument: each for each in prepared for argument in each.arguments if argument.startswith("--out=")}
    planned = jobs.jobs(made)
    assert len(planned) == 8 and len({job.config.encoding for job in planned}) == 4
    for data in (job.config.data for job in planned):
        for out, path in ((data.source, valid), (data.held_out_source, test)):
            assert {f"--source={path}", f"--tokenizer={data.tokenizer}"} <= set(outs[f"--out={out}"].arguments)


def test_the_quickstart_trains_its_main_row_first_with_the_rates_of_its_search_and_other_seeds():
    search, quickstart = (experiment.load(EXPERIMENTS / f"quickstart{name}.py") for name in ("_rates", ""))
    planned = jobs.jobs(quickstart)
    assert [job.seed for job in planned] == [0, 0, 0, 0, 0, 0, 1, 2]  # later seeds find the programs compiled
    assert planned[0].row.label == quickstart.rows[0].label  # the longest
    found = json.loads((EXPERIMENTS / "quickstart_rates.json").read_text())["rates"]
    used = {job.row.label: job.config.optimizer.rate for job in planned}
    assert used == {label: rates["optimizer.rate"] for label, rates in found.items()}
    assert not {job.seed for job in planned} & {seed for row in search.rows for seed in row.seeds}


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


@pytest.mark.full
def test_the_pages_experiment_runs(tmp_path, monkeypatch, command):
    page = (EXPERIMENTS.parent / "docs" / "your_experiment.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    less = {"seeds=(0, 1, 2)": "seeds=(0, 1)", '"encoding": "alibi"': '"encoding": "alibi", "steps": 2, "batch": 2'}
    for text, other in less.items():
        assert text in block
        block = block.replace(text, other)
    (tmp_path / "short_heads.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    assert "4 runs" in command(sweep.main, "short_heads.py", "--dry-run")[1]
    assert not command(sweep.main, "short_heads.py")[0]
    status, said, _ = command(tables.main, "short_heads.py")
    assert not status and said.count("4 of 4 cells measured") == 2 and "| ALiBi, window of 16 |" in said
