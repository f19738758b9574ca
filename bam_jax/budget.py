"""What a run costs before it is made: parameters, tokens, floating-point operations, hours on a chip."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from flax import nnx

from bam_jax import checkpoint, model
from bam_jax.config import Config
from bam_jax.data import benchmarks, tokenizers
from bam_jax.errors import UserError, nearest
from bam_jax.experiment import Evaluation
from bam_jax.jobs import Job

CHIPS = {
    "cpu": 5e10,
    "a6000": 155e12,
    "a100": 312e12,
    "h100": 989e12,
    "h200": 989e12,
    "v4": 275e12,
    "v5e": 197e12,
    "v5p": 459e12,
    "v6e": 918e12,
}
"""Dense bfloat16 operations per second by the makers' data sheets; "cpu": one core's in float32, roughly, as a sweep uses it."""

UTILISATION = 0.4
"""Share of a chip's peak that training reaches: an assumption."""


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Numbers of parameters.

    Args:
        embedding: of the token embedding.
        transformer: of all else but the priors, the head included unless it is the embedding.
        prior: of the encodings, frozen ones included.
        trained_prior: of the encodings, without frozen ones.
    """

    embedding: int
    transformer: int
    prior: int
    trained_prior: int


def parameters(config: Config) -> Parameters:
    """Count a model's parameters, without making it.

    >>> from bam_jax.config import ModelConfig
    >>> parameters(Config(encoding="bam", model=ModelConfig(layers=2, heads=4, vocab=100)))
    Parameters(embedding=6400, transformer=88640, prior=24, trained_prior=16)

    Args:
        config: whose tokenizer is asked unless it names the vocabulary.

    Raises:
        UserError: a tokenizer without its files.
    """
    vocab = config.model.vocab or tokenizers.tokenizer(config.data.tokenizer).padded
    _, tree = checkpoint.split(nnx.eval_shape(lambda: model.build(config, vocab=vocab, rngs=nnx.Rngs(0))))
    return counted(tree)


def counted(tree: dict[str, Any]) -> Parameters:
    """Count the parameters of a model that is made, or whose shapes are known.

    Args:
        tree: what `checkpoint.split` gives of it.
    """
    counts = dict.fromkeys(("embedding", "transformer", "prior", "trained_prior"), 0)
    for kind, part in tree.items():
        for path, leaf in jax.tree.leaves_with_path(part):
            names = [str(entry.key) for entry in path]
            where = "prior" if "encoding" in names else "embedding" if names[0] == "embed" else "transformer"
            size = math.prod(leaf.shape)
            counts[where] += size
            counts["trained_prior"] += size if where == "prior" and kind == "params" else 0
    return Parameters(**counts)


def training(config: Config) -> float:
    """Floating-point operations of training, those of all its steps.

    Args:
        config: the run's.
    """
    return config.steps * step(config, parameters(config))


def step(config: Config, known: Parameters) -> float:
    """Floating-point operations of a step: 6 N a token, and attention's 6 layers width context under a causal mask.

    Args:
        config: the run's.
        known: its model's parameters.
    """
    attention = 6 * config.model.layers * config.model.width * config.context
    each = 6 * _multiplied(config, known) + attention / (1 if config.model.causal else 0.5)
    return float(config.batch * config.context * each)


def evaluating(config: Config, evaluations: Iterable[Evaluation]) -> float:
    """Floating-point operations of evaluations: 2 N a token, and attention's 2 layers width length.

    Questions are counted as long as they may be, read once for each of four answers: at most so many operations.

    Args:
        config: the run's.
        evaluations: each of them with all its lengths.
    """
    total, multiplied = 0.0, _multiplied(config, parameters(config))
    for evaluation in evaluations:
        for length in evaluation.lengths:
            tokens = length * _texts(evaluation, length)
            total += tokens * (2 * multiplied + 2 * config.model.layers * config.model.width * length)
    return total


def _texts(evaluation: Evaluation, length: int) -> float:
    match evaluation.name:
        case "harness":
            return 4 * benchmarks.count(evaluation.tasks, evaluation.questions)
        case "passkey":
            return evaluation.depths * evaluation.trials
        case "perplexity":
            return max(1.0, evaluation.tokens / length)
        case "ruler":
            return evaluation.samples * len(evaluation.tasks)
    raise UserError(f"what the evaluation {evaluation.name!r} costs is not known")


def hours(operations: float, chip: str, utilisation: float = UTILISATION) -> float:
    """How long so many operations take.

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


def _multiplied(config: Config, known: Parameters) -> int:
    """Parameters that every token is multiplied with: the embedding is only where it is the head as well."""
    return known.transformer + (known.embedding if config.model.family == "gpt2" else 0)


def table(title: str, jobs: Sequence[Job], chip: str, utilisation: float = UTILISATION) -> str:
    """What experiments cost, a line for each run and one for all of them, in columns.

    Args:
        title: of the experiment, or what several of them are called.
        jobs: theirs.
        chip: a name in `CHIPS`.
        utilisation: share of its peak that is reached.

    Raises:
        UserError: an unknown chip, a share out of range, or a tokenizer without its files.
    """
    lines, sums = [], [0.0, 0.0, 0.0]
    for job in (each for root in jobs for each in (root, *root.then)):
        tokens = job.config.steps * job.config.batch * job.config.context
        costs = [tokens, training(job.config), evaluating(job.config, job.row.evaluations)]
        sums = [total + cost for total, cost in zip(sums, costs, strict=True)]
        lines.append(
            [job.name, *(f"{cost:.2e}" for cost in costs), f"{hours(costs[1] + costs[2], chip, utilisation):.2f}"]
        )
    lines.append(["all", *(f"{cost:.2e}" for cost in sums), f"{hours(sums[1] + sums[2], chip, utilisation):.2f}"])
    head = ["run", "tokens", "FLOP training", "FLOP evaluating", "hours"]
    widths = [max(len(line[k]) for line in (head, *lines)) for k in range(len(head))]
    text = [f"{title}: {len(lines) - 1} runs; hours on one {chip} at {utilisation:.0%} of its peak, an estimate"]
    for line in (head, *lines):
        cells = (
            cell.ljust(n) if k == 0 else cell.rjust(n) for k, (cell, n) in enumerate(zip(line, widths, strict=True))
        )
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)
