"""The same commands read the files of an earlier version (`tests/before/README.md`)."""

import contextlib
import csv
import json
import shlex
import shutil
from pathlib import Path

import pytest

import bam_jax.report.__main__ as report
from bam_jax import config, evaluate, heads, sweep, tables, train
from bam_jax.data import inspect, prepare

ROOT = Path(__file__).parents[1]
BEFORE = Path("tests/before")
PREPARED = BEFORE / "prepared"
STOPPED = BEFORE / "stopped"
SWEEP = BEFORE / "sweep"
BAM, ALIBI = SWEEP / "bam-ssmax-seed0", SWEEP / "alibi-seed0"
SMALL = (
    "--config=configs/quickstart.py",
    "--config.model.layers=1",
    "--config.model.width=16",
    "--config.model.heads=2",
    "--config.model.hidden=32",
    "--config.context=32",
    "--config.batch=4",
    "--config.data.source=tests/before/prepared",
)
STOPPED_TRAINING = (
    *SMALL,
    "--config.data.task=packed",
    "--config.steps=12",
    "--config.optimizer.warmup=4",
    "--config.log_every=2",
    "--config.checkpoint_every=4",
    "--workdir=tests/before/stopped",
)
LOSSES = {8: 4.53794, 10: 4.487895, 12: 4.159656}
"""Losses by step of the same training where nothing stops it."""


@pytest.fixture(autouse=True)
def copy(tmp_path):
    """The current folder: a copy of what the files' relative paths name."""
    shutil.copytree(ROOT / BEFORE, tmp_path / BEFORE)
    (tmp_path / "configs").mkdir()
    shutil.copy(ROOT / BEFORE / "quickstart.py", tmp_path / "configs")
    with contextlib.chdir(tmp_path):
        yield


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def commands(run, module):
    """The arguments of a run's commands, as the sweep's description of it gives them."""
    (entry,) = [
        each for each in json.loads((SWEEP / "experiment.json").read_text())["runs"] if each["name"] == run.name
    ]
    found = [shlex.split(command)[2:] for command in entry["commands"]]
    return [arguments for name, *arguments in found if name == module]


def whole(folder):
    """The bytes of every file of a folder, but for locks."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(".lock")]
    return {path.as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize("run", [BAM, ALIBI])
def test_what_is_measured_is_not_measured_again(run, capsys):
    before = whole(run)
    evaluations = commands(run, "bam_jax.evaluate")
    for arguments in evaluations:
        evaluate.main(arguments)
    assert len(evaluations) == {BAM: 2, ALIBI: 3}[run]
    assert whole(run) == before
    said = capsys.readouterr().out.splitlines()
    expected = {
        BAM: ["0.000 (4 prompts)", "0.000 (4 prompts)", "10.213 (16 sequences)", "10.143 (8 sequences)"],
        ALIBI: [
            "0.000 (4 prompts)",
            "0.000 (4 prompts)",
            "12.748 (16 sequences)",
            "12.759 (8 sequences)",
            "12.765 (16 sequences)",
            "12.779 (8 sequences)",
        ],
    }
    assert [line.split(": ")[-1] for line in said] == expected[run]


def measured_again(run):
    """The records of a run, and those of the same evaluations done again from its checkpoint."""
    results = run / "results.jsonl"
    kept = read(results)
    results.unlink()
    for arguments in commands(run, "bam_jax.evaluate"):
        evaluate.main(arguments)
    again = read(results)
    changing = {"seconds", "peak_bytes", "commit", "crc32", "data_hash"}  # the last is younger than the records
    numbers = {"value", "windows", "digits"}
    for old, new in zip(kept, again, strict=True):
        old["overrides"], new["overrides"] = (config.typed(record["overrides"]) for record in (old, new))  # once texts
        assert {name: old[name] for name in old.keys() - changing - numbers} == {
            name: new[name] for name in new.keys() - changing - numbers
        }
        for name in numbers & old.keys():
            assert new[name] == pytest.approx(old[name], rel=1e-3), name


def test_a_checkpoint_holds_the_model_that_was_measured():
    measured_again(BAM)


@pytest.mark.full
def test_another_model_and_its_changes_at_evaluation_as_well():
    measured_again(ALIBI)


def test_a_finished_training_is_left_alone(capsys):
    before = whole(BAM)
    train.main(*commands(BAM, "bam_jax.train"))
    assert whole(BAM) == before
    assert capsys.readouterr().out.startswith(f"{BAM}: nothing to do, finished at step 300: loss ")


def test_a_stopped_training_goes_on(capsys):
    kept = (STOPPED / "metrics.jsonl").read_text()
    train.main(STOPPED_TRAINING)
    assert capsys.readouterr().out == f"{STOPPED}: finished at step 12: loss 4.16\n"
    assert (STOPPED / "metrics.jsonl").read_text().startswith(kept)
    records = read(STOPPED / "metrics.jsonl")
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
    assert [record["tokens"] for record in records] == [record["step"] * 128 for record in records]
    assert {record["step"]: record["loss"] for record in records[3:]} == pytest.approx(LOSSES, rel=1e-4)


def test_a_prepared_folder_is_whole_and_shown(capsys):
    before = whole(PREPARED)
    prepare.main([f"--out={PREPARED}", "--verify"])
    recipe = [f"--source={BEFORE / 'text'}", "--tokenizer=char", "--holdout-tokens=2000", "--workers=0"]
    prepare.main([*recipe, f"--out={PREPARED}"])
    inspect.main([str(PREPARED), "--no-plot", "--rows=1", "--config.context=32"])
    assert whole(PREPARED) == before
    said = capsys.readouterr().out
    assert "every byte of every shard is as it was written" in said
    assert "is complete already: train 5,609 tokens in 26 documents, 1 shards; held_out 2,031 tokens" in said
    assert "tokenizer char: 73 ids, hash f2bad368ca941aaf" in said
    counts = [line.split() for line in said.splitlines() if line.startswith(("train  ", "held_out  "))]
    assert [line[:4] for line in counts] == [["train", "26", "5,609", "1"], ["held_out", "10", "2,031", "1"]]


def test_a_prepared_folder_made_again_has_the_same_text():
    """The shards' bytes are not compared: array_record decides on them."""
    recipe = [f"--source={BEFORE / 'text'}", "--tokenizer=char", "--holdout-tokens=2000", "--workers=0", "--out=new"]
    prepare.main(recipe)
    for name in ("train.lengths", "held_out.lengths"):
        assert Path("new", name).read_bytes() == (PREPARED / name).read_bytes()
    old, new = [json.loads((folder / "manifest.json").read_text()) for folder in (PREPARED, Path("new"))]
    assert {name: old[name] for name in ("recipe", "tokenizer", "counts")} == {
        name: new[name] for name in ("recipe", "tokenizer", "counts")
    }


