"""The search for the peak learning rates of the quickstart's methods: each has three tries with two seeds.

Command:  python experiments/quickstart_rates.py
Hardware: a CPU; 36 models, each about a minute of one core.
Expected: experiments/quickstart_rates.json, which experiments/quickstart.py reads. experiments/records/quickstart_rates
          has what was measured: a search that was stopped goes on from there, on any machine.
"""

import functools
import runpy
from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import rate_search
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.experiments.rate_search import label_of
from bam_jax.system import errors

QUICKSTART = runpy.run_path(str(Path(__file__).with_name("quickstart.py")))
CONTEXT, METHODS = QUICKSTART["CONTEXT"], QUICKSTART["METHODS"]
SEEDS = (100, 101)
"""The seeds of training, and so of the prompts; the quickstart uses neither. A single seed may miss a fragile rate."""
TRIES = {label: tuple({"optimizer.rate": rate} for rate in (1e-3, 3e-3, 1e-2)) for label in METHODS}
"""The tries of each method."""


def get_experiment() -> Experiment:
    """Every method with every rate, evaluated at the training context only."""
    evaluations = (Passkey((CONTEXT,), trials=10), Perplexity((CONTEXT,)))
    rows = tuple(
        Row(label_of(label, number), QUICKSTART["CONFIG"], {**METHODS[label], **rates}, SEEDS, evaluations)
        for label, tried in TRIES.items()
        for number, rates in enumerate(tried)
    )
    return Experiment(title="Peak rates of the quickstart's methods", rows=rows)


if __name__ == "__main__":
    errors.run(functools.partial(rate_search.command, Path(__file__), TRIES, QUICKSTART["RATES"]))
