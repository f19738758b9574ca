"""Training: `python -m bam_jax.train --config=configs/lm_120m.py [--config.a.b=value ...] [--workdir=runs/x]`.

The same command again resumes a run that was interrupted, bit for bit, and leaves a finished one alone. SIGTERM has it save
a checkpoint after the step that it is at, and exit with code 75, and Ctrl-C with 130; while the first step is compiled, or at
a second signal, it ends at once. Several processes train together where a scheduler starts them, or by --coordinator,
--processes and --process.
"""

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bam_jax.config import Config
from bam_jax.data import loader, tokenizers
from bam_jax.models import counts, transformer
from bam_jax.parallel import processes, sharding
from bam_jax.system import errors, log
from bam_jax.system.errors import UserError
from bam_jax.system.host import keep_freed_memory
from bam_jax.training import checkpoint, losses, optimizer, outlook
from bam_jax.training.metrics import METRICS, read_metrics

DIVERGED = "diverged"
"""A file that is there after a step whose numbers are not finite, and says which; the next training removes it."""
TASKS = {True: ("packed", "passkey"), False: ("masked",)}
"""What is trained on what: decoders, whose `config.model.causal` is true, and encoders."""

State = dict[str, Any]
"""{'model': {'params': ..., 'frozen': ...}, 'optimizer': ...}, plain pytrees of arrays."""
Shardings = dict[str, Any]
"""The same with a `NamedSharding` for each array."""


def fit(
    config: Config,
    workdir: str | os.PathLike,
    *,
    progress: bool | None = None,
    stop: Callable[[int], bool] = lambda step: False,
) -> list[dict[str, Any]]:
    """Train to the end, from the newest checkpoint in `workdir` if there is one.

    Writes `config.json`, `tokenizer/`, `metrics.jsonl` and `checkpoints/`. A record of the metrics holds the step, its mean
    loss (nats a token, as weighted), the norm of its gradient before clipping, its learning rate, the tokens
    and seconds of training so far and the tokens per second since the record before.

    Args:
        config: what to train, on what, for how long.
        workdir: the run's folder; made if it is not there.
        progress: see `log.progress`.
        stop: says after a step, once that is whole, whether to leave it at that for now, as `processes.stopping` does.

    Returns:
        The records of the metrics.

    Raises:
        UserError: the configuration or the folder will not do, or loss or gradient are not finite.
        errors.Stopped: `stop` said so; there is a checkpoint of that step.
    """
    keep_freed_memory()
    run = Path(workdir)
    told = progress is not False and processes.first() and checkpoint.latest(run) != config.steps
    tell = functools.partial(_tell, run.name) if told else lambda text: None
    tokenizer = tokenizers.tokenizer(config.data.tokenizer)
    mesh = sharding.make_mesh(config.mesh)
    sharding.check(config, mesh)
    _see_tasks(config)
    host, hosts = sharding.hosts(mesh)
    with jax.set_mesh(mesh), contextlib.ExitStack() as stack:
        graph, init, tx = parts(config, checkpoint.vocabulary(config, tokenizer))
        shapes = jax.eval_shape(init)
        shardings = state_shardings(shapes, tx, mesh)
        if told:
            known, devices = counts.counted(shapes["model"]), mesh.devices.flatten().tolist()
            tell(outlook.size(config, known, devices))
            for line in outlook.duration(config, known, devices, checkpoint.latest(run)):
                tell(line)
        tell("reading the data")
        data = stack.enter_context(contextlib.closing(loader.batches(config, tokenizer, host=host, hosts=hosts)))
        # last of what may refuse, so that a mistake leaves no folder behind
        if processes.first():
            stack.enter_context(checkpoint.claim(run, config, tokenizer))
        done = processes.agreed(checkpoint.latest(run) if processes.first() else 0)
        if not (run / checkpoint.CONFIG).exists():
            raise UserError(f"workdir {run} of process 0 is not here; give a folder that all hosts share")
        if done == config.steps:
            return list(log.read(run / METRICS))
        if processes.first():
            (run / DIVERGED).unlink(missing_ok=True)
        checkpoints = stack.enter_context(checkpoint.Checkpoints(run))
        tell(f"going on from step {done:,}" if done else "making the first parameters")
        if done:
            state = checkpoints.load(placed(shapes, shardings), data)  # the metrics of that step as well
        else:
            state = _first(config, init, shardings)
            if processes.first():
                (run / METRICS).unlink(missing_ok=True)
        history = read_metrics(run) if processes.first() else []
        where, shown, board = (
            (run / METRICS, progress, config.tensorboard) if processes.first() else (os.devnull, False, False)
        )
        with (
            log.Writer(where, tensorboard=board) as writer,
            log.progress(config.steps, done=done, label=run.name, show=shown) as bar,
        ):
            update = make_step(config, graph, tx, shardings)
            meter = _Meter(config, run, writer, bar, history[-1]["seconds"] if history else 0.0)
            late = None
            tell("compiling the training step")
            start = time.perf_counter()
            for step in range(done + 1, config.steps + 1):
                state, metrics = update(state, sharding.batch(next(data), mesh))
                if late is not None:
                    meter(*late)  # one step late: the device is busy with this step meanwhile
                late = step, metrics
                if step == done + 1:
                    tell(f"compiled in {outlook.span(time.perf_counter() - start)}; step {step:,} is running")
                    jax.block_until_ready(metrics)  # before it there is nothing to stop for
                stopped = stop(step) and step < config.steps
                if stopped or step % config.checkpoint_every == 0 or step == config.steps:
                    meter(*late)  # a checkpoint is never made of numbers that are not finite
                    late = None
                    checkpoints.save(step, state, data)
                if stopped:
                    raise errors.Stopped(
                        f"{run}: stopped at step {step} of {config.steps}; the same command goes on from there"
                    )
    return list(log.read(run / METRICS))


