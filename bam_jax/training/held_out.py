"""The held-out loss during training: the training loss on batches that are always the same."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bam_jax.config import Config
from bam_jax.data import loader
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError
from bam_jax.training.step import State


def held_out_loss(
    config: Config, tokenizer: Tokenizer, gradient_of: Callable[..., Any], mesh: jax.sharding.Mesh
) -> Callable[[State], float]:
    """The mean loss of a state on the first `config.eval_tokens` held-out tokens, in nats, weighted as in training."""
    asked = f"config.eval_every={config.eval_every} measures on held-out text"
    alone = dataclasses.replace(config, data=dataclasses.replace(config.data, workers=0))
    count = math.ceil(config.eval_tokens / (config.sequences * config.context))
    host, hosts = sharding.host_share(mesh)
    try:
        made = loader.batches(alone, tokenizer, "held_out", host=host, hosts=hosts)
    except UserError as error:
        raise UserError(f"{asked}, and {error}; hold some out (config.data.holdout), or set it to 0") from error
    batches = list(itertools.islice(made, count))
    weights = [{"weights": batch["weights"]} for batch in batches if "weights" in batch]
    if weights and not any(sharding.shard_batch(each, mesh)["weights"].sum() for each in weights):
        nothing = f"the first config.eval_tokens={config.eval_tokens} of it have nothing to predict"
        raise UserError(f"{asked}, and {nothing}; measure on more, or set config.eval_every=0")
    of_batch = jit_loss(gradient_of)

    def loss(state: State) -> float:
        parts = [of_batch(state["model"], sharding.shard_batch(batch, mesh)) for batch in batches]
        total, weight = functools.reduce(jnp.add, parts).tolist()
        return total / weight

    return loss


def jit_loss(gradient_of: Callable[..., Any]) -> jax.stages.Wrapped:
    """The jitted function (model, batch) -> [loss times weight, weight]."""

    @jax.jit
    def sum_and_weight(model: State, batch: dict[str, jax.Array]) -> jax.Array:
        # The compiler removes the gradient, because nothing uses it.
        (value, *_), _ = gradient_of(model["params"], model["frozen"], batch)
        weight = batch["weights"].sum() if "weights" in batch else jnp.float32(1)
        return jnp.stack([value * weight, weight])

    return sum_and_weight
