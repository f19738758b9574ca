"""The loop of training: from the newest checkpoint of a run to its last step."""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.config.sections import NEXT_TOKEN
from bam_jax.data import loader
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.data.tokenizers.copies import find_tokenizer, load_tokenizer
from bam_jax.models import counts, pattern
from bam_jax.parallel import agreement, processes, sharding
from bam_jax.system import console, errors, files
from bam_jax.system.errors import UserError
from bam_jax.system.resources import keep_freed_memory
from bam_jax.training import bundled, outlook, run_folder
from bam_jax.training.checkpoint import Checkpoints, trained_data, verify
from bam_jax.training.held_out import HeldOutLoss
from bam_jax.training.metrics import Meter, metering, read_metrics
from bam_jax.training.run_folder import CONFIG, DIVERGED, METRICS
from bam_jax.training.step import (
    Shardings,
    State,
    define_training,
    initial_state,
    make_step,
    state_shardings,
    with_shardings,
)

TASKS = {True: NEXT_TOKEN, False: ("masked", "triplets")}
"""The tasks of decoders, whose `config.model.causal` is true, and of encoders."""


@dataclasses.dataclass(frozen=True)
class Training:
    """All that a run trains with, before any of its files is touched.

    Args:
        config: what to train, on what, for how long.
        run: its folder.
        mesh: of the devices.
        tokenizer: the one that the configuration names.
        graph: the decoder's structure.
        initialise: makes the state of a new run.
        tx: the optimiser.
        shapes: of the state.
        shardings: of the state.
        tell: says a line to the person who waits.
    """

    config: Config
    run: Path
    mesh: jax.sharding.Mesh
    tokenizer: Tokenizer
    graph: nnx.GraphDef
    initialise: Callable[[], State]
    tx: optax.GradientTransformation
    shapes: State
    shardings: Shardings
    tell: Callable[[str], None]


def fit(
    config: Config,
    workdir: str | os.PathLike,
    *,
    progress: bool | None = None,
    longer: bool = False,
    stop: Callable[[int], bool] = lambda step: False,
) -> list[dict[str, Any]]:
    """Train to the end, from the newest checkpoint in `workdir` if there is one.

    Writes `config.json`, `tokenizer/`, `metrics.jsonl` and `checkpoints/`: see `run_folder`.

    Args:
        config: what to train, on what, for how long.
        workdir: the run's folder; made if it is not there.
        progress: see `console.progress`.
        longer: see `run_folder.claim`; its last step's parameters, moments and place in the data are where it goes on.
        stop: says after a step, once that is whole, whether to leave it at that for now, as `processes.stopping` does.

    Returns:
        The records of the metrics; see `metrics.StepMetrics`.

    Raises:
        UserError: the configuration or the folder will not do, processes differ, or loss or gradient are not finite.
        errors.Stopped: `stop` said so; there is a checkpoint of that step.
    """
    files.refuse_address(workdir)
    keep_freed_memory()
    agreement.check_same(
        configs.to_json(config), "the processes have different configurations; give all of them the same command"
    )
    run = Path(workdir)
    # What the folder refuses comes before a word is said of how long the training takes, and before its data is read.
    known = trained_data(run)
    if (run / CONFIG).exists():
        run_folder.check_configuration(run, config, longer, moved=known is not None)  # until the data are read
    elif processes.is_first():
        run_folder.check_empty(run)
    mesh = sharding.make_mesh(config.mesh)
    sharding.check(config, mesh)
    _check_tasks(config)
    host, hosts = sharding.host_share(mesh)
    with jax.set_mesh(mesh), contextlib.ExitStack() as stack:
        training = _set_up(config, run, mesh, progress)
        training.tell("reading the data")
        saves = processes.is_first()
        batches = loader.batches(config, training.tokenizer, host=host, hosts=hosts, saves=saves, tell=training.tell)
        data = stack.enter_context(contextlib.closing(batches))
        agreement.check_same(
            str(data.data), "the processes read different documents; give all of them the same copy of config.data"
        )
        held_out = None
        if config.eval_every:
            held_out = HeldOutLoss(config, training.tokenizer, training.graph, mesh, host, hosts)
        # The claim makes the folder. It is the last of what may refuse, so that a mistake leaves no folder behind.
        if processes.is_first():
            claim = run_folder.claim(run, config, training.tokenizer, longer=longer, moved=known == data.data)
            before = stack.enter_context(claim)
            if before < config.steps:
                training.tell(outlook.describe_more(config, before, run_folder.latest_step(run)))
        # Process 0 says where the run stands; the others wait for it here, and then see its files.
        done = agreement.from_first(run_folder.latest_step(run) if processes.is_first() else 0)
        if not (run / CONFIG).exists():
            raise UserError(f"workdir {run} of process 0 is not here; give a folder that all hosts share")
        if done < config.steps:
            _go_on(training, data, done, progress, stop, held_out)
        elif processes.is_first():
            verify(run, training.shapes["model"])
            run_folder.renew(run, config)
    return read_metrics(run)


