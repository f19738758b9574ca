"""Records say what the runs' folders say, survive being killed, and are refused where they were changed."""

import dataclasses
import json
import math
import random
import re
import shutil
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

import bam_jax
from bam_jax import config
from bam_jax.config import CONFIGS
from bam_jax.evals import records
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments import jobs, recorded_runs, results, tables
from bam_jax.experiments.experiment import Column, Row, Table, tabled
from bam_jax.experiments.recorded_runs import DROPPED, _text, write_part
from bam_jax.report import tables_page
from bam_jax.system import jsonl
from bam_jax.system.errors import UserError

CONFIG = str(CONFIGS / "quickstart.py")
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


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(folder, job, lines):
    run = folder / job.name
    run.mkdir(parents=True)
    write_lines(run / "results.jsonl", lines)
    write_lines(run / "metrics.jsonl", [{"step": n, "loss": 4.0 - n / 9, "seconds": 3.0 * n} for n in range(1, 11)])
    (run / "config.json").write_text(config.to_json(job.config))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two rows with two seeds each, their folder, and their records; the runs need no checkpoints."""
    monkeypatch.setattr(recorded_runs, "checkpoint", types.SimpleNamespace(restore_model=lambda *run, step: (0, 0, 0)))
    monkeypatch.setattr(recorded_runs, "head_parameters", lambda decoder: HEADS)
    rows = [Row("A", CONFIG, {"steps": 10}, seeds=(0, 1)), Row("B", CONFIG, {"steps": 10, "batch": 2}, seeds=(0, 1))]
    made = tabled("t", rows, [Table("T", COLUMNS, {"A": (), "B": ()})])
    made = dataclasses.replace(made, records=tmp_path / "records" / "small" / "x")
    place = types.SimpleNamespace(made=made, folder=tmp_path / "runs", jobs=jobs.row_jobs(made), records=made.records)
    machine = {"device": "cpu", "processor": "p", "cores": 2, "versions": {"jax": "1"}}
    for job in place.jobs:
        write_run(place.folder, job, measured(job.seed))
        source = {"command": "c", "commit": "abc-dirty", "machine": machine}
        (place.folder / job.name / recorded_runs.SOURCE).write_text(json.dumps(source))
    append(place, *place.jobs)
    return place


def parts(place):
    return sorted(place.records.iterdir())


def append(place, *planned, folder=None, records=None):
    for job in planned:
        recorded_runs.append(records or place.records, (folder or place.folder) / job.name, job.name, job.config)


def csv(made, folder):
    return tables_page.to_csv(made, [tables.compare(table, made, folder) for table in made.tables])


def test_pages_say_where_models_were_trained_from_folders_and_from_records(place):
    said = ["p, 2 cores a model, jax 1: 4 models, of the commits abc-dirty (4)."]
    alone = dataclasses.replace(place.made, records=None)
    for made, folder in ((alone, place.folder), (place.made, Path("nowhere"))):
        (section,) = tables_page.notes_sections(made, folder)
        assert section.title == tables_page.PROVENANCE and section.items == said
    other = place.folder / place.jobs[0].name / recorded_runs.SOURCE
    chip = {"device": "TPU v6e", "processor": "p", "cores": None, "versions": {}}
    other.write_text(json.dumps({"command": "c", "commit": None, "machine": chip}))
    assert results.describe_provenance(results.read_provenance(alone, place.folder).values()) == [
        "TPU v6e, p, jax of no version: 1 model, of the commits no checkout (1).",
        "p, 2 cores a model, jax 1: 3 models, of the commits abc-dirty (3).",
    ]
    other.write_text("{")
    with pytest.raises(UserError, match=r"trained\.json is not JSON"):
        results.read_provenance(alone, place.folder)


def known(cells):
    return [_text(each) for each in cells]


def test_tables_are_the_same_from_folders_from_records_and_from_both(place):
    alone = dataclasses.replace(place.made, records=None)
    expected = csv(alone, place.folder)
    assert "no prompt answered" in expected and expected.count("\n") == 1 + 2 * len(COLUMNS)
    assert csv(place.made, place.folder / "nowhere") == expected == csv(place.made, place.folder)
    assert csv(alone, place.folder / "nowhere") != expected


def test_a_record_has_all_but_the_weights(place):
    for job in place.jobs:
        run = recorded_runs.find(place.records, job.digest)
        cells, stops = records.read_results(place.folder / job.name)
        assert known(run.cells) == known(cells) and known(run.stops) == known(stops)
        assert run.config == job.config and run.name == job.name
        assert run.source["commit"] == "abc-dirty" and run.source["machine"]["cores"] == 2
        assert [(line["step"], line["seconds"]) for line in run.history] == [(n, 3.0 * n) for n in range(1, 11)]
        assert run.heads["shape"].tolist() == [[-1.0, 0.1235]]


def test_what_was_lost_is_added_again_and_nothing_twice(place):
    """As after a kill: a part is there or is not."""
    whole, expected = parts(place), csv(place.made, place.folder / "nowhere")
    append(place, *place.jobs)
    assert parts(place) == whole
    for part in whole[::2]:
        part.unlink()
    (place.records / f".{whole[0].name}.00ff.draft").write_bytes(b"PAR1")
    append(place, *place.jobs)
    assert {*whole[1::2]} < {*parts(place)} and len([*place.records.glob("part-*")]) == 4
    assert csv(place.made, place.folder / "nowhere") == expected


def test_several_sweeps_write_at_once_and_nothing_twice(place):
    for part in parts(place):
        part.unlink()
    todo = [*place.jobs] * 2
    with ThreadPoolExecutor(len(todo)) as pool:  # each opens the lock anew, as processes do
        list(pool.map(lambda job: append(place, job), todo))
    assert len(parts(place)) == 4 == len(recorded_runs.read(place.records))


def test_joined_records_count_each_cell_once_and_more_samples_are_added(place):
    expected = csv(place.made, place.folder / "nowhere")
    for part in parts(place):
        part.with_name("part-0-of-another-machine" + part.name).write_bytes(part.read_bytes())
    assert csv(place.made, place.folder / "nowhere") == expected
    job = place.jobs[0]
    more = cell("passkey", 128, 1.0, depth=1.0, first=3, n=4, prompt="toy", seed=0)
    jsonl.append(place.folder / job.name / "results.jsonl", more)
    before = parts(place)
    append(place, job)
    (added,) = {*parts(place)} - {*before}
    assert pyarrow.parquet.read_metadata(added).num_rows == 1
    assert known([more])[0] in known(recorded_runs.find(place.records, job.digest).cells)


def test_the_folder_wins_then_the_newest_training(place):
    job = place.jobs[0]
    lines = [line | {"value": 20.0} if line["eval"] == "perplexity" else line for line in measured(0)]
    again = place.folder / "again"
    write_run(again, job, lines)
    text = tables.results_reader(again, place.records)(job).cells
    assert [each["value"] for each in text if each["eval"] == "perplexity"] == [20.0]
    write_lines(again / job.name / "metrics.jsonl", [{"step": 10, "loss": 1.0, "seconds": 1.0}])
    append(place, job, folder=again)
    run = recorded_runs.find(place.records, job.digest)
    assert [each["value"] for each in run.cells if each["eval"] == "perplexity"] == [20.0]
    assert run.history[-1]["loss"] == 1.0 and len(run.cells) == 6


MORE = [{}, {"commit": None}, {"task": 3}, {"overrides": {"a.b": [1, {"c": "ü"}]}}, {"own": 2**62}]
CELLS = st.lists(
    st.builds(
        lambda length, value, more, **own: (
            cell("passkey", length, value, **own, prompt="toy", seed=0, config="d") | more
        ),
        length=st.sampled_from([64, 128]),
        value=st.floats(0, 1) | st.sampled_from([0, 1, 1 / 3, 2 / 3]),
        more=st.sampled_from(MORE),
        depth=st.sampled_from([0.0, 0.5, 1.0, 1]),
        n=st.sampled_from([1, 3, 49]),
        first=st.sampled_from([0, 3]),
    ),
    max_size=8,
    unique_by=_text,
)


@hypothesis.settings(max_examples=25, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(CELLS)
def test_cells_are_read_back_bit_for_bit(tmp_path, cells):
    folder = tmp_path / str(len([*tmp_path.iterdir()]))
    folder.mkdir()
    fields, losses = config.to_fields(config.Config()), {"step": [], "loss": [], "seconds": []}
    digest = config.digest(config.Config())
    run = {"run": digest, "name": "r", "config": fields, "source": None, "losses": losses, "heads": {}}
    write_part(folder, [(run, cells)])  # a run without cells is recorded, too
    kept = lambda cells: [json.dumps(c | dict.fromkeys(DROPPED), sort_keys=True) for c in cells]
    assert kept(recorded_runs.find(folder, digest).cells) == kept(cells)


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.full)])
def test_a_changed_byte_is_refused_or_means_nothing(place, count):
    part = parts(place)[0]
    whole, expected = part.read_bytes(), repr(recorded_runs.read(part))
    refused = 0
    for seed in range(count):
        chance = random.Random(seed)
        changed = bytearray(whole)
        changed[chance.randrange(len(whole))] ^= chance.randrange(1, 256)
        part.write_bytes(changed)
        try:
            found = repr(recorded_runs._read_part.__wrapped__(part, 0, 0))
        except UserError as error:
            refused += 1
            assert str(part) in str(error) and "\n" not in str(error)
        else:
            assert found == expected.removeprefix("mappingproxy(")
    assert refused > count / 2


def rewritten(part, change):
    """The part with another table and the metadata that it had."""
    table = pyarrow.parquet.read_table(part)
    written = pyarrow.parquet.read_metadata(part).metadata
    table = change(table).cast(table.schema).replace_schema_metadata(written)
    with pyarrow.parquet.ParquetWriter(part, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(written)


def replaced(table, name, values):
    return table.set_column(table.column_names.index(name), name, pyarrow.array(values))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table.slice(1), "has 1 runs, 6 cells, 1 seeds, .* other than it was written with, 1 runs, 7 cells"),
        (lambda table: table.take([1, 0, 2, 3, 4, 5, 6]), "other than it was written with"),
        (lambda table: replaced(table, "value", [0.25, *table["value"].to_pylist()[1:]]), "other than it was written"),
        (lambda table: replaced(table, "n", [0] * 7), "row 0 has n=0, which must be `int` >= 1"),
        (lambda table: replaced(table, "eval", [None] * 7), "row 0 has no 'eval'"),
        (lambda table: replaced(table, "details", ["["] * 7), "row 0 is not JSON"),
        (lambda table: replaced(table, "name", ["../x"] * 7), "has name='../x', which must be"),
        (lambda table: replaced(table, "name", ["x", *["y"] * 6]), "its rows describe a run in two ways"),
        (lambda table: replaced(table, "run", ["x"] * 7), "run x has the configuration of"),
        (lambda table: replaced(table, "heads", ['{"shape": [[1.0], []]}'] * 7), "several numbers of heads"),
        (lambda table: replaced(table, "losses", ['{"step": [1], "loss": [], "seconds": []}'] * 7), "several lengths"),
        (lambda table: replaced(table, "config", ['{"model.layers": 0}'] * 7), "a configuration that cannot be read"),
    ],
)  # fmt: skip
def test_what_was_changed_is_named(place, change, says, monkeypatch):
    part = parts(place)[0]
    rewritten(part, change)
    if "other than" not in says and "cells" not in says:  # whoever changed it knows the digest
        monkeypatch.setattr(recorded_runs, "_summary", lambda *rows: json.loads(metadata(part)))
    with pytest.raises(UserError, match=says) as raised:
        recorded_runs.read(place.records)
    assert str(raised.value).startswith(str(part)) and "\n" not in str(raised.value)


def metadata(part):
    return pyarrow.parquet.read_metadata(part).metadata[recorded_runs.METADATA]


def test_a_file_that_is_no_part_is_refused(place, monkeypatch):
    monkeypatch.setattr(recorded_runs, "ROWS", 6)
    with pytest.raises(UserError, match="has more than 6 rows"):
        recorded_runs.read(place.records)
    part = parts(place)[0]
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), part)
    with pytest.raises(UserError, match="is not a part of records"):
        recorded_runs.read(place.records)
    part.write_bytes(b"PAR1")
    with pytest.raises(UserError, match="cannot be read"):
        recorded_runs.read(place.records)


def test_folders_and_records_give_the_same_rows(place):
    read, kept = bam_jax.results(f"{place.folder}/*"), bam_jax.results(place.records)
    assert len(read) == len(kept) == sum(len(records.read_results(place.folder / job.name)[0]) for job in place.jobs)
    keys = ["name", "eval", "depth", "task", "cell.first"]
    columns = [name for name in kept if name not in ("path", "cell.peak_bytes", "cell.example", "cell.tokens")]
    both = [each[columns].sort_values(keys).reset_index(drop=True) for each in (read, kept)]
    assert both[0].equals(both[1])
    (row,) = kept[(kept["name"] == place.jobs[1].name) & (kept["eval"] == "perplexity")].to_dict("records")
    assert row["run"] == place.jobs[1].digest and row["value"] == 10.1 + 1 / 3 and row["cell.window"] == 64
    assert math.isnan(row["depth"]) and row["overrides"] == "" and row["path"] == str(place.records)


def test_a_single_part_and_folders_at_any_depth_are_read(place, tmp_path):
    (part, *_) = sorted(place.records.glob(recorded_runs.PARTS))
    assert bam_jax.results(part)["name"].nunique() == 1
    runs, kept = bam_jax.results(f"{place.folder}/*"), bam_jax.results(place.records)
    above, far = tmp_path / "above", tmp_path / "above/small"
    shutil.copytree(place.folder, far / "runs")
    shutil.copytree(place.records, far / "records")
    benchmark = far / "speed" / records.RESULTS  # has no configuration, and is no run
    benchmark.parent.mkdir()
    benchmark.write_text("{}\n")
    (above / "linked").symlink_to(place.folder / place.jobs[0].name)
    found = bam_jax.results(above)
    assert found["path"].str.contains("/records").sum() == len(kept)
    linked = found[found["path"] == str(above / "linked")]
    assert len(linked) == (runs["name"] == place.jobs[0].name).sum() > 0
    assert len(found) == len(runs) + len(kept) + len(linked)
    with pytest.raises(UserError, match="is not there; give folders of runs or of records"):
        bam_jax.results(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no results"):
        bam_jax.results([tmp_path / "empty"])


COMMITTED = sorted({part.parent for part in Path("experiments/records").rglob("*.parquet")})


def test_the_committed_records_are_whole_and_the_page_names_every_run_of_uncommitted_code():
    counted, runs = {}, 0
    for folder in COMMITTED:
        found = recorded_runs.read(folder)
        runs += len(found)
        dirty = sum(run.source["commit"].endswith("-dirty") for run in found.values())
        if dirty:
            counted[folder.name] = dirty, len(found)
    assert runs >= 1613, "no run was lost"
    page = " ".join(Path("docs/experiments.md").read_text().split())
    (said,) = re.findall(r'commit ending in "-dirty" had uncommitted changes: (.*?)\. Four', page)
    found = re.findall(r"(\d+) of (\d+)(?: runs)? of `([\w.]+)`", said)
    assert {name: (int(dirty), int(runs)) for dirty, runs, name in found} == counted
