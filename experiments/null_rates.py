"""The search for the learning rates of `null_models.py`: every method has four tries at each depth, with two seeds.

Command:  python experiments/null_rates.py
Hardware: a CPU; 96 models of 2 and 4 layers, some 3 core-hours.
Expected: experiments/null_rates.json, which the small scale reads. experiments/records/null_rates has the measurements,
          from which a stopped search resumes on any machine.
"""

import dataclasses

import null_models
import rate_search
import small_scale

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Experiment, Row

SEEDS = (100, 101)
"""The seeds of training; the null models have others."""
ASKED = (Passkey((null_models.CONTEXT,), trials=5), Perplexity((null_models.CONTEXT,), tokens=null_models.TOKENS))
"""The evaluations at the training context that score a try."""
RATES = {2: (3e-3, 1e-2, 3e-2, 1e-3), 4: (1e-3, 3e-3, 1e-2, 3e-2)}
"""The tries at each depth. The fourth came after the others, so that no method's best rate is at an edge."""
METHODS = {
    f"{method}, {layers} layers": (method, layers)
    for layers in null_models.DEPTHS
    for method in null_models.METHODS | null_models.BASELINES
}
TRIES = {name: tuple({"optimizer.rate": rate} for rate in RATES[layers]) for name, (_, layers) in METHODS.items()}
ENOUGH = 0.95
"""The accuracy from which perplexity decides."""


def get_experiment() -> Experiment:
    """A row for each method, depth and try, with effective SSMax."""

    def make(name: str, rates: rate_search.Rates) -> Row:
        method, layers = METHODS[name]
        made = null_models.row(method, null_models.EFFECTIVE, layers, dict(rates), SEEDS)
        return dataclasses.replace(made, evaluations=ASKED)

    return Experiment("Learning rates of the null models", tuple(rate_search.try_rows(TRIES, make)), platform="cpu")


if __name__ == "__main__":
    rate_search.main(__file__, small_scale.NULL_RATES, TRIES, enough=ENOUGH)
