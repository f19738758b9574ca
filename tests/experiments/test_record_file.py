"""A file of records says what the runs' folders say, survives being killed, and believes no stranger."""

import dataclasses
import json
import math
import re
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bam_jax import config
from bam_jax.evals import records
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments import experiment, jobs, origins, papers, record_file, results, tables
from bam_jax.experiments.experiment import Column, Row, Table, tabled
from bam_jax.experiments.record_lines import DROPPED, kept_text, key_of, pack, unpack
from bam_jax.report import tables_page
from bam_jax.report.run_priors import find_priors
from bam_jax.system import jsonl
from bam_jax.system.errors import UserError

CONFIG = str(papers.CONFIGS / "quickstart.py")
KEPT = Path("tests/before/sweep")
PASSKEY = Passkey((128,), depths=2, trials=3, patience=1)
COLUMNS = (
    Column("keys", PASSKEY),
    Column("at the end", PASSKEY, depth=1.0),
    Column("far", dataclasses.replace(PASSKEY, lengths=(256,))),
    Column("text", Perplexity((256,))),
    Column("second window", Perplexity((256,)), position=128),
    Column("needles", Ruler((256,), tasks=("niah_single_1", "niah_single_2"), samples=2)),
)
HEADS = {"shape": np.array([[-1.0, 0.123456]]), "log_scale": np.zeros((1, 2)), "loc": np.zeros((1, 2))}


def cell(evaluation, length, value, **others):
    record = {"eval": evaluation, "length": length, "depth": None, "value": value, "n": 3, "step": 10, "overrides": {}}
    return record | {"unit": "u", "seconds": 0.25, "config": "x", "commit": "abc", "tokenizer": "t"} | others


def measured(seed):
    """Lines of a run, the passkeys of which are asked in two parts; longer ones are given up."""
    prompts = {"prompt": "toy", "seed": 0}
    yield from (cell("passkey", 128, right / 3, depth=depth, **prompts) for depth, right in ((0.0, seed), (1.0, 0)))
    yield cell("passkey", 128, 0.5, depth=0.0, first=3, n=2, peak_bytes=9, **prompts)
    yield cell("perplexity", 256, 10.1 + seed / 3, windows=[2.5, 2.123456, 1.0, 1.5], window=64, of=3)
    for task in ("niah_single_1", "niah_single_2"):
        yield cell("ruler", 256, 0.123 + seed / 2, n=2, task=task, seed=0, example={"written": task})
    stop = {"eval": records.STOPPED, "of": "passkey", "lengths": [256, 512], "after": [128], "step": 10}
    yield stop | prompts | {"overrides": {}, "commit": None}


def write_run(folder, job, lines):
    run = folder / job.name
    run.mkdir(parents=True)
    (run / "results.jsonl").write_text("".join(jsonl.line(line) + "\n" for line in lines))
    steps = [{"step": n, "loss": 4.0 - n / 9, "seconds": 3.0 * n} for n in range(1, 11)]
    (run / "metrics.jsonl").write_text("".join(jsonl.line(line) + "\n" for line in steps))
    (run / "config.json").write_text(config.to_json(job.config))


@pytest.fixture
def without_weights(monkeypatch):
    """Runs need no checkpoints."""
    monkeypatch.setattr(record_file, "checkpoint", types.SimpleNamespace(restore_model=lambda *run, step: (0, 0, 0)))
    monkeypatch.setattr(record_file, "head_parameters", lambda decoder: HEADS)


@pytest.fixture
def place(without_weights, tmp_path):
    """Two rows with two seeds each, their folder, and their file of records."""
    rows = [Row("A", CONFIG, {"steps": 10}, seeds=(0, 1)), Row("B", CONFIG, {"steps": 10, "batch": 2}, seeds=(0, 1))]
    made = tabled("t", rows, [Table("T", COLUMNS, {"A": (), "B": ()})])
    made = dataclasses.replace(made, records=tmp_path / "records" / "small" / "x.jsonl")
    folder = tmp_path / "runs"
    planned = jobs.row_jobs(made)
    for job in planned:
        write_run(folder, job, measured(job.seed))
        source = {"command": "c", "commit": "abc-dirty", "machine": {"device": "cpu", "processor": "p", "cores": 2}}
        source["machine"]["versions"] = {"jax": "1"}
        (folder / job.name / record_file.SOURCE).write_text(json.dumps(source))
        record_file.append(made.records, folder / job.name, job.name, job.config)
    return types.SimpleNamespace(made=made, folder=folder, jobs=planned, file=made.records)


