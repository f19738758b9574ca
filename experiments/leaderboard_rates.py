"""The search for the learning rates of `leaderboard.py`: every method has four tries.

Command:  python experiments/leaderboard_rates.py
Hardware: a CPU; 184 models of 2 layers, some 4 core-hours.
Expected: experiments/leaderboard_rates.json, which the small scale reads. experiments/records/leaderboard_rates has the
          measurements, from which a stopped search resumes on any machine.
"""

import leaderboard
import rate_search
import small_scale

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Experiment, Row

SEEDS = (100,)
"""The seed of training; the leaderboard has others."""
ASKED = (
    Passkey((leaderboard.CONTEXT,), trials=5, seed=SEEDS[0]),
    Perplexity((leaderboard.CONTEXT,), tokens=2**17),
)
"""The evaluations at the training context that score a try."""
TRIES = dict.fromkeys(leaderboard.METHODS, tuple({"optimizer.rate": rate} for rate in (1e-3, 3e-3, 1e-2, 3e-2)))
"""The tries of each method."""
ENOUGH = 0.95
"""The accuracy from which perplexity decides."""

FLOOR = 0.15
"""An accuracy that shows nothing: a passkey next to the question is found without looking far. It was set after the search and
before any model of the leaderboard was trained; without it, noise at 0.11 would choose the rate of `sinusoidal`, and no other."""


def get_experiment() -> Experiment:
    """A row for each method with each of its tries, evaluated at the training context only."""

    def make(method: str, rates: rate_search.Rates) -> Row:
        asked = ASKED[1:] if method in leaderboard.KEYLESS else ASKED
        return Row(method, leaderboard.CONFIG, {**leaderboard.METHODS[method], **rates}, SEEDS, evaluations=asked)

    rows = rate_search.try_rows(TRIES, make)
    return Experiment("Learning rates of the leaderboard", tuple(rows), platform="cpu")


if __name__ == "__main__":
    rate_search.main(__file__, small_scale.LEADERBOARD_RATES, TRIES, enough=ENOUGH, floor=FLOOR)
