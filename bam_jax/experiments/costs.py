"""The costs of runs before they are made: operations, and hours on a chip."""

from collections.abc import Iterable, Sequence

from bam_jax.config import Config
from bam_jax.evals.base import Evaluation
from bam_jax.experiments.jobs import Job
from bam_jax.models.counts import CHIPS, UTILISATION, multiplied_parameters, parameters, training_operations
from bam_jax.system.errors import UserError, nearest


def evaluating(config: Config, evaluations: Iterable[Evaluation]) -> float:
    """Floating-point operations of evaluations: 2 N a token, and attention's 2 layers width length under a causal mask.

    An encoder's attention, over all pairs, takes twice as many.

    Questions are counted as long as they may be, read once for each of four answers: at most so many operations.

    Args:
        config: the run's.
        evaluations: each of them with all its lengths.
    """
    total, each = 0.0, multiplied_parameters(config, parameters(config))
    for evaluation in evaluations:
        for length in evaluation.lengths:
            tokens = length * evaluation.texts(length)
            pairs = 2 * config.model.layers * config.model.width * length * (1 if config.model.causal else 2)
            total += tokens * (2 * each + pairs)
    return total


def hours(operations: float, chip: str, utilisation: float = UTILISATION) -> float:
    """The hours that so many operations take.

    >>> round(hours(9.1e18, "h100"), 1)
    6.4

    Args:
        operations: floating-point ones.
        chip: a name in `CHIPS`.
        utilisation: share of its peak that is reached, 0 to 1.

    Raises:
        UserError: an unknown chip, or a share out of range.
    """
    if chip not in CHIPS:
        raise UserError(f"--chip={chip} is unknown; {nearest(chip, CHIPS)}")
    if not 0 < utilisation <= 1:
        raise UserError(f"--utilisation={utilisation} must be above 0 and at most 1")
    return operations / (CHIPS[chip] * utilisation) / 3600


def table(
    title: str, jobs: Sequence[Job], chip: str, utilisation: float = UTILISATION, *, left: Sequence[Job] | None = None
) -> str:
    """The costs of experiments in columns, a line for each run and one for all of them.

    Args:
        title: of the experiment, or what several of them are called.
        jobs: theirs.
        chip: a name in `CHIPS`.
        utilisation: share of its peak that is reached.
        left: those of which a folder of records has not all, which get a line; None: no records are kept.

    Raises:
        UserError: an unknown chip, a share out of range, or a tokenizer without its files.
    """
    runs = [each for root in jobs for each in (root, *root.then)]
    costs = {job.name: _costs(job) for job in runs}
    total = lambda jobs: [sum(column) for column in zip([0.0] * 3, *(costs[job.name] for job in jobs), strict=True)]
    named = [*costs.items(), ("all", total(runs))]
    if left is not None:
        named.append(("not in the records", total([each for root in left for each in (root, *root.then)])))
    head = ["run", "tokens", "FLOP training", "FLOP evaluating", "hours"]
    lines = [
        [name, *(f"{cost:.2e}" for cost in each), f"{hours(each[1] + each[2], chip, utilisation):.2f}"]
        for name, each in named
    ]
    widths = [max(len(line[k]) for line in (head, *lines)) for k in range(len(head))]
    text = [f"{title}: {len(runs)} runs; hours on one {chip} at {utilisation:.0%} of its peak, an estimate"]
    for line in (head, *lines):
        cells = (
            cell.ljust(n) if k == 0 else cell.rjust(n) for k, (cell, n) in enumerate(zip(line, widths, strict=True))
        )
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def _costs(job: Job) -> list[float]:
    """Tokens, and the operations of training and of evaluating."""
    tokens = job.config.steps * job.config.sequences * job.config.context
    return [tokens, training_operations(job.config), evaluating(job.config, job.row.evaluations)]
