"""The search for the learning rates of `patterns.py`: every method has three tries.

Of the tries that find nearly all keys, the one with the lowest perplexity is best: one key in a hundred should not decide
perplexities, which claims compare to a hundredth.

Command:  python experiments/patterns_rates.py
Hardware: a CPU; 54 models of four layers, each about two minutes of one core.
Expected: experiments/patterns_rates.json, which the small scale reads. experiments/records/patterns_rates has the
          measurements, from which a stopped search resumes on any machine.
"""

import patterns
import rate_search
import small_scale

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Experiment

SEEDS = (100, 101)
"""The seeds of training; verdicts have others. One seed may miss a fragile rate, since keys are found or not by seed."""
ASKED = (Passkey((patterns.CONTEXT,), trials=5, seed=SEEDS[0]), Perplexity((patterns.CONTEXT,), tokens=2**17))
"""The evaluations at the training context that score a try."""
TRIES = {method: small_scale.PRIOR_TRIES if "BAM" in method else small_scale.TRIES for method in patterns.METHODS}
"""The tries of each method."""
ENOUGH = 0.95
"""The accuracy from which perplexity decides."""


def get_experiment() -> Experiment:
    """A row for each method with each of its tries, evaluated at the training context only."""
    make = lambda method, rates: patterns.make_row(method, SEEDS, rates)
    rows = rate_search.try_rows(TRIES, make, evaluations=ASKED)
    return Experiment("Learning rates of patterns of layers", tuple(rows), platform="cpu")


if __name__ == "__main__":
    rate_search.main(__file__, small_scale.PATTERN_RATES, TRIES, enough=ENOUGH)
