"""The search for the learning rates of `fair_retrieval.py`: every method has four tries with two seeds, and a fifth
if the largest of the four is best.

Command:  python experiments/fair_rates.py
Hardware: a CPU; 98 models of 2 layers, some 2 core-hours.
Expected: experiments/fair_rates.json, which the small scale reads. experiments/records/fair_rates has the measurements,
          from which a stopped search resumes on any machine.
"""

import fair_retrieval
import rate_search
import small_scale

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Experiment, Row

SEEDS = (100, 101)
ASKED = (Passkey((fair_retrieval.CONTEXT,), trials=5), Perplexity((fair_retrieval.CONTEXT,), tokens=2**17))
"""The evaluations at the training context that score a try."""
RATES = (1e-3, 3e-3, 1e-2, 3e-2)


def _tries(method: str) -> tuple[rate_search.Rates, ...]:
    """Four rates; a prior that trains has the common rate in one try and 20 times as much in three, around the best known.

    ALiBi that learns its slopes and has SSMax did best with the largest rate of its four, so it has a fifth.
    """
    if not method.startswith("BAM") and "learned" not in method:
        return tuple({"optimizer.rate": rate} for rate in RATES)
    wider = RATES[1:] if "from" in method else RATES if method == "ALiBi learned SSMax" else RATES[:3]
    rates = ((3e-3, 1.0), *((rate, 20.0) for rate in wider))
    return tuple({"optimizer.rate": rate, "optimizer.prior_rate": times} for rate, times in rates)


TRIES = {method: _tries(method) for method in fair_retrieval.METHODS}
ENOUGH = 0.95
"""The accuracy from which perplexity decides."""


def get_experiment() -> Experiment:
    """A row for each method with each of its tries, evaluated at the training context only."""
    make = lambda method, rates: Row(
        method, fair_retrieval.CONFIG, {**fair_retrieval.METHODS[method], **rates}, SEEDS, ASKED
    )
    rows = rate_search.try_rows(TRIES, make)
    return Experiment("Learning rates of retrieval, fairly", tuple(rows), platform="cpu")


if __name__ == "__main__":
    rate_search.main(__file__, small_scale.FAIR_RATES, TRIES, enough=ENOUGH)
