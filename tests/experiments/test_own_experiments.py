"""The experiments that no paper has, their searches for rates, and what the committed records hold of all."""

import importlib
import json
import os
import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import leaderboard
import leaderboard_rates
import near_heads
import numpy as np
import pytest
import rate_search
import small_scale
from flax import nnx

from bam_jax import biases
from bam_jax.config import CONFIGS
from bam_jax.config.sections import SYNTHETIC
from bam_jax.encodings import ENCODINGS
from bam_jax.encodings.base import Dims
from bam_jax.evals.synthetic import Synthetic
from bam_jax.experiments import experiment, jobs, runner, tables
from bam_jax.experiments.cells import Printed, TableName
from bam_jax.experiments.sweep import Sweep
from bam_jax.models import transformer
from bam_jax.system.errors import UserError
from bam_jax.training.loop import DECODER_TASKS

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize(
    "name", ["patterns", "synthetic", "leaderboard", "null_models", "near_heads", "fair_retrieval"]
)
def test_no_paper_has_them(name):
    with pytest.raises(UserError, match=f"{name}.py compares is no paper's; give --scale=toy or --scale=small"):
        experiment.load(EXPERIMENTS / f"{name}.py", scale="paper")
    cell = Printed(Path("nowhere"), "paper", EXPERIMENTS).seed_values(TableName("patterns", "Keys found"), "RoPE", "1×")
    assert cell.values == {}


def test_every_pattern_is_trained_and_asked_alike():
    trained = jobs.jobs(experiment.load(EXPERIMENTS / "patterns.py"))
    assert len({job.name for job in trained}) == len(trained) == 9
    assert all(job.name.isascii() and "/" not in job.name for job in trained)
    grown = {job.row.label for job in trained if any(each.overrides for each in job.row.evaluations)}
    assert grown == {"RNoPE", "RNoPE, gated"}, "iRoPE's rows are models of these, asked twice"
    assert len({tuple(each for each in job.row.evaluations if not each.overrides) for job in trained}) == 1
    for job in trained:
        made = nnx.eval_shape(lambda job=job: transformer.build(job.config, vocab=64, rngs=nnx.Rngs(0)))
        assert sum(stack.attention.query.kernel.shape[0] for stack in made.stacks()) == job.config.model.layers == 4


def test_the_small_scale_has_the_rates_of_its_search(tmp_path, monkeypatch):
    search = experiment.load(EXPERIMENTS / "synthetic_rates.py")
    learners = {row.label.rpartition(", try ")[0] for row in search.rows}
    assert len(search.rows) == 3 * len(learners) and all(row.seeds == (100,) for row in search.rows)
    rates = {learner: {"optimizer.rate": 1e-4 * n} for n, learner in enumerate(sorted(learners), start=1)}
    monkeypatch.setattr(small_scale, "SYNTHETIC_RATES", tmp_path / "synthetic_rates.json")
    with pytest.raises(UserError, match="after python experiments/synthetic_rates.py"):
        experiment.load(EXPERIMENTS / "synthetic.py", scale="small")
    small_scale.SYNTHETIC_RATES.write_text(json.dumps({"rates": rates}))
    for row in experiment.load(EXPERIMENTS / "synthetic.py", scale="small").rows:
        learner = row.label.replace("RoPE Local", "RoPE")
        assert row.overrides["optimizer.rate"] == rates[learner]["optimizer.rate"] and len(row.seeds) == 8


def test_every_method_learns_all_tasks_and_text_and_is_asked_for_them():
    made = experiment.load(EXPERIMENTS / "synthetic.py")
    assert {table.group for table in made.tables} == {"symbols", "text"}
    methods = {label for table in made.tables for label in table.values}
    trained = jobs.jobs(made)
    assert len(trained) == 2 * len(methods - {"RoPE Local"})  # a window at evaluation alone makes no run of its own
    for job in trained:
        tasks = {part.task for _, part in job.config.data.parts().values()}
        assert tasks <= {*DECODER_TASKS}
        for evaluation in job.row.evaluations:
            assert isinstance(evaluation, Synthetic) == (tasks == {*SYNTHETIC})
            if isinstance(evaluation, Synthetic):
                assert {*evaluation.tasks} == tasks and min(evaluation.lengths) == job.config.context


