"""Training, from the newest checkpoint of a run to its last step."""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.config.sections import NEXT_TOKEN
from bam_jax.data import loader
from bam_jax.data.prepared import copies
from bam_jax.data.tokenizers.copies import find_tokenizer, load_tokenizer
from bam_jax.models import counts, pattern
from bam_jax.parallel import agreement, processes, sharding
from bam_jax.system import console, errors, resources
from bam_jax.system.errors import UserError
from bam_jax.training import bundled, duration, remote, run_folder
from bam_jax.training.checkpoint import Checkpoints, trained_data, verify
from bam_jax.training.held_out import held_out_loss
from bam_jax.training.metrics import metering, read_metrics
from bam_jax.training.run_folder import CONFIG, DIVERGED, METRICS
from bam_jax.training.step import (
    State,
    define_training,
    initial_state,
    make_gradient,
    make_step,
    state_shardings,
    with_shardings,
)

DECODER_TASKS, ENCODER_TASKS = NEXT_TOKEN, ("masked", "triplets")


def train(
    config: Config,
    workdir: str | os.PathLike,
    *,
    progress: bool | None = None,
    longer: bool = False,
    coordinator: str = "",
    count: int = 0,
    process: int | None = None,
) -> None:
    """`fit` as a command: joins the other processes of the job, stops at signals, and prints how the run ended."""
    with processes.joined(coordinator, count, process) as end:
        with processes.stopping(end) as stop, remote.training_in(workdir) as (run, bucket):
            finished = processes.is_first() and run_folder.latest_step(run) == config.steps
            records = _fit(config, run, bucket, progress=progress, longer=longer, stop=stop)
            trained_on = run_folder.latest_checkpoint(run)
        if not processes.is_first():
            return
        workdir = errors.aliased(str(run))
        last = records[-1] if records else {}
        names = ("loss", "loss"), ("held_out_loss", "held-out loss")
        losses = ", ".join(f"{text} {last[name]:.4g}" for name, text in names if name in last)
        if losses and last["step"] < config.steps:
            losses += f" (of step {last['step']}, the last in its metrics)"
        result = f"finished at step {config.steps}{': ' if losses else ''}{losses}"
        if finished:
            remedy = f"--config.start={workdir} trains another run from it"
            if trained_on:
                remedy = f"a larger --config.steps trains it longer, {remedy}"
            result = f"nothing to do, {result}; {remedy}"
        print(f"{workdir}: {result}")


def fit(
    config: Config,
    workdir: str | os.PathLike,
    *,
    progress: bool | None = None,
    longer: bool = False,
    stop: Callable[[int], bool] = lambda step: False,
) -> list[dict[str, Any]]:
    """Train to the end, from the newest checkpoint in `workdir` if there is one.

    Args:
        workdir: the run's folder, here or in a bucket; made if it does not exist. `run_folder` lists its files.
        progress: whether to show a progress bar and messages; None: a bar on a terminal, a line a minute elsewhere.
        longer: whether a run with fewer steps may be extended to those of `config`.
        stop: called after every step; if true, a checkpoint of that step is saved and the run stops. See `processes.stopping`.

    Returns:
        The records of metrics.jsonl; see `metrics.StepMetrics`.

    Raises:
        UserError: the configuration or the folder is invalid, processes differ, or the loss or gradient is not finite.
        errors.Stopped: `stop` returned true.
    """
    with remote.training_in(workdir) as (run, bucket):
        return _fit(config, run, bucket, progress=progress, longer=longer, stop=stop)


