"""The confirmation of a prior's start: its rates and form are the screenings', and the quickstart trains it."""

import re
import runpy
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from bam_jax.experiments import experiment, jobs, tables
from bam_jax.experiments.sweep import Sweep
from bam_jax.models import transformer

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
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