def test_the_leaderboard_has_every_encoding_and_the_factors_of_those_that_are_stretched():
    made = experiment.load(EXPERIMENTS / "leaderboard.py")
    planned = {job.row.label: job for job in jobs.jobs(made)}
    assert {*ENCODINGS} < {*planned} == {row.label for row in made.rows}
    stretched = {}
    for label, job in planned.items():
        for each in job.row.evaluations:
            if each.overrides:
                stretched.setdefault(label, set()).add((each.lengths, *each.overrides.values()))
    assert {*stretched} == {label for label in ENCODINGS if label.startswith("rope_")} | {"alibi"}
    assert all(found == {((256,), 4.0), ((1024,), 16.0), ((4096,), 64.0)} for found in stretched.values())


def test_the_null_models_differ_in_one_part_each():
    made = experiment.load(EXPERIMENTS / "null_models.py")
    planned = {job.row.label: job.config for job in jobs.row_jobs(made)}
    tables = {}
    for name in ("ladder", "frozen ladder", "NAPE"):
        config = planned[f"{name}, effective SSMax, 2 layers"]
        encoding = transformer.build(config, vocab=64, rngs=nnx.Rngs(0)).layers.attention.encoding
        trained = {path[-1] for path, _ in nnx.to_flat_state(nnx.state(encoding, nnx.Param))}
        assert (name == "frozen ladder") <= trained.isdisjoint({"shape", "log_scale", "loc"})
        tables[name] = biases.table(first_layer(encoding).bias(), *[jnp.arange(8.0)[None, None]] * 2)[0]
    np.testing.assert_array_equal(tables["ladder"], tables["frozen ladder"])
    np.testing.assert_allclose(tables["ladder"][1:], tables["NAPE"][:3], atol=1e-4)  # near heads, in another order
    assert not tables["NAPE"][3].any()


@pytest.mark.parametrize(("heads", "kept"), [("near", [1, 2, 3]), ("far", [0])])
def test_heads_at_their_start_have_no_gradient(heads, kept):
    made = near_heads.AtStart(Dims(4, 64, 64), heads=heads, near_decay=9.0, rngs=nnx.Rngs(0))
    made.shape[...] += 1.0  # as a trained model's
    apart = [h for h in range(4) if h not in kept]
    shape = np.asarray(made.bias().shape)
    np.testing.assert_array_equal(shape[kept], np.asarray(near_heads.far_and_near(made.dims, 9.0)[0])[kept])
    np.testing.assert_array_equal(shape[apart], np.asarray(made.shape[...])[apart])
    score = lambda made: biases.table(made.bias(), *[jnp.arange(8.0)[None, None]] * 2).sum()
    gradient = nnx.grad(score)(made)
    assert not any(np.asarray(x)[kept].any() for x in jax.tree.leaves(gradient))
    assert np.asarray(gradient.shape[...])[apart].all()


def first_layer(encoding):
    graph, state = nnx.split(encoding)
    return nnx.merge(graph, jax.tree.map(lambda x: x[0], state))


def test_missing_and_damaged_rates_name_their_search(tmp_path):
    file = tmp_path / "small_rates.json"
    with pytest.raises(UserError, match="after python experiments/small_rates.py"):
        small_scale.chosen_rates("ALiBi", file)
    with pytest.raises(UserError, match="has no rates of 'Mine, text'"):
        small_scale.chosen_rates("Mine, text", small_scale.RATES)
    for damaged in ("{", "{}", "[]"):
        file.write_text(damaged)
        with pytest.raises(UserError, match="is not what python experiments/.* writes .*; put it back"):
            small_scale.chosen_rates("ALiBi", file)


PAPERS = [path.stem for pattern in ("bam_*.py", "cable_*.py") for path in sorted(EXPERIMENTS.glob(pattern))]
ENCODERS = ["cable_figure6_mlm", "cable_figure7_contrastive", "cable_table3_retrieval"]
RATES = ["small_rates", "encoder_rates", "patterns_rates", "quickstart_rates", "null_rates", "fair_rates"]
STUDIES = ["prior_study", "prior_slopes", "prior_patterns", "prior_shapes"]