def _fit(
    config: Config,
    run: Path,
    bucket: remote.RemoteRun | None,
    *,
    progress: bool | None,
    longer: bool,
    stop: Callable[[int], bool],
) -> list[dict[str, Any]]:
    """`fit` in a local folder; `bucket` is the run it is a copy of, if any."""
    begun = time.perf_counter()
    # Check the configuration and the folder before anything is printed, and before the data are read.
    resources.keep_freed_memory()
    differ = "the processes have different configurations; give all of them the same command"
    agreement.check_same(configs.to_json(config), differ)
    first = processes.is_first()
    trained_on = trained_data(run)
    if (run / CONFIG).exists():
        # The data may have moved; whether they are the same is known once they are read.
        run_folder.check_configuration(run, config, longer, moved=trained_on is not None)
    elif first:
        run_folder.check_empty(run)
    mesh = sharding.make_mesh(config.mesh)
    sharding.check(config, mesh)
    _check_tasks(config.model.causal, [part.task for _, part in config.data.parts().values()])
    host, hosts = sharding.host_share(mesh)
    latest = run_folder.latest_step(run)
    verbose = first and progress is not False and latest != config.steps

    def log(text: str) -> None:
        if verbose:
            console.log(f"{run.name}: {text}")

    with jax.set_mesh(mesh), contextlib.ExitStack() as stack:
        # The tokenizer, and the shapes of the model and the optimiser.
        tokenizer = find_tokenizer(config.data.tokenizer, map(copies.local, config.data.sources()))
        before_start = None
        if config.start and not latest:
            # In another vocabulary, ids would mean other words, even if the shapes are the same.
            start = bundled.find(config.start)
            before_start = run_folder.read_config(start)
            start_hash = load_tokenizer(start, before_start.data.tokenizer).hash
            tokenizer.check(start_hash, f"config.start={config.start}")
        graph, initialise, tx = define_training(config, run_folder.vocabulary_size(config, tokenizer))
        shapes = jax.eval_shape(initialise)
        shardings = state_shardings(shapes, tx, mesh)
        devices = mesh.devices.flatten().tolist()
        _check_memory(config, shapes, devices)
        known = counts.parameters_of(shapes["model"])
        if verbose:
            log(f"encoding {pattern.describe(config)}")
            if before_start is not None:
                theirs, ours = (_encoding(each) for each in (before_start, config))
                if theirs != ours:  # many encodings have the same parameters, or none
                    log(f"config.start={config.start} has encoding={theirs}; it goes on with {ours}")
            for line in duration.describe(config, known, devices, latest):
                log(line)

        # The data.
        log("reading the data")
        batches = loader.batches(config, tokenizer, host=host, hosts=hosts, saves=first, log=log)
        data = stack.enter_context(contextlib.closing(batches))
        differ = "the processes read different documents; give all of them the same copy of config.data"
        agreement.check_same(str(data.data), differ)
        gradient_of = make_gradient(config, graph)
        held_out = held_out_loss(config, tokenizer, gradient_of, mesh) if config.eval_every else None

        # The run's folder. It is claimed, and created, after all other checks, so that a mistake leaves no folder behind.
        if first:
            claim = run_folder.claim(run, config, tokenizer, longer=longer, moved=trained_on == data.data)
            steps_before = stack.enter_context(claim)
            if steps_before < config.steps:
                log(duration.describe_more(config, steps_before, run_folder.latest_step(run)))
        # The others wait here for process 0 and then see its files.
        done = agreement.from_first(run_folder.latest_step(run) if first else 0)
        if bucket is None and not (run / CONFIG).exists():
            raise UserError(f"workdir {run} of process 0 is not here; give a folder that all hosts share")
        if done >= config.steps:
            if first:
                verify(run, shapes["model"])
                run_folder.renew(run, config)
            return read_metrics(run)

        # The state after the steps that are done; the data and the metrics are set back to the same step.
        checkpoints = stack.enter_context(Checkpoints(run, bucket))
        if first and (run / DIVERGED).exists():
            before = (run / DIVERGED).read_text(encoding="utf-8", errors="replace").strip()
            log(f"the training before ended at {before}; with the same configuration and data it ends there again")
            (run / DIVERGED).unlink()
        log(f"going on from step {done:,}" if done else "making the first parameters")
        if done:
            state = checkpoints.load(with_shardings(shapes, shardings), data)
        else:
            state = initial_state(initialise, config.start, shardings)
            if first:
                (run / METRICS).unlink(missing_ok=True)  # left by a training killed before its first checkpoint
        peak, per_step = counts.peak(devices[0].device_kind), counts.step_operations(config, known)
        full_speed = None if peak is None else len(devices) * peak / per_step * config.sequences * config.context
        meter = stack.enter_context(metering(config, run, done=done, progress=progress, full_speed=full_speed))
        if first:
            run_folder.renew(run, config)  # only now: a run that cannot resume keeps its configuration

        # The steps.
        update = make_step(config, graph, tx, shardings)
        profiled, trace = config.profiled(), stack.enter_context(contextlib.ExitStack())
        log("compiling the training step")
        compiling = time.perf_counter()
        for step in range(done + 1, config.steps + 1):
            last = step == config.steps
            if bucket is not None:
                bucket.check()
            if step in profiled and step in (profiled[0], done + 1):
                trace.enter_context(jax.profiler.trace(run / "profile"))
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                state, metrics = update(state, sharding.shard_batch(next(data), mesh))
            if profiled and step == profiled[-1]:
                jax.block_until_ready(metrics)
                trace.close()
                log(f"wrote a trace of steps up to {step:,} to {run / 'profile'}")
            meter.take(step, metrics)
            if step == done + 1:
                log(f"compiled in {duration.span(time.perf_counter() - compiling)}; step {step:,} is running")
                jax.block_until_ready(metrics)  # before this step is done, a stop has nothing to save
            if held_out is not None and (last or step % config.eval_every == 0):
                meter.measure(functools.partial(held_out, state))
            stopped = stop(step) and not last
            if stopped or last or step % config.checkpoint_every == 0:
                # No run could resume from a checkpoint with NaN. The loss of this step belongs to the parameters before
                # its update, so it does not show what the update did.
                meter.flush()
                if not agreement.all_processes(_all_finite(state)):  # all end, or all save
                    meter.diverge(f"step {step}: the parameters or the optimiser's moments are not finite after it")
                checkpoints.save(step, state, data)
            if stopped:
                at = f"stopped at step {step} of {config.steps}"
                raise errors.Stopped(f"{run}: {at}; the same command goes on from there")
        spent = time.perf_counter() - begun
        if meter.productive:
            log(f"steps took {min(1.0, meter.productive / spent):.0%} of {duration.span(spent)} (goodput)")
    return read_metrics(run)