@pytest.mark.full  # ten seconds, most of them for figures
def test_the_report_of_a_sweep_shows_what_was_measured(capsys):
    report.main([str(SWEEP)])
    assert capsys.readouterr().out.startswith(f"wrote {SWEEP / 'report.html'}")
    text = (SWEEP / "report.md").read_text()
    for line in (
        "# What a sweep left behind",
        "2 models, 14 measurements",
        "| BAM SSMax at 1× | NO | at least 0.9 | 0.00 1 seed | 0.00 |",
        "| BAM SSMax | 10.21 1 seed | 10.14 1 seed |",
        "| ALiBi | 12.75 1 seed | 12.76 1 seed |",
        "| ALiBi, factor 2 | 12.77 1 seed | 12.78 1 seed |",
        "| 0, 0 | -2.03 | -0.14 | 0.20 |",
        "| 0, 0 | retrieval | -2.03 | -0.14 | 0.00 | 0.92 | 17 29 31 |",
        "| BAM SSMax | 0 | bam | on | 0.003 | 1× | 300 of 300 | 2.490 | 4 |",
    ):
        assert line in text


def test_heads_are_what_they_were(capsys):
    kept = read(BAM / "heads.jsonl")
    heads.main([f"--run={BAM}"])
    for old, new in zip(kept, read(BAM / "heads.jsonl"), strict=True):
        assert old.keys() | {"tokenizer"} == new.keys()
        for name in ("layer", "head", "shape", "log_scale", "loc", "class", "scale", "step", "config", "positions"):
            assert new[name] == old[name]
        assert new["kl_content"] == pytest.approx(old["kl_content"], abs=1e-3)
    assert "0, 0  retrieval  -2.03      -0.14  0.00   0.92" in capsys.readouterr().out


@pytest.mark.full
def test_a_sweep_finds_its_rows_done():
    """The jobs are named as they were, and do nothing."""
    before = {run: whole(run) for run in (BAM, ALIBI)}
    for run in before:
        sweep.main([str(BEFORE / "experiment.py"), f"--runs={SWEEP}", f"--only={run.name}"])
    assert {run: whole(run) for run in before} == before


def test_a_table_finds_its_comparison(capsys):
    """Digests of the rows' configurations name its folder and its records."""
    tables.main([str(BEFORE / "table.py"), f"--runs={BEFORE / 'table'}", "--out=made"])
    with Path("made/table-toy.csv").open(newline="") as file:
        assert [(row["row"], row["ours"]) for row in csv.DictReader(file)] == [
            ("BAM SSMax", "115.936"),
            ("ALiBi", "98.992"),
        ]