def csv(made, folder):
    return tables_page.to_csv(made, [tables.compare(table, made, folder) for table in made.tables])


def test_pages_say_where_models_were_trained_from_folders_and_from_records(place):
    said = ["p, 2 cores a model, jax 1: 4 models, of the commits abc-dirty (4)."]
    for made, folder in ((dataclasses.replace(place.made, records=None), place.folder), (place.made, Path("nowhere"))):
        assert origins.describe(origins.read_sources(made, folder).values()) == said
        (section,) = tables_page.notes_sections(made, folder)
        assert section.title == origins.TITLE and section.items == said
    other = place.folder / place.jobs[0].name / record_file.SOURCE
    chip = {"device": "TPU v6e", "processor": "p", "cores": None, "versions": {}}
    other.write_text(json.dumps({"command": "c", "commit": None, "machine": chip}))
    alone = dataclasses.replace(place.made, records=None)
    assert origins.describe(origins.read_sources(alone, place.folder).values()) == [
        "TPU v6e, p, jax of no version: 1 model, of the commits no checkout (1).",
        "p, 2 cores a model, jax 1: 3 models, of the commits abc-dirty (3).",
    ]
    other.write_text("{")
    with pytest.raises(UserError, match=r"trained\.json is not JSON"):
        origins.read_sources(alone, place.folder)


def known(cells):
    return [kept_text(each) for each in cells]


def test_tables_are_the_same_from_folders_from_records_and_from_both(place):
    alone = dataclasses.replace(place.made, records=None)
    expected = csv(alone, place.folder)
    assert "no prompt answered" in expected and expected.count("\n") == 1 + 2 * len(COLUMNS)
    assert csv(place.made, place.folder / "nowhere") == expected == csv(place.made, place.folder)
    assert csv(alone, place.folder / "nowhere") != expected


def test_a_record_has_all_but_the_weights(place):
    for job in place.jobs:
        run = record_file.find(place.file, job.digest)
        cells, stops = records.read_results(place.folder / job.name)
        assert known(run.cells) == known(cells) and known(run.stops) == known(stops)
        assert run.config == job.config and run.name == job.name
        assert run.source["commit"] == "abc-dirty" and run.source["machine"]["cores"] == 2
        assert [(line["step"], line["seconds"]) for line in run.history] == [(n, 3.0 * n) for n in range(1, 11)]
        assert run.heads["shape"].tolist() == [[-1.0, 0.1235]]
    lines = place.file.read_text().splitlines()
    assert sum("model.layers" in line for line in lines) == 1 and sum('"processor"' in line for line in lines) == 1


def test_the_kept_runs_are_recorded_with_their_priors(tmp_path):
    """They are of an earlier version, which left nothing of its machine."""
    made = experiment.load("tests/before/experiment.py")
    (job,) = [job for job in jobs.row_jobs(made) if job.row.label == "BAM SSMax"]
    file = tmp_path / "x.jsonl"
    record_file.append(file, KEPT / job.name, job.name, job.config)
    recorded = record_file.find(file, job.digest)
    run = results.read_run(tmp_path / job.name, recorded=recorded)
    assert known(run.cells) == known(results.read_run(KEPT / job.name).cells) and recorded.source is None
    assert run.config == job.config and run.metrics["step"] == 300 and {*run.heads} >= {"shape", "ssmax"}
    ours, theirs = find_priors([run], tmp_path)[run.name], find_priors([results.read_run(KEPT / job.name)], KEPT)
    for mine, weights in zip(ours, theirs[job.name], strict=True):
        assert np.allclose(mine, weights, atol=5e-5)


