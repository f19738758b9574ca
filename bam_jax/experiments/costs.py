"""The cost of runs: operations, and hours on a chip."""

from collections.abc import Iterable, Sequence

import numpy as np

from bam_jax.config import Config
from bam_jax.evals.base import Evaluation
from bam_jax.experiments.jobs import Job, with_later
from bam_jax.models.counts import CHIPS, UTILISATION, multiplied_parameters, parameters, training_operations
from bam_jax.system import console
from bam_jax.system.errors import UserError, nearest


def evaluating(config: Config, evaluations: Iterable[Evaluation]) -> float:
    """Floating-point operations of evaluations, per token: 2 N, plus 2 layers width length for attention with a causal mask.

    An encoder's attention, over all pairs, takes twice as many. For questions this is an upper bound: each is counted with its
    largest length, read once for each of four answers.
    """
    total, each = 0.0, multiplied_parameters(config, parameters(config))
    for evaluation in evaluations:
        for length in evaluation.lengths:
            tokens = length * evaluation.texts(length)
            pairs = 2 * config.model.layers * config.model.width * length * (1 if config.model.causal else 2)
            total += tokens * (2 * each + pairs)
    return total


def hours(operations: float, chip: str, utilisation: float = UTILISATION) -> float:
    """The hours that floating-point operations take on a chip of `CHIPS`, at a share of its peak.

    >>> round(hours(9.1e18, "h100"), 1)
    6.4
    """
    if chip not in CHIPS:
        raise UserError(f"--chip={chip} is unknown; {nearest(chip, CHIPS)}")
    if not 0 < utilisation <= 1:
        raise UserError(f"--utilisation={utilisation} must be above 0 and at most 1")
    return operations / (CHIPS[chip] * utilisation) / 3600


def table(
    title: str, jobs: Sequence[Job], chip: str, utilisation: float = UTILISATION, *, left: Sequence[Job] | None = None
) -> str:
    """The costs of experiments as a table: a line for each run, one for all, and one for `left`, the runs not in the records."""
    costs: dict[str, np.ndarray] = {}
    for run in with_later(jobs):
        tokens = run.config.steps * run.config.sequences * run.config.context
        operations = training_operations(run.config), evaluating(run.config, run.row.evaluations)
        costs[run.name] = np.array([tokens, *operations], float)
    total = lambda jobs: sum((costs[run.name] for run in with_later(jobs)), np.zeros(3))
    named = [*costs.items(), ("all", total(jobs))]
    if left is not None:
        named.append(("not in the records", total(left)))
    lines = [["run", "tokens", "FLOP training", "FLOP evaluating", "hours"]]
    for name, (read, training, evaluation) in named:
        took = hours(training + evaluation, chip, utilisation)
        lines.append([name, f"{read:.2e}", f"{training:.2e}", f"{evaluation:.2e}", f"{took:.2f}"])
    head = f"{title}: {len(costs)} runs; hours on one {chip} at {utilisation:.0%} of its peak, an estimate"
    return "\n".join([head, *console.columns(lines)])
