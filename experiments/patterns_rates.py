"""The search for the learning rates of `patterns.py`: every method has three tries.

Of tries that find nearly all keys the one with the lowest perplexity is best: one key in a hundred shall not choose perplexities,
which claims compare by a hundredth.

Command:  python experiments/patterns_rates.py
Hardware: a CPU; 54 models of four layers, each some two minutes of one core.
Expected: experiments/patterns_rates.json, which the small scale reads. experiments/records/patterns_rates has what was
          measured: a search that was stopped goes on from there, on any machine.
"""

import dataclasses
import functools
import runpy
from collections.abc import Sequence
from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import rate_search, small
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.experiments.rate_search import Rates, label_of
from bam_jax.system import errors

PATTERNS = runpy.run_path(str(Path(__file__).with_name("patterns.py")))
SEEDS = (100, 101)
"""The seeds of training; verdicts have others. One seed may miss a fragile rate, since keys are found or not by seed."""
ASKED = (
    Passkey((PATTERNS["CONTEXT"],), trials=5, seed=SEEDS[0]),
    Perplexity((PATTERNS["CONTEXT"],), tokens=2**17),
)
"""The evaluations at the training context, by which the best try is told."""
TRIES: dict[str, Sequence[Rates]] = {
    method: small.PRIOR_TRIES if "BAM" in method else small.TRIES for method in PATTERNS["METHODS"]
}
"""The tries of each method."""
ENOUGH = 0.95
"""The accuracy from which perplexity decides."""


def get_experiment() -> Experiment:
    """A row for each method with each of its tries, evaluated at the training context only."""
    rows = [_row(method, number) for method, tried in TRIES.items() for number in range(len(tried))]
    return Experiment("Learning rates of patterns of layers", tuple(rows), platform="cpu")


def _row(method: str, number: int) -> Row:
    made: Row = PATTERNS["make_row"](method, SEEDS, TRIES[method][number])
    return dataclasses.replace(made, label=label_of(method, number), evaluations=ASKED)


if __name__ == "__main__":
    errors.run(functools.partial(rate_search.command, Path(__file__), TRIES, small.PATTERN_RATES, enough=ENOUGH))