def test_killed_anywhere_and_done_again_it_comes_to_the_same(place):
    whole = place.file.read_bytes()
    expected = csv(place.made, place.folder / "nowhere")
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for stop in [0, *ends[::5], *(end - 9 for end in ends[1::5])]:
        place.file.write_bytes(whole[:stop])
        for job in place.jobs:
            record_file.append(place.file, place.folder / job.name, job.name, job.config)
        assert place.file.read_bytes().startswith(whole[: max([0, *(end for end in ends if end <= stop)])])
        assert sorted(place.file.read_text().splitlines()) == sorted(whole.decode().splitlines())
    assert csv(place.made, place.folder / "nowhere") == expected


def test_several_sweeps_write_at_once_and_nothing_twice(place):
    whole = place.file.read_text()
    place.file.unlink()
    todo = [*place.jobs] * 2
    with ThreadPoolExecutor(len(todo)) as pool:  # each opens the lock anew, as processes do
        list(pool.map(lambda job: record_file.append(place.file, place.folder / job.name, job.name, job.config), todo))
    lines = place.file.read_text().splitlines()
    assert len({*lines}) == len(lines) == len(whole.splitlines())
    assert len(record_file.read(place.file)) == 4


def test_joined_files_count_each_cell_once_and_more_samples_are_added(place):
    expected = csv(place.made, place.folder / "nowhere")
    place.file.write_text(place.file.read_text() * 2)
    assert csv(place.made, place.folder / "nowhere") == expected
    job = place.jobs[0]
    more = cell("passkey", 128, 1.0, depth=1.0, first=3, n=4, prompt="toy", seed=0)
    jsonl.append(place.folder / job.name / "results.jsonl", more)
    before = len(place.file.read_text().splitlines())
    record_file.append(place.file, place.folder / job.name, job.name, job.config)
    assert len(place.file.read_text().splitlines()) == before + 2, "another depth alone, and its cell"
    assert known([more])[0] in known(record_file.find(place.file, job.digest).cells)


def test_the_folder_wins_then_the_newest_training(place):
    job = place.jobs[0]
    lines = [line | {"value": 20.0} if line["eval"] == "perplexity" else line for line in measured(0)]
    again = place.folder / "again"
    write_run(again, job, lines)
    text = tables.results_reader(again, place.file)(job).cells
    assert [each["value"] for each in text if each["eval"] == "perplexity"] == [20.0]
    (again / job.name / "metrics.jsonl").write_text(jsonl.line({"step": 10, "loss": 1.0, "seconds": 1.0}) + "\n")
    record_file.append(place.file, again / job.name, job.name, job.config)
    run = record_file.find(place.file, job.digest)
    assert [each["value"] for each in run.cells if each["eval"] == "perplexity"] == [20.0]
    assert run.history[-1]["loss"] == 1.0 and len(run.cells) == 6


def test_a_field_that_a_later_version_adds_has_its_default(place):
    lines = [json.loads(line) for line in place.file.read_text().splitlines()]
    for line in lines:
        del line["crc32"]
        if "fields" in line:
            line["fields"].pop("logger", None)
    place.file.write_text("".join(jsonl.line(line) + "\n" for line in lines))
    assert {*record_file.read(place.file)} == {job.digest for job in place.jobs}


VALUES = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 1 / 3, 2 / 3])
CELLS = st.lists(
    st.builds(
        lambda length, value, depth, n, first, seconds: cell(
            "passkey", length, value, depth=depth, n=n, first=first, seconds=seconds, prompt="toy", seed=0, config="d"
        ),
        st.sampled_from([64, 128]),
        VALUES,
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from([1, 3, 49]),
        st.sampled_from([0, 3]),
        st.sampled_from([0.5, 1.5]),
    ),
    max_size=8,
    unique_by=lambda each: (each["length"], each["depth"], each["first"]),
)


@hypothesis.settings(max_examples=25)
@hypothesis.given(CELLS)
def test_what_is_packed_is_unpacked_bit_for_bit(cells):
    packed = json.loads(json.dumps([*pack(cells)]))
    found = [each for header, line in packed for each in unpack({"cells": "", **line}, header, "d", "x")]
    assert sorted(known(found)) == sorted(known(cells))
    assert math.isclose(sum(each["seconds"] for each in found), sum(each["seconds"] for each in cells), abs_tol=0.01)
    assert all({*each} == {*cells[0]} - {*DROPPED} | {"config"} for each in found)


def change(line, path, value):
    *above, last = path
    for name in above:
        line = line[name]
    line[last] = value