@pytest.mark.parametrize(
    ("names", "scale", "runs"),
    [
        *((name, None, count) for name, count in zip(RATES, (150, 30, 54, 36, 96, 98), strict=True)),
        *((name, None, count) for name, count in zip(STUDIES, (80, 56, 28, 67), strict=True)),
        ("prior_confirmation", "small", 160),
        pytest.param(ENCODERS, "small", 120, marks=pytest.mark.full),
        # In the order of the page's command: of two experiments that ask one run, the earlier's row has the job's changes.
        pytest.param([name for name in PAPERS if name not in ENCODERS], "small", 504, marks=pytest.mark.full),
    ],
)
def test_the_committed_records_hold_all_that_experiments_ask(tmp_path, names, scale, runs):
    """A change of a configuration, seed or evaluation after the runs shows here."""
    files = [names] if isinstance(names, str) else names
    records = None if scale else str(EXPERIMENTS / "records" / names)
    paths = [str(EXPERIMENTS / f"{name}.py") for name in files]
    asked = Sweep.load(paths, runs=tmp_path, scale=scale, records=records)
    assert len(asked.rows) == runs and asked.find_unrecorded() == asked.benchmarks


CONFIRMATION = runpy.run_path(str(EXPERIMENTS / "prior_confirmation.py"))
OURS = CONFIRMATION["OURS"]


def test_each_method_has_the_better_rate_of_the_screening(tmp_path):
    records = str(EXPERIMENTS / "records" / "prior_study")
    sweep = Sweep.load([str(EXPERIMENTS / "prior_study.py")], runs=tmp_path, records=records)
    (made,) = sweep.experiments
    read = tables.results_reader(sweep.folder, made.records)
    losses = {}
    for job in jobs.row_jobs(made):
        (cell,) = (x for x in read(job).cells if (x["eval"], x["length"]) == ("perplexity", CONFIRMATION["CONTEXT"]))
        losses.setdefault(job.row.label, []).append(np.log(cell["value"]))
    for layers, rates in CONFIRMATION["RATES"].items():
        for method, rate in rates.items():
            label, at = "ladder, effective" if method == OURS else method, f", {layers} layers"
            tried = {0.003: losses[f"{label}{at}"], 0.01: losses[f"{label}, rate 0.01{at}"]}
            assert rate == min(tried, key=lambda each: np.mean(tried[each])), (method, layers, tried)


def test_the_quickstart_starts_as_what_is_confirmed():
    rows = {
        "quickstart": runpy.run_path(str(EXPERIMENTS / "quickstart.py"))["MAIN"],
        "prior_confirmation": f"{OURS}, 2 layers",
    }
    started = []
    for name, label in rows.items():
        made = experiment.load(EXPERIMENTS / f"{name}.py")
        config = next(job.config for job in jobs.row_jobs(made) if job.row.label == label)
        model = transformer.build(config, vocab=8, rngs=nnx.Rngs(0))
        started.append((config.ssmax, config.optimizer, transformer.split(model)[1]))
    assert started[0][:2] == started[1][:2]
    jax.tree.map(np.testing.assert_array_equal, started[0][2], started[1][2])


def test_the_figure_of_reach_is_what_the_records_give(tmp_path, capsys):
    run = runpy.run_path(str(EXPERIMENTS / "prior_reach.py"))
    run["main"]([f"--out={tmp_path / 'reach.svg'}"])
    committed = EXPERIMENTS.parent / "docs" / "figures" / "prior-reach.svg"
    assert (tmp_path / "reach.svg").read_bytes() == committed.read_bytes(), "draw it again"
    page = (EXPERIMENTS.parent / "docs" / "prior_study.md").read_text()
    reaches = [int(line.split()[0]) for line in capsys.readouterr().out.splitlines()[1:-2]]
    counts = [sum(low <= reach <= high for reach in reaches) for low, high in ((2, 4), (5, 7), (8, 10), (11, 64))]
    rows = re.findall(r"^(?:.*\| 0\.93 to 1\.00 |\| (?:5 to 7|8 to 10|11, )).*$", page, re.MULTILINE)
    assert [int(row.split("|")[2]) for row in rows] == counts


