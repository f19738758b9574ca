"""The search for the peak learning rates of the quickstart's methods: each has three tries with two seeds.

Command:  python experiments/quickstart_rates.py
Hardware: a CPU; 36 models, each about a minute of one core.
Expected: experiments/quickstart_rates.json, which experiments/quickstart.py reads. experiments/records/quickstart_rates
          has the measurements, from which a stopped search resumes on any machine.
"""

import quickstart
import rate_search
import small_scale

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Experiment, Row

SEEDS = (100, 101)
"""The seeds of training, and so of the prompts; the quickstart uses neither. A single seed may miss a fragile rate."""
TRIES = dict.fromkeys(quickstart.METHODS, small_scale.TRIES)
"""The tries of each method."""


def get_experiment() -> Experiment:
    """Every method with every rate, evaluated at the training context only."""
    evaluations = (Passkey((quickstart.CONTEXT,), trials=10), Perplexity((quickstart.CONTEXT,)))
    make = lambda label, rates: Row(label, quickstart.CONFIG, {**quickstart.METHODS[label], **rates})
    rows = rate_search.try_rows(TRIES, make, seeds=SEEDS, evaluations=evaluations)
    return Experiment("Peak rates of the quickstart's methods", tuple(rows))


if __name__ == "__main__":
    rate_search.main(__file__, quickstart.RATES, TRIES)
