"""The learning rates of the null models that `prior_study.py` has not tried.

Command:  python -m bam_jax.sweep experiments/null_rates.py --records=experiments/records/null_rates
Hardware: a CPU; 16 models of 2 and 4 layers, some 45 core-minutes.
Target:   none; `RATES` of null_models.py has the rate with the lower mean loss at the training context.
"""

import dataclasses

import null_models

from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Experiment

TRIED = (0.003, 0.01)
SEEDS = (100, 101)
"""The training seeds; those of the null models are others."""


def get_experiment() -> Experiment:
    """A row for each null model, depth and rate, with effective SSMax."""
    rows = []
    for layers in null_models.DEPTHS:
        for method in ("frozen ladder", "NAPE"):
            for rate in TRIED:
                made = null_models.row(method, "effective SSMax", layers, rate, SEEDS)
                label, asked = f"{made.label}, rate {rate:g}", (Perplexity((null_models.CONTEXT,)),)
                rows.append(dataclasses.replace(made, label=label, evaluations=asked))
    return Experiment("Rates of the null models", tuple(rows))
