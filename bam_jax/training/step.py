"""One step of training: its state, how devices share the state, and the jitted function."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bam_jax.config import Config
from bam_jax.models import transformer
from bam_jax.parallel import sharding
from bam_jax.training import bundled, checkpoint, contrastive, losses, optimizer

State = dict[str, Any]
"""{'model': {'params': ..., 'frozen': ...}, 'optimizer': ...}, plain pytrees of arrays."""
Shardings = dict[str, Any]
"""The same with a `NamedSharding` for each array."""


def define_training(
    config: Config, vocab: int
) -> tuple[nnx.GraphDef, Callable[[], State], optax.GradientTransformation]:
    """The decoder's structure, a function that makes the initial state, and the optimiser; no array is made."""
    build = lambda: transformer.build(config, vocab=vocab, rngs=nnx.Rngs(config.seed))
    graph, tree = transformer.split(nnx.eval_shape(build))
    tx = optimizer.make(config.optimizer, config.steps, tree["params"])

    def initialise() -> State:
        _, tree = transformer.split(build())
        return {"model": tree, "optimizer": tx.init(tree["params"])}

    return graph, initialise, tx


def initial_state(initialise: Callable[[], State], start: str = "", shardings: Shardings | None = None) -> State:
    """The state before the first step; with `start`, a run, it has that run's model and a new optimiser."""
    state = jit_once(initialise, shardings)()
    if start:
        state["model"] = checkpoint.restore_parameters(bundled.find(start), state["model"])
    return state


def jit_once(function: Callable[[], State], shardings: Shardings | None = None) -> Callable[[], State]:
    """Jit a function for a single call, straight into shards."""
    # XLA for CPUs would spend ten times as long on optimising initialisers as one call takes.
    quick = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
    return jax.jit(function, compiler_options=quick, out_shardings=shardings)


def state_shardings(state: State, tx: optax.GradientTransformation, mesh: jax.sharding.Mesh) -> Shardings:
    """The sharding of every array of the state: parameters by `sharding.RULES`, optimiser arrays like their parameters."""
    params, frozen = [sharding.parameter_shardings(state["model"][name], mesh) for name in ("params", "frozen")]
    like, other = lambda _, like: like, lambda _: sharding.replicated(mesh)
    moments = optax.tree.map_params(tx, like, state["optimizer"], params, transform_non_params=other)
    return {"model": {"params": params, "frozen": frozen}, "optimizer": moments}


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """A tree of shapes and dtypes, with shardings."""
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes, shardings)


def make_step(
    config: Config, graph: nnx.GraphDef, tx: optax.GradientTransformation, shardings: Shardings | None = None
) -> Callable[[State, dict[str, Any]], tuple[State, jax.Array]]:
    """The jitted optimiser step `(state, batch) -> (state, metrics)`; it donates the state.

    Metrics are [loss, gradient norm, accuracy if contrastive]. With shardings (`state_shardings`), the step is called under
    `jax.set_mesh`; without them, nothing is sharded.
    """

    def cut_like_parameters(gradient: Any) -> Any:
        # Without this, the compiler may keep the whole gradient on every device until the optimiser takes its part.
        if shardings is None:
            return gradient
        return jax.lax.with_sharding_constraint(gradient, shardings["model"]["params"])

    gradient_of = make_gradient(config, graph, cut_like_parameters)

    # The new state reuses the memory of the old one, because both would not fit at once.
    @functools.partial(jax.jit, donate_argnums=0, out_shardings=None if shardings is None else (shardings, None))
    def step(state: State, batch: dict[str, Any]) -> tuple[State, jax.Array]:
        params, frozen = state["model"]["params"], state["model"]["frozen"]
        key = None
        if config.model.attention_dropout:  # a new key in every step, and the same one in a resumed run
            count = optax.tree.get_all_with_path(state["optimizer"], "count")[0][1]
            key = jax.random.fold_in(jax.random.key(config.seed), count)
        (loss, *others), gradient = gradient_of(params, frozen, batch, key)
        updates, moments = tx.update(gradient, state["optimizer"], params)
        model = {"params": optax.apply_updates(params, updates), "frozen": frozen}
        return {"model": model, "optimizer": moments}, jnp.stack([loss, optax.tree.norm(gradient), *others])

    return step


def make_gradient(
    config: Config, graph: nnx.GraphDef, cut: Callable[[Any], Any] = lambda gradient: gradient
) -> Callable[..., tuple[tuple[jax.Array, ...], Any]]:
    """The function (params, frozen, batch, key = None) -> ((loss, ...), gradient) of the run's task.

    With a key, attention weights are dropped as configured; without one, as in evaluation, none are.
    `cut` constrains a gradient to the shardings of the parameters. The loss of tokens is sum_n w_n nll_n / sum_n w_n over the
    whole batch, even if it is split into micro-batches, whose gradients are added up.
    """
    count = config.optimizer.accumulate
    if config.data.contrastive:
        return contrastive.make_gradient(graph, count, config.data.similarity_scale, cut)

    def loss(params: Any, frozen: Any, part: dict[str, Any], weight: jax.Array, key: jax.Array | None) -> jax.Array:
        decoder = nnx.merge(graph, params, frozen)
        if key is not None:
            decoder.drop_weights(key)
        segment, position = [part[name] if name in part else None for name in ("segment", "position")]
        hidden, _ = decoder.hidden(part["tokens"], segment=segment, position=position)
        rows, kernel, bias = decoder.unembedding(hidden)
        total, _ = losses.sharded_cross_entropy(rows, kernel, bias, part["targets"], part["weights"])
        return total / weight

    def gradient_of(
        params: Any, frozen: Any, batch: dict[str, Any], key: jax.Array | None = None
    ) -> tuple[tuple[jax.Array, ...], Any]:
        # The weight of the whole batch, so that micro-batches of different weights add up to the same gradient. A batch of only
        # padding has a zero gradient, and must not divide by zero.
        weight = jnp.maximum(batch["weights"].sum(), 1e-6)

        def value_and_gradient(part: dict[str, Any], key: jax.Array | None) -> tuple[tuple[jax.Array, ...], Any]:
            value, gradient = jax.value_and_grad(loss)(params, frozen, part, weight, key)
            return (value,), cut(gradient)

        def add(total: Any, part: tuple[dict[str, Any], jax.Array | None]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, value_and_gradient(*part)), None

        if count == 1:
            return value_and_gradient(batch, key)
        zero = (jnp.zeros_like(weight),), cut(jax.tree.map(jnp.zeros_like, params))
        keys = None if key is None else jax.random.split(key, count)
        total, _ = jax.lax.scan(add, zero, (sharding.micro_batches(batch, count), keys))
        return total

    return gradient_of