def _set_up(config: Config, run: Path, mesh: jax.sharding.Mesh, progress: bool | None) -> Training:
    """Everything that is known before data and files are looked at; says how large and how long the training will be."""
    told = progress is not False and processes.is_first() and run_folder.latest_step(run) != config.steps

    def tell(text: str) -> None:
        if told:
            console.say(f"{run.name}: {text}")

    tokenizer, other = find_tokenizer(config.data.tokenizer, config.data.sources()), ""
    if config.start and not run_folder.latest_step(run):
        # The ids of another vocabulary would name other words, and the shapes may be the same.
        start = bundled.find(config.start)
        before = run_folder.read_config(start)
        theirs = load_tokenizer(start, before.data.tokenizer)
        tokenizer.check(theirs.hash, f"config.start={config.start}")
        if before.encoding != config.encoding:  # many have the same parameters, or none
            other = f"config.start={config.start} has encoding={before.encoding}; it goes on with {config.encoding}"
    graph, initialise, tx = define_training(config, run_folder.vocabulary_size(config, tokenizer))
    shapes = jax.eval_shape(initialise)
    shardings = state_shardings(shapes, tx, mesh)
    if told:
        known, devices = counts.parameters_of(shapes["model"]), mesh.devices.flatten().tolist()
        tell(f"encoding {pattern.describe(config)}")
        if other:
            tell(other)
        tell(outlook.describe_size(config, known, devices))
        for line in outlook.describe_duration(config, known, devices, run_folder.latest_step(run)):
            tell(line)
    return Training(config, run, mesh, tokenizer, graph, initialise, tx, shapes, shardings, tell)


def _go_on(
    training: Training,
    data: Any,
    done: int,
    progress: bool | None,
    stop: Callable[[int], bool],
    held_out: HeldOutLoss | None,
) -> None:
    """Make the steps that are left; only a run that can go on is another than before by its configuration."""
    with Checkpoints(training.run) as checkpoints:
        state = _resume_or_begin(training, checkpoints, data, done)
        with metering(training.config, training.run, done=done, progress=progress) as meter:
            if processes.is_first():
                run_folder.renew(training.run, training.config)
            _train(training, state, data, done, meter, checkpoints, stop, held_out)


def _resume_or_begin(training: Training, checkpoints: Checkpoints, data: Any, done: int) -> State:
    """The state after the steps that are done; the data and the metrics are set to where they stood then."""
    run = training.run
    if processes.is_first() and (run / DIVERGED).exists():
        before = (run / DIVERGED).read_text(encoding="utf-8", errors="replace").strip()
        training.tell(
            f"the training before ended at {before}; with the same configuration and data it ends there again"
        )
        (run / DIVERGED).unlink()
    training.tell(f"going on from step {done:,}" if done else "making the first parameters")
    if done:
        return checkpoints.load(with_shardings(training.shapes, training.shardings), data)
    state = initial_state(training.config, training.initialise, training.shardings)
    if processes.is_first():
        (run / METRICS).unlink(missing_ok=True)  # of a training that was killed before its first checkpoint
    return state


def _train(
    training: Training,
    state: State,
    data: Any,
    done: int,
    meter: Meter,
    checkpoints: Checkpoints,
    stop: Callable[[int], bool],
    held_out: HeldOutLoss | None,
) -> None:
    """Make the steps that are left, with a checkpoint now and then, at the last one, and where `stop` says so."""
    config = training.config
    update = make_step(config, training.graph, training.tx, training.shardings)
    training.tell("compiling the training step")
    start = time.perf_counter()
    for step in range(done + 1, config.steps + 1):
        state, metrics = update(state, sharding.shard_batch(next(data), training.mesh))
        meter.take(step, metrics)
        if step == done + 1:
            training.tell(f"compiled in {outlook.span(time.perf_counter() - start)}; step {step:,} is running")
            jax.block_until_ready(metrics)  # before it there is nothing to stop for
        if held_out is not None and (step % config.eval_every == 0 or step == config.steps):
            meter.measure(functools.partial(held_out, state))
        stopped = stop(step) and step < config.steps
        if stopped or step % config.checkpoint_every == 0 or step == config.steps:
            # A checkpoint must not contain NaN: the run could never go on from it. The loss of this step is that of the
            # parameters before its update, so it does not show what the update did.
            meter.flush()
            if not agreement.all_processes(_all_finite(state)):  # all end, or all go on to save
                meter.diverge(f"step {step}: the parameters or the optimiser's moments are not finite after it")
            checkpoints.save(step, state, data)
        if stopped:
            raise errors.Stopped(
                f"{training.run}: stopped at step {step} of {config.steps}; the same command goes on from there"
            )


def _all_finite(state: State) -> bool:
    """True if this process's part of the state is finite; in NumPy, as a program of so many arrays takes seconds to compile."""
    arrays = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.inexact)]
    shards = [shard for array in arrays for shard in array.addressable_shards if shard.replica_id == 0]
    return all(np.isfinite(shard.data).all() for shard in shards)


def _check_tasks(config: Config) -> None:
    known = TASKS[config.model.causal]
    for _, part in config.data.parts().values():
        if part.task not in known:
            what = "a decoder" if config.model.causal else "an encoder (config.model.causal=False)"
            raise UserError(
                f"{what} is not trained on config.data.task={part.task!r}; give {' or '.join(known)}, or set "
                f"--config.model.causal={not config.model.causal}"
            )
