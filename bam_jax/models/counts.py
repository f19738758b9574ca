"""What a run costs before it is made: parameters, tokens, floating-point operations, hours on a chip."""

import dataclasses
import math
from typing import Any

import jax
from flax import nnx

from bam_jax.config import Config
from bam_jax.data import tokenizers
from bam_jax.models.transformer import build, split

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
    _, tree = split(nnx.eval_shape(lambda: build(config, vocab=vocab, rngs=nnx.Rngs(0))))
    return counted(tree)


def counted(tree: dict[str, Any]) -> Parameters:
    """Count the parameters of a model that is made, or whose shapes are known.

    Args:
        tree: what `split` gives of it.
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
    each = 6 * multiplied(config, known) + attention / (1 if config.model.causal else 0.5)
    return float(config.batch * config.context * each)


def multiplied(config: Config, known: Parameters) -> int:
    """Parameters that every token is multiplied with: the embedding is only where it is the head as well."""
    return known.transformer + (known.embedding if config.model.family == "gpt2" else 0)


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
