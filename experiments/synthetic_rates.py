"""The search for the learning rates of `synthetic.py`: every method has three tries on symbols and three on text.

Command:  python experiments/synthetic_rates.py
Hardware: a CPU; 48 models, each about a minute of one core.
Expected: experiments/synthetic_rates.json, which the small scale reads. experiments/records/synthetic_rates has what was
          measured: a search that was stopped goes on from there, on any machine.
"""

import dataclasses
import functools
import runpy
from collections.abc import Sequence
from pathlib import Path

from bam_jax.config.sections import SYNTHETIC
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.synthetic import Synthetic
from bam_jax.experiments import rate_search, small
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.experiments.rate_search import Rates, label_of
from bam_jax.system import errors

WHERE = Path(__file__).with_name("synthetic.py")
TASKS = runpy.run_path(str(WHERE))
SEEDS = (100,)
"""The seed of training; verdicts have others."""
ASKED = {
    "symbols": Synthetic((TASKS["CONTEXT"],), tasks=tuple(SYNTHETIC)),
    "text": Perplexity((TASKS["CONTEXT"],), tokens=2**17),
}
"""The evaluation at the training context that tells the best try, by what is learned."""
TRIES: dict[str, Sequence[Rates]] = {
    small.learner(method, kind): small.TRIES for method in TASKS["TRAINED_METHODS"] for kind in ASKED
}
"""The tries of each learner."""


def get_experiment() -> Experiment:
    """A row for each learner with each of its tries, evaluated at the training context only."""
    rows = [_row(learner, number) for learner, tried in TRIES.items() for number in range(len(tried))]
    return Experiment("Learning rates of synthetic tasks", tuple(rows), platform="cpu")


def _row(learner: str, number: int) -> Row:
    method, _, kind = learner.rpartition(", ")
    made: Row = TASKS["make_row"](method, kind, SEEDS, TRIES[learner][number])
    return dataclasses.replace(made, label=label_of(learner, number), evaluations=(ASKED[kind],))


if __name__ == "__main__":
    errors.run(functools.partial(rate_search.command, Path(__file__), TRIES, small.SYNTHETIC_RATES))
