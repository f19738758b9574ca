"""The confirmation of a prior's start: its rates and form are the screenings', and the quickstart trains it."""

import runpy
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import experiment, jobs, tables
from bam_jax.experiments.sweep import Sweep
from bam_jax.models import transformer

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CONFIRMATION = runpy.run_path(str(EXPERIMENTS / "prior_confirmation.py"))
STUDY = runpy.run_path(str(EXPERIMENTS / "prior_study.py"))
SLOPES = runpy.run_path(str(EXPERIMENTS / "prior_slopes.py"))
PATTERNS = runpy.run_path(str(EXPERIMENTS / "prior_patterns.py"))
SHAPES = runpy.run_path(str(EXPERIMENTS / "prior_shapes.py"))
OURS = CONFIRMATION["OURS"]
LABELS = {OURS: "ladder, effective"}


def test_each_method_has_the_better_rate_of_the_screening(tmp_path):
    records = str(EXPERIMENTS / "records" / "prior_study")
    sweep = Sweep.load([str(EXPERIMENTS / "prior_study.py")], runs=tmp_path, records=records)
    (made,) = sweep.experiments
    read = tables.results_reader(sweep.folder, made.records)
    losses = {}
    for job in jobs.row_jobs(made):
        cells = [cell for cell in read(job).cells if cell["eval"] == Perplexity.name]
        (at_context,) = [cell["value"] for cell in cells if cell["length"] == CONFIRMATION["CONTEXT"]]
        losses.setdefault(job.row.label, []).append(np.log(at_context))
    assert {len(seeds) for seeds in losses.values()} == {len(STUDY["SEEDS"])}
    for layers, rates in CONFIRMATION["RATES"].items():
        for method, rate in rates.items():
            label, at = LABELS.get(method, method), f", {layers} layers"
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
    assert [
        int(row.split("|")[2])
        for row in page.splitlines()
        if "| 0.93 to 1.00 |" in row or row.startswith(("| 5 to 7", "| 8 to 10", "| 11, "))
    ] == counts
