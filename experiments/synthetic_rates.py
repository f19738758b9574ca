"""The search for the learning rates of `synthetic.py`: every method has three tries on symbols and three on text.

Command:  python experiments/synthetic_rates.py
Hardware: a CPU; 48 models, each about a minute of one core.
Expected: experiments/synthetic_rates.json, which the small scale reads. experiments/records/synthetic_rates has the
          measurements, from which a stopped search resumes on any machine.
"""

import dataclasses

import rate_search
import small_scale
import synthetic
from rate_search import Rates

from bam_jax.config.sections import SYNTHETIC
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.synthetic import Synthetic
from bam_jax.experiments.experiment import Experiment, Row

SEEDS = (100,)
"""The seed of training; verdicts have others."""
ASKED = {
    "symbols": Synthetic((synthetic.CONTEXT,), tasks=tuple(SYNTHETIC)),
    "text": Perplexity((synthetic.CONTEXT,), tokens=2**17),
}
"""The evaluation at the training context that scores a try, by what is learned."""
TRIES = {small_scale.learner(method, kind): small_scale.TRIES for method in synthetic.TRAINED_METHODS for kind in ASKED}
"""The tries of each learner."""


def get_experiment() -> Experiment:
    """A row for each learner with each of its tries, evaluated at the training context only."""
    return Experiment("Learning rates of synthetic tasks", tuple(rate_search.try_rows(TRIES, _row)), platform="cpu")


def _row(learner: str, rates: Rates) -> Row:
    method, _, kind = learner.rpartition(", ")
    return dataclasses.replace(synthetic.make_row(method, kind, SEEDS, rates), evaluations=(ASKED[kind],))


if __name__ == "__main__":
    rate_search.main(__file__, small_scale.SYNTHETIC_RATES, TRIES)
