"""Parameter counts of a model and, before it is built, its parameters by kind and the floating-point operations of training."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bam_jax.config import Config
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.models.layers import FAMILIES
from bam_jax.models.transformer import build, split

UTILISATION = 0.4
"""Share of a chip's peak that training reaches: an assumption."""


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters."""

    embedding: int
    transformer: int  # all but embedding and priors; the head included unless it is the embedding
    prior: int  # of the encodings, frozen ones included
    trained_prior: int


def parameter_count(model: nnx.Module) -> int:
    """The number of a model's parameters, frozen ones included."""
    return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Variable)) if jnp.issubdtype(x.dtype, jnp.floating))


def parameters(config: Config) -> ParameterCounts:
    """Count a model's parameters without building it.

    >>> from bam_jax.config import ModelConfig
    >>> parameters(Config(encoding="bam", model=ModelConfig(layers=2, heads=4, vocab=100)))
    ParameterCounts(embedding=6400, transformer=88640, prior=24, trained_prior=16)
    """
    vocab = config.model.vocab or find_tokenizer(config.data.tokenizer, config.data.sources()).padded
    _, tree = split(nnx.eval_shape(lambda: build(config, vocab=vocab, rngs=nnx.Rngs(0))))
    return parameters_of(tree)


def parameters_of(tree: dict[str, Any]) -> ParameterCounts:
    """Count the parameters of a model, or of its shapes, as `split` gives them."""
    counts = dict.fromkeys(("embedding", "transformer", "prior", "trained_prior"), 0)
    for kind, part in tree.items():
        for path, leaf in jax.tree.leaves_with_path(part):
            names, size = [str(entry.key) for entry in path], math.prod(leaf.shape)
            if "encoding" in names:
                counts["prior"] += size
                counts["trained_prior"] += size if kind == "params" else 0
            else:
                counts["embedding" if names[0] == "embed" else "transformer"] += size
    return ParameterCounts(**counts)


def training_operations(config: Config) -> float:
    """Floating-point operations of all training steps."""
    return config.steps * step_operations(config, parameters(config))


def step_operations(config: Config, known: ParameterCounts) -> float:
    """Floating-point operations of a step: per token 6 N, and for causal attention 6 * layers * heads * D * context.

    Each parameter takes a multiplication and an addition forward, and twice that backward. The same holds for each pair of
    tokens in attention, once for q.k and once for the values; a causal mask leaves half of the pairs. With cached gradients of
    embeddings, the forward pass runs twice.
    """
    model = config.model
    attention = 6 * model.layers * model.heads * model.head_width * config.context
    token = 6 * multiplied_parameters(config, known) + attention * (1 if model.causal else 2)
    cached = config.data.contrastive and config.optimizer.accumulate > 1
    return float(config.sequences * config.context * token * (4 / 3 if cached else 1))


def multiplied_parameters(config: Config, known: ParameterCounts) -> int:
    """Parameters that every token is multiplied by; an encoder that is trained on embeddings does without the head."""
    tied = config.model.tied or FAMILIES[config.model.family].tied
    return known.transformer + (known.embedding if tied else 0)


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
"""Dense bfloat16 operations per second, from the makers' data sheets; "cpu": roughly one core in float32, as a sweep uses it."""


def peak(kind: str) -> float | None:
    """The chip's number in `CHIPS`, from JAX's device kind; None: not listed.

    >>> peak("NVIDIA H100 80GB HBM3") == CHIPS["h100"], peak("TPU v5 lite") == CHIPS["v5e"], peak("cpu")
    (True, True, None)
    """
    return _of(CHIPS, kind)


def memory(kind: str) -> float | None:
    """The chip's number in `MEMORY`, as `peak`."""
    return _of(MEMORY, kind)


def _of(numbers: dict[str, float], kind: str) -> float | None:
    name = {"tpu v5": "v5p"}.get(kind.lower(), kind.lower().replace(" lite", "e"))
    return next((number for chip, number in numbers.items() if chip in name and chip != "cpu"), None)


BANDWIDTHS = {
    "a6000": 768e9,
    "a100": 2039e9,
    "h100": 3352e9,
    "h200": 4800e9,
    "v4": 1228e9,
    "v5e": 819e9,
    "v5p": 2765e9,
    "v6e": 1640e9,
}
"""Memory bandwidth of each chip in bytes per second, from the makers' pages; of the 80 GB variant if there are several."""

MEMORY = {
    "a6000": 48e9,
    "a100": 80e9,
    "h100": 80e9,
    "h200": 141e9,
    "v4": 32e9,
    "v5e": 16e9,
    "v5p": 95e9,
    "v6e": 32e9,
}
"""Memory of each chip in bytes, from the same pages; the A100 is the 80 GB variant."""