@pytest.mark.parametrize(
    ("kind", "path", "value", "says"),
    [
        ('"right":[', ["each", "right"], [1], "has other lists than"),
        ('"right":[', ["each", "right"], [9, 0], "has value=3.0, which must be from 0 to 1"),
        ('"right":[', ["each", "right"], ["1", 0], "has right='1', which must be a whole number"),
        ('"right":[', ["each"], [], "has each=[], which must be an object"),
        ('"right":[', ["n"], 0, "has n=0, which must be from 1 to"),
        ('"right":[', ["cells"], "00000000", "refers to 00000000, which no line above it has"),
        ('"right":[', ["run"], "x", "has run='x', which must be eight hex digits"),
        ('"right":[', ["step"], 3, "has 'step' twice"),
        ('"name":', ["name"], "../x", "which must be the name of a folder"),
        ('"name":', ["changes"], {"model.layers": 0}, "has a configuration that cannot be read (config.model.layers=0"),
        ('"name":', ["changes"], {"model.lay": 1}, "has a configuration that cannot be read"),
        ('"name":', ["losses", "step"], [1], "which must be lists of one length"),
        ('"name":', ["losses", "more"], 3, ""),
        ('"name":', ["heads", "shape"], [[1.0], []], "which must be lists of one length"),
        ('"name":', ["heads", "shape"], [[1e999]], "is not finite"),
        ('"name":', ["source"], "00000000", "refers to 00000000"),
        ('"fields":', ["fields"], [], "has fields=[], which must be an object"),
    ],
)
def test_a_line_that_says_something_impossible_is_named(place, kind, path, value, says):
    texts = place.file.read_text().splitlines()
    number = max(number for number, text in enumerate(texts) if kind in text)
    lines = [*map(json.loads, texts)]
    for line in lines:
        del line["crc32"]
    change(lines[number], path, value)
    place.file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not says:
        assert len(record_file.read(place.file)) == 4
        return
    with pytest.raises(UserError) as raised:
        record_file.read(place.file)
    said = str(raised.value)
    assert says in said and said.startswith(f"{place.file}, line {number + 1} ") and "\n" not in said


def test_a_torn_last_line_and_an_empty_file_are_said(place, capsys):
    whole = place.file.read_text()
    assert len(record_file.read(place.file)) == 4 and not capsys.readouterr().err
    place.file.write_text(whole[:-9])
    record_file.read(place.file)
    assert capsys.readouterr().err == (
        f"{place.file}: its last line is not whole and is left out; put it back from a copy, or sweep again\n"
    )
    place.file.write_text("")
    assert not record_file.read(place.file) and capsys.readouterr().err == f"{place.file} holds no runs\n"


def test_a_changed_line_is_noticed(place):
    place.file.write_text(place.file.read_text().replace('"n":3', '"n":4', 1))
    with pytest.raises(UserError, match="was changed after it was written"):
        record_file.read(place.file)


@pytest.mark.parametrize("path", sorted(Path("experiments/records").rglob("*.jsonl")), ids=lambda path: path.stem)
def test_the_repositorys_own_files_are_as_they_were_written(path):
    lines = [*jsonl.read(path)]
    assert lines
    for line in lines:  # a key says what its line holds, by which a later machine knows what is there
        name = next(name for name in ("cells", "key", "run") if name in line)
        if name != "cells":
            assert line.pop(name) == key_of(line)


def test_the_page_names_every_run_of_uncommitted_code():
    root = Path(__file__).parents[2]
    counted = {}
    for path in sorted((root / "experiments" / "records").rglob("*.jsonl")):
        commits = [run.source["commit"] for run in record_file.read(path).values()]
        dirty = sum(commit.endswith("-dirty") for commit in commits)
        if dirty:
            counted[path.name] = dirty, len(commits)
    page = " ".join((root / "docs" / "experiments.md").read_text().split())
    (said,) = re.findall(r'Commits that end with "-dirty" name code that no commit holds: (.*?)\. -', page)
    found = re.findall(r"(\d+) of the (\d+)(?: runs)? of `([\w.]+)`", said)
    assert {name: (int(dirty), int(runs)) for dirty, runs, name in found} == counted
