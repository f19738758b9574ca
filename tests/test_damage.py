"""Whatever happened to the files that runs left, what reads them says it in one line or does without."""

import dataclasses
import json
import random
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
from endurance.spoil import spoilt
from hypothesis import strategies as st

from bam_jax import config, render
from bam_jax.config import CONFIGS
from bam_jax.evals.harness import Harness
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments import jobs, results, tables
from bam_jax.experiments.benchmark import Benchmark
from bam_jax.experiments.cells import Measured, TableName
from bam_jax.experiments.comparisons import Better, Bound
from bam_jax.experiments.experiment import Column, Expected, Row, Speed, Table, tabled
from bam_jax.experiments.sweep import Sweep
from bam_jax.report import folder_page, page, paper_page, run_page, tables_page
from bam_jax.report.paper_page import Progress
from bam_jax.system.errors import UserError

CONFIG = str(CONFIGS / "quickstart.py")
SMALL = {"encoding": "rope", "steps": 10}
KEYS = Passkey((64,), depths=2, patience=1)
TEXT = Perplexity((128,))
COLUMNS = (
    Column("keys", KEYS),
    Column("far", dataclasses.replace(KEYS, lengths=(128,))),
    Column("start", KEYS, depth=0.0),
    Column("text", TEXT),
    Column("second", TEXT, position=128),
    Column("needles", Ruler((512,), tasks=("niah_single_1",), samples=2)),
    Column("questions", Harness((64,), tasks=("arc_easy",), questions=4, data="invented"), unit=0.01),
    Column("speed", speed=Speed("inference", 64)),
)


def record(evaluation, length, value, **others):
    common = {"eval": evaluation, "length": length, "depth": None, "value": value, "unit": "u", "first": 0, "n": 1}
    return common | {"step": 10, "overrides": {}, "seconds": 0.5, "commit": "abc", "tokenizer": "t"} | others


RESULTS = [
    *(record("passkey", 64, depth, depth=depth, prompt="toy", seed=0) for depth in (0.0, 1.0)),
    {"eval": "stopped", "of": "passkey", "lengths": [128], "after": [64], "prompt": "toy", "seed": 0}
    | {"step": 10, "overrides": {}},
    record("perplexity", 128, 4.0, n=2, of=3, window=64, windows=[1.0, 2.0]),
    record("perplexity", 128, 4.0, first=2, of=3, window=64, windows=[1.0, 2.0]),
    record("ruler", 512, 0.5, n=2, task="niah_single_1", seed=0, tokens=500.0),
    record("harness", 64, 0.5, n=4, of=4, task="arc_easy", shots=0, data="invented", longer="cut"),
    record("another", 64, 12.5, task="x"),
]
METRICS = [
    {"step": n, "loss": 4.0 - n / 9, "seconds": 3.0 * n, "rate": 0.003, "tokens_per_second": 9} for n in (1, 2, 10)
]
SPEED = {"eval": "speed", "measure": "inference", "length": 64, "unit": "s", "contender": "rope", "n": 9, "ratio": 1.0}
SPEED |= {"value": 0.5, "low": 0.4, "high": 0.6, "commit": None}
SPEED |= {"machine": {"device": "cpu", "processor": "abacus", "cores": 2, "versions": {"jax": "0.1"}}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of a paper's table, which are those of an experiment with a folder of its own as well, and what reads them."""
    path = tmp_path_factory.mktemp("runs")
    row = Row("RoPE", CONFIG, SMALL)
    benchmark = Benchmark("speed", "benchmarks.speed", (), (("inference", 64),), 1.0)
    made = tabled("A paper", [row], [Table("Table 1", COLUMNS, {"RoPE": ()})], benchmarks=(benchmark,))
    (job,) = jobs.row_jobs(made)
    own = dataclasses.replace(made, shared=False, expected=(Expected("RoPE", 64, 0.5),), notes=("A note.",))
    described = Sweep((own,), ("x.py",), path).describe()
    described["runs"][0]["name"] = job.name
    lines = lambda each: "".join(json.dumps(one) + "\n" for one in each)
    files = {
        path / job.name / "results.jsonl": lines(RESULTS),
        path / job.name / "metrics.jsonl": lines(METRICS),
        path / benchmark.name / "results.jsonl": lines([SPEED | {"config": config.digest(job.config)}] * 2),
        path / "experiment.json": json.dumps(described, indent=2) + "\n",
    }
    for file, text in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    (path / job.name / "config.json").write_text(config.to_json(job.config))
    return SimpleNamespace(path=path, made=made, job=job, benchmark=benchmark, files=files)


def everything(place):
    """What reads the files, each alone."""
    made, path = place.made, place.path

    def paper():
        entries = tuple(tables.compare(made.tables[0], made, path))
        each = Progress(Path("x.py"), made, (place.job,), (entries,))
        run = results.read_run(path / place.job.name)
        table = tables_page.to_csv(made, each.entries)
        parts = paper_page.page_sections(each, {run.name: run}, str, path, [])
        return page.to_html("t", [*tables_page.tables_sections(made, each.entries, path), *parts]), table, each.status

    def one():
        run = results.read_run(path / place.job.name, commands=["x"])
        return page.to_html("t", run_page.page_sections(run, run.config, path / run.name, None, [], "x"))

    def several():
        described, found = results.read_sweep(path)
        parts = folder_page.page_sections(described, found, path, {})
        return page.to_html(described["title"], parts), page.to_markdown(described["title"], parts)

    def said():
        measured = Measured(path, "toy", path)
        measured.load = lambda name, scale: made
        cells = {"table": TableName("x", "Table 1"), "columns": ["keys", "text"], "rows": ["RoPE"]}
        return [check.criteria(measured) for check in (Bound(**cells, least=0.5), Better(**cells, than=["RoPE"]))]

    progress = [lambda each=each: (each.status(path), each.spent(path)) for each in (place.job, place.benchmark)]
    return [paper, one, several, said, *progress]


def read_damaged(place, chance):
    """Each reader succeeds after one of the files was damaged, or ends in one line."""
    file = chance.choice(sorted(place.files))
    file.write_bytes(spoilt(place.files[file].encode(), chance))
    try:
        for read in everything(place):
            try:
                read()
            except UserError as error:
                assert "\n" not in str(error) and len(str(error)) < 1000
    finally:
        file.write_text(place.files[file])


@pytest.fixture(scope="module")
def undrawn(place):
    """Figures take too long to be drawn each time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("passkey", "perplexity", "positions", "losses", "grids"):
            patch.setattr(render, name, lambda *arguments, **options: None)
        yield place


def test_all_of_it_is_read_where_nothing_is_damaged(undrawn):
    for read in everything(undrawn):
        assert read()
    entries = tables.compare(undrawn.made.tables[0], undrawn.made, undrawn.path)
    assert [bool(entry.ours) for entry in entries] == [entry.column.label != "far" for entry in entries]


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.full)])
def test_damaged_files_are_one_line_or_none(undrawn, count):
    @hypothesis.settings(max_examples=count)
    @hypothesis.given(st.integers(0, 2**32))
    def holds(seed):
        read_damaged(undrawn, random.Random(seed))

    holds()


@pytest.mark.full
def test_damaged_files_that_can_be_read_can_be_drawn(place):
    for seed in range(100):
        read_damaged(place, random.Random(seed))