@pytest.fixture
def margins(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return importlib.import_module("quickstart_margins")


def test_claimed_rows_have_fresh_seeds_where_the_quickstart_claims_something(margins):
    made, quickstart = margins.get_experiment(), {row.label: row for row in margins.QUICKSTART.rows}
    claims = {(claim.label, claim.length) for claim in margins.QUICKSTART.expected}
    measured = {(row.label, length) for row in made.rows for each in row.evaluations for length in each.lengths}
    assert measured == claims
    for row in made.rows:
        assert len(row.seeds) == len(set(row.seeds)) == margins.SETS * len(quickstart[row.label].seeds)
        assert min(row.seeds) >= margins.APART and row.overrides == quickstart[row.label].overrides


def test_the_pages_table_comes_from_the_records_and_nothing_is_measured_again(margins, monkeypatch, capsys):
    monkeypatch.setattr(margins.Sweep, "run", None)
    margins.main(["--runs=nowhere"])
    assert capsys.readouterr().out in (CONFIGS.parent / "docs" / "quickstart.md").read_text()


FILE = """
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.config import CONFIGS

def get_experiment():
    rows = [Row(f"a, keys, try {k}", str(CONFIGS / "quickstart.py"), {"optimizer.rate": r}, (100, 101), (Passkey((64,)),))
            for k, r in enumerate((0.1, 0.2))]
    return Experiment("t", tuple(rows))
"""
TRIES = {"a, keys": ({"optimizer.rate": 0.1}, {"optimizer.rate": 0.2})}


def test_the_worst_seed_counts(tmp_path, monkeypatch):
    path = tmp_path / "search.py"
    path.write_text(FILE)
    accuracies = iter([1.0, 0.2, 0.9, 0.8])
    for job in jobs.row_jobs(experiment.load(path)):
        common = {"length": 64, "n": 1, "step": 3000, "overrides": {}}
        keys = {"eval": "passkey", "depth": 0.0, "prompt": "toy", "seed": 100, "unit": "accuracy"}
        text = {"eval": "perplexity", "window": 64, "windows": [1.0], "unit": "perplexity", "value": 5.0}
        (tmp_path / job.name).mkdir()
        lines = [common | keys | {"value": next(accuracies)}, common | text]
        (tmp_path / job.name / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr(runner, "run", lambda *arguments: [])
    result = rate_search.search(path, TRIES, tmp_path, tmp_path / "out.json")
    assert result["rates"] == {"a, keys": {"optimizer.rate": 0.2}}
    assert [each["accuracy"] for each in result["found"]["a, keys"]] == [0.2, 0.8]
    assert json.loads((tmp_path / "out.json").read_text()) == result
    monkeypatch.setattr(runner, "run", lambda *arguments: ["failed"])
    with pytest.raises(UserError, match="the search is not complete"):
        rate_search.search(path, TRIES, tmp_path, tmp_path / "out.json")


def test_perplexity_decides_between_equal_accuracies_and_where_no_keys_are_planted():
    assert rate_search.best([{"accuracy": 0.5, "perplexity": 3.0}, {"accuracy": 0.5, "perplexity": 2.0}]) == 1
    assert rate_search.best([{"perplexity": 2.0}, {"perplexity": 2.0}, {"perplexity": 3.0}]) == 0
    assert rate_search.best([{"loss": 2.0}, {"loss": 1.0}]) == 1
    tries = [{"accuracy": a, "perplexity": p} for a, p in ((1.0, 3.0), (0.96, 2.0), (0.94, 1.0))]
    assert rate_search.best(tries) == 0 and rate_search.best(tries, enough=0.95) == 1
    nothing = [{"accuracy": 0.11, "perplexity": 3.0}, {"accuracy": 0.05, "perplexity": 2.0}]
    assert rate_search.best(nothing) == 0 and rate_search.best(nothing, floor=0.15) == 1


def test_rates_of_the_leaderboard_are_the_best_that_were_found():
    made = json.loads(small_scale.LEADERBOARD_RATES.read_text())
    assert made["found"].keys() == made["rates"].keys() == leaderboard.METHODS.keys()
    for method, found in made["found"].items():
        best = rate_search.best(found, leaderboard_rates.ENOUGH, leaderboard_rates.FLOOR)
        assert made["rates"][method] == {"optimizer.rate": found[best]["optimizer.rate"]}
        assert ("accuracy" in found[best]) is (method not in leaderboard.KEYLESS)
