"""The loss on held-out text while a model is trained: always the same batches, with the loss of training."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from bam_jax.config import Config
from bam_jax.data import loader
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError
from bam_jax.training.step import State, make_gradient


class HeldOutLoss:
    """The mean loss of a state on the first `config.eval_tokens` held-out tokens, in nats, weighted as in training."""

    def __init__(
        self, config: Config, tokenizer: Tokenizer, graph: nnx.GraphDef, mesh: jax.sharding.Mesh, host: int, hosts: int
    ):
        alone = dataclasses.replace(config, data=dataclasses.replace(config.data, workers=0))
        count = math.ceil(config.eval_tokens / (config.sequences * config.context))
        try:
            made = loader.batches(alone, tokenizer, "held_out", host=host, hosts=hosts)
        except UserError as error:
            wanted = f"config.eval_every={config.eval_every} measures on held-out text"
            raise UserError(f"{wanted}, and {error}; hold some out (config.data.holdout), or set it to 0") from error
        self._batches = list(itertools.islice(made, count))
        self._mesh = mesh
        weights = [{"weights": batch["weights"]} for batch in self._batches if "weights" in batch]
        if weights and not any(sharding.shard_batch(each, mesh)["weights"].sum() for each in weights):
            raise UserError(
                f"config.eval_every={config.eval_every} measures on held-out text, and the first config.eval_tokens="
                f"{config.eval_tokens} of it have nothing to predict; measure on more, or set config.eval_every=0"
            )
        gradient_of = make_gradient(config, graph)

        @jax.jit
        def loss(model: State, batch: dict[str, jax.Array]) -> jax.Array:
            # The compiler leaves the gradient out, since nothing is done with it.
            (value, *_), _ = gradient_of(model["params"], model["frozen"], batch)
            weight = batch["weights"].sum() if "weights" in batch else jnp.float32(1)
            return jnp.stack([value * weight, weight])

        self._loss = loss

    def __call__(self, state: State) -> float:
        """The loss of a state, which stays as it is."""
        parts = [self._loss(state["model"], sharding.shard_batch(batch, self._mesh)) for batch in self._batches]
        total, weight = functools.reduce(jnp.add, parts).tolist()
        return total / weight