def make_step(
    config: Config, graph: nnx.GraphDef, tx: optax.GradientTransformation, shardings: Shardings | None = None
) -> Callable[[State, dict[str, Any]], tuple[State, jax.Array]]:
    """The jitted optimiser step `(state, batch) -> (state, [loss, gradient norm])`; it donates the state.

    The loss is sum_n w_n nll_n / sum_n w_n over the whole batch, also when `config.optimizer.accumulate` cuts
    the batch into micro-batches whose gradients are added up.

    Args:
        config: the run's configuration.
        graph: the decoder's structure, from `transformer.split`.
        tx: the optimiser, from `optimizer.make`.
        shardings: of the state, from `state_shardings`, for a call under `jax.set_mesh`; None: nothing is cut.
    """
    count = config.optimizer.accumulate

    def loss(params, frozen, part, weight):
        decoder = nnx.merge(graph, params, frozen)
        segment, position = [part[name] if name in part else None for name in ("segment", "position")]
        hidden, _ = decoder.hidden(part["tokens"], segment=segment, position=position)
        total, _ = losses.sharded_cross_entropy(hidden, decoder.unembedding(), part["targets"], part["weights"])
        return total / weight

    def kept(gradient):
        """A gradient cut as its parameter is."""
        return (
            gradient if shardings is None else jax.lax.with_sharding_constraint(gradient, shardings["model"]["params"])
        )

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=None if shardings is None else (shardings, None))
    def step(state, batch):
        params, frozen = state["model"]["params"], state["model"]["frozen"]
        weight = jnp.maximum(batch["weights"].sum(), 1e-6)  # a batch of pads only teaches nothing

        def value_and_gradient(part):
            value, gradient = jax.value_and_grad(loss)(params, frozen, part, weight)
            return value, kept(gradient)

        if count == 1:
            value, gradient = value_and_gradient(batch)
        else:
            (value, gradient), _ = jax.lax.scan(
                lambda total, part: (jax.tree.map(jnp.add, total, value_and_gradient(part)), None),
                (jnp.zeros_like(weight), kept(jax.tree.map(jnp.zeros_like, params))),
                sharding.micro_batches(batch, count),
            )
        updates, moments = tx.update(gradient, state["optimizer"], params)
        new = {
            "model": {"params": optax.apply_updates(params, updates), "frozen": frozen},
            "optimizer": moments,
        }
        return new, jnp.stack([value, optax.tree.norm(gradient)])

    return step