def _encoding(config: Config) -> str:
    """The encoding as a message names it."""
    options = ", ".join(f"{name}={value}" for name, value in config.encoding_options.items())
    return f"{config.encoding} ({options})" if options else config.encoding


def _check_memory(config: Config, shapes: Any, devices: Sequence[jax.Device]) -> None:
    """Refuse a state or a batch that exceeds the memory of all devices, before the compiler or the data reader fails."""
    state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    batch = config.sequences * config.context * 3 * 4  # tokens, targets and weights
    there = resources.total_bytes(devices)
    have = "the device has" if len(devices) == 1 else f"the {len(devices)} devices together have"
    parts = (state, "the parameters and the optimiser's state", "model"), (batch, "the tokens of a step", "batch")
    for needed, what, field in parts:
        if there is not None and needed > there:
            compared = f"{what} take {needed / 2**30:,.0f} GiB, and {have} {there / 2**30:,.0f} GiB"
            raise UserError(f"{compared}; give a smaller config.{field}, or more devices")


def _check_tasks(causal: bool, tasks: list[str]) -> None:
    what, known = ("a decoder", DECODER_TASKS) if causal else ("an encoder (config.model.causal=False)", ENCODER_TASKS)
    for task in tasks:
        if task not in known:
            remedy = f"give {' or '.join(known)}, or set --config.model.causal={not causal}"
            raise UserError(f"{what} is not trained on config.data.task={task!r}; {remedy}")


def _all_finite(state: State) -> bool:
    """True if this process's part of the state is finite."""
    # In NumPy: an XLA program of so many arrays takes seconds to compile.
    arrays = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.inexact)]
    shards = [shard for array in arrays for shard in array.addressable_shards if shard.replica_id == 0]
    return all(np.isfinite(shard.data).all() for shard in shards)
