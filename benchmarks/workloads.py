"""The workloads of `benchmarks.speed`: reading a text, embedding it, training, decoding; and the memory of a backward pass."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from bam_jax.config import Config
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.models import generate, transformer
from bam_jax.models.embedding import embed_texts
from bam_jax.training import losses, optimizer
from bam_jax.training.step import State, jit_once, make_step

TOKENS = 16
"""Tokens that are decoded in one timed call."""

CHUNK = 1024
"""Tokens of a context that are read at once."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Work that is repeated.

    Args:
        start: returns the state for the first call.
        call: does the work once, waits for it, and returns the state for the next call.
        work: the amount of work of a call, in the unit of the measure: batches or tokens.
    """

    start: Callable[[], Any]
    call: Callable[[Any], Any]
    work: int


class Contender:
    """A model with random parameters, which are drawn again whenever they are needed, so only one model is in memory at a time.

    Args:
        config: its configuration.
        backend: the backend of its attention (`bam_jax.attention.attention`).
    """

    def __init__(self, config: Config, backend: str = "auto"):
        self.config, self.backend = config, backend
        self.vocab = config.model.vocab or find_tokenizer(config.data.tokenizer, config.data.sources()).padded

        def build() -> transformer.Decoder:
            decoder = transformer.build(config, vocab=self.vocab, rngs=nnx.Rngs(config.seed))
            for stack in decoder.stacks():
                stack.attention.backend = backend
            return decoder

        abstract = nnx.eval_shape(build)
        self.limit: int | None = getattr(abstract.position, "limit", None)  # of a learned position table
        self.graph, self.shapes = transformer.split(abstract)
        self.parameters = jit_once(lambda: transformer.split(build())[1])

    def decoder(self, tree: dict[str, Any]) -> transformer.Decoder:
        """The model with these parameters, scanned over layers as in evaluations, so only one layer is compiled."""
        decoder = nnx.merge(self.graph, tree["params"], tree["frozen"])
        decoder.config = dataclasses.replace(self.config.model, scan=True)
        return decoder

    def texts(self, rows: int, length: int) -> Array:
        """Draw token ids, [rows, length]."""
        return jnp.asarray(np.random.default_rng(0).integers(0, self.vocab, (rows, length)), jnp.int32)

    def batch(self, rows: int, length: int) -> dict[str, Array]:
        """Draw rows to train on, each a separate document."""
        text = self.texts(rows, length + 1)
        return {"tokens": text[:, :-1], "targets": text[:, 1:], "weights": jnp.ones((rows, length))}


def inference(contender: Contender, length: int) -> Workload:
    """Compute the logits of all tokens of a batch of one."""
    tokens = contender.texts(1, length)
    forward = jax.jit(lambda tree, tokens: contender.decoder(tree)(tokens)[0])

    def call(tree: dict[str, Any]) -> dict[str, Any]:
        jax.block_until_ready(forward(tree, tokens))
        return tree

    return Workload(contender.parameters, call, work=1)


def embedding(contender: Contender, length: int) -> Workload:
    """Embed a text as one vector."""
    tokens, filled = contender.texts(1, length), jnp.full((1,), length, jnp.int32)
    embed = jax.jit(lambda tree, tokens: embed_texts(contender.decoder(tree), tokens, filled))

    def call(tree: dict[str, Any]) -> dict[str, Any]:
        jax.block_until_ready(embed(tree, tokens))
        return tree

    return Workload(contender.parameters, call, work=1)


def training(contender: Contender, length: int, batch: Mapping[str, Any] | None = None) -> Workload:
    """Take optimiser steps on one micro-batch, with as many tokens as the configuration's micro-batches."""
    config, rows = micro_batch(contender.config, length)
    tx = optimizer.make(config.optimizer, config.steps, contender.shapes["params"])
    step = make_step(config, contender.graph, tx)
    batch = contender.batch(rows, length) if batch is None else jax.tree.map(jnp.asarray, dict(batch))

    def start() -> State:
        tree = contender.parameters()
        return {"model": tree, "optimizer": tx.init(tree["params"])}

    def call(state: State) -> State:
        return jax.block_until_ready(step(state, batch))[0]

    return Workload(start, call, work=rows * length)


def micro_batch(config: Config, length: int) -> tuple[Config, int]:
    """The configuration of steps on one micro-batch, and its rows, for as many tokens as in `config`'s micro-batches."""
    rows = max(1, config.batch * config.context // config.optimizer.accumulate // length)
    return dataclasses.replace(config, batch=rows, optimizer=dataclasses.replace(config.optimizer, accumulate=1)), rows


def decoding(contender: Contender, length: int, calls: int) -> Workload:
    """Decode one token after another, a batch of one, after a context that is in the cache."""
    chunk = min(length, CHUNK)
    slots = length + -length % chunk + calls * TOKENS

    # The cache is written in place: after a long context, a copy in each step would take most of the time.
    @functools.partial(jax.jit, donate_argnums=4)
    def step(tree: Any, layers: Any, token: Any, position: Any, caches: Any) -> tuple[Any, Any, Any]:
        logits, caches = contender.decoder(tree)(token, position=position, caches=caches, read=1, layers=layers)
        return jnp.argmax(logits, axis=-1), position + 1, caches

    def start() -> tuple:
        tree = contender.parameters()
        decoder = contender.decoder(tree)
        logits, caches = generate.prefill(decoder, contender.texts(1, length), chunk=chunk, slots=slots)
        # Separate layers, as in `generate`.
        layers = decoder.layer_states()
        return tree, layers, jnp.argmax(logits[:, -1:], axis=-1), jnp.full((1, 1), length, jnp.int32), caches

    def call(state: tuple) -> tuple:
        tree, layers, *rest = state
        for _ in range(TOKENS):
            rest = step(tree, layers, *rest)
        return (tree, layers, *jax.block_until_ready(rest))

    return Workload(start, call, work=TOKENS)


def gradient_memory(contender: Contender, length: int) -> tuple[int, Callable[[], int | None]]:
    """Compile the gradient of a batch of one; returns the program's memory, and a function that measures the device's peak.

    bytes = arguments + results - what they share + temporaries
    """
    batch = contender.batch(1, length)

    def loss(params: dict[str, Any], frozen: dict[str, Any]) -> Array:
        decoder = nnx.merge(contender.graph, params, frozen)
        hidden, _ = decoder.hidden(batch["tokens"])
        rows, kernel, bias = decoder.unembedding(hidden)
        chunk = losses.chunk_rows(kernel.shape[1])
        total, weight = losses.cross_entropy(rows, kernel, bias, batch["targets"], batch["weights"], chunk=chunk)
        return total / weight

    compiled = jax.jit(jax.grad(loss)).lower(contender.shapes["params"], contender.shapes["frozen"]).compile()
    used = compiled.memory_analysis()
    assert used is not None, "every backend of jax analyses what it compiles"
    size = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes + used.temp_size_in_bytes

    def run() -> int | None:
        tree = contender.parameters()
        jax.block_until_ready(compiled(tree["params"], tree["frozen"]))
        stats = jax.local_devices()[0].memory_stats()
        return stats["peak_bytes_in_use"] if stats and "peak_bytes_in_use" in stats else None

    return size, run