def state_shardings(state: State, tx: optax.GradientTransformation, mesh: jax.sharding.Mesh) -> Shardings:
    """The sharding of every array of the state: parameters by `sharding.RULES`, and what the optimiser keeps of each like it.

    Args:
        state: the arrays, or what `jax.eval_shape` gives for them.
        tx: the optimiser.
        mesh: of `sharding.make_mesh`.

    Raises:
        UserError: see `sharding.parameters`.
    """
    params, frozen = [sharding.parameters(state["model"][name], mesh) for name in ("params", "frozen")]
    moments = optax.tree.map_params(
        tx,
        lambda _, like: like,
        state["optimizer"],
        params,
        transform_non_params=lambda _: sharding.whole(mesh),
    )
    return {"model": {"params": params, "frozen": frozen}, "optimizer": moments}


def _tell(name: str, text: str) -> None:
    log.say(f"{name}: {text}")


def _see_tasks(config: Config) -> None:
    known = TASKS[config.model.causal]
    for _, part in config.data.parts().values():
        if part.task not in known:
            what = "a decoder" if config.model.causal else "an encoder (config.model.causal=False)"
            raise UserError(f"{what} is not trained on config.data.task={part.task!r}; give {' or '.join(known)}")


class _Meter:
    """Looks at the metrics of every step, stops at numbers that are not finite, writes and shows the rest."""

    def __init__(self, config, run, writer, bar, seconds):
        self.config, self.run, self.writer, self.bar = config, run, writer, bar
        self.rate = optimizer.schedule(config.optimizer, config.steps)
        self.tokens = config.batch * config.context
        self.start = time.perf_counter() - seconds
        self.mark: tuple[int, float] | None = None
        self.speed = 0.0

    def __call__(self, step: int, metrics: jax.Array) -> None:
        loss, norm = metrics.tolist()
        if not math.isfinite(loss + norm):
            found = f"step {step}: the loss is {loss}, the norm of its gradient {norm}"
            if processes.first():
                log.replace(self.run / DIVERGED, f"{found}\n")
            raise UserError(
                f"{found}; lower config.optimizer.rate or look at the data (the last checkpoint is from before)"
            )
        now = time.perf_counter()
        if self.mark is None:  # the first step compiles: its time says nothing
            self.mark = step, now
        before, then = self.mark
        speed = (step - before) * self.tokens / (now - then) if step > before else 0.0
        self.bar.set_postfix_str(f"loss {loss:.4f}, {self.speed or speed:,.0f} tokens/s", refresh=False)
        self.bar.update()
        if step % self.config.log_every == 0 or step == self.config.steps:
            record = {
                "step": step,
                "loss": loss,
                "gradient_norm": norm,
                "rate": float(self.rate(step - 1)),
                "tokens": step * self.tokens,
                "seconds": round(now - self.start, 3),
                "tokens_per_second": round(speed),
            }
            self.writer.write(record)
            self.mark, self.speed = (step, now), speed


def parts(config: Config, vocab: int) -> tuple[nnx.GraphDef, Callable[[], State], optax.GradientTransformation]:
    """The structure of the decoder, a function that makes the initial state, the optimiser.

    Args:
        config: the run's.
        vocab: entries of the vocabulary.
    """

    def build():
        return transformer.build(config, vocab=vocab, rngs=nnx.Rngs(config.seed))

    graph, tree = transformer.split(nnx.eval_shape(build))
    tx = optimizer.make(config.optimizer, config.steps, tree["params"])

    def init():
        _, tree = transformer.split(build())
        return {"model": tree, "optimizer": tx.init(tree["params"])}

    return graph, init, tx


def _first(config: Config, init: Callable[[], State], shardings: Shardings | None = None) -> State:
    """The state before the first step; with `config.start` its model is that run's, its optimiser new."""
    state = jit_once(init, shardings)()
    if config.start:
        state["model"] = checkpoint.restore_parameters(config.start, state["model"])
    return state


def placed(state: State, shardings: Shardings) -> State:
    """Shapes, dtypes and shardings of the state.

    Args:
        state: what `jax.eval_shape` gives for it.
        shardings: of `state_shardings`.
    """
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), state, shardings)


def jit_once(function: Callable[[], State], shardings: Shardings | None = None) -> Callable[[], State]:
    """Jitted for a single call, straight into shards; XLA for CPUs would optimise initialisers for ten times as long.

    Args:
        function: makes a state.
        shardings: of the state; None: it is not cut.
    """
    quick = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
    return jax.jit(function, compiler_options=quick, out_shardings=shardings)
