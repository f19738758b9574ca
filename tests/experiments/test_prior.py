"""The rates of the confirmation are those that the screening's records say."""

import runpy
from pathlib import Path

import numpy as np

from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import jobs, tables
from bam_jax.experiments.sweep import Sweep

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CONFIRMATION = runpy.run_path(str(EXPERIMENTS / "prior_confirmation.py"))
STUDY = runpy.run_path(str(EXPERIMENTS / "prior_study.py"))
SLOPES = runpy.run_path(str(EXPERIMENTS / "prior_slopes.py"))
LABELS = {CONFIRMATION["OURS"]: "ladder, effective"}


def test_each_method_has_the_better_rate_of_the_screening(tmp_path):
    records = str(EXPERIMENTS / "records" / "prior_study.jsonl")
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


def test_the_screenings_have_other_seeds_than_the_confirmation():
    assert not {*STUDY["SEEDS"], *SLOPES["SEEDS"]} & {*CONFIRMATION["SEEDS"]["small"]}


def test_what_is_confirmed_was_screened():
    ours = CONFIRMATION["METHODS"][CONFIRMATION["OURS"]]
    screened = SLOPES["STARTS"]["positions, 9 nats, location"]
    assert {name: ours[name] for name in screened} == screened and ours["ssmax"] == "effective"
    assert all(SLOPES["RATES"][n] == CONFIRMATION["RATES"][n][CONFIRMATION["OURS"]] for n in CONFIRMATION["RATES"])
