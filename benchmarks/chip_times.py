"""Times of attention on this machine beside what is installed, as shares of the chip's ceilings; tiles; steps of training."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bam_jax import config as configs
from bam_jax.data import loader
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.models import counts
from benchmarks import attention_speed, speed, workloads
from benchmarks.attention_shapes import BIASES, AttentionShape
from benchmarks.chip_peaks import Ceilings
from benchmarks.contenders import OURS, PASSES, PreparedRun, preparers, tile_preparers

BACKWARD = 2.5
"""Operations of attention's backward pass, in those of the forward pass: five products instead of two."""

SLOW = 2048
"""Tokens above which an accelerator times its kernels alone of ours: what stands in for them would take most of the time."""


def attention_operations(shape: AttentionShape, which: str) -> float:
    """Count the floating-point operations of the products, over the pairs that a causal mask lets through.

    What is left out because its weight is negligible counts as well: that is the work that was asked for.

    Args:
        shape: of the attention.
        which: of `PASSES`.
    """
    pairs = shape.queries * (shape.length - (shape.queries - 1) / 2)
    forward = 4 * shape.batch * shape.heads * shape.width * pairs
    return forward * (1 if which == PASSES[0] else 1 + BACKWARD)


def attention_bytes(shape: AttentionShape, which: str) -> float:
    """Count the fewest bytes to move: every operand read once and every result written once.

    Args:
        shape: of the attention.
        which: of `PASSES`.
    """
    size = {"float32": 4, "bfloat16": 2}[shape.dtype]
    tokens = 2 * (shape.queries + shape.length) * (1 if which == PASSES[0] else 2)  # q and out, k and v
    return float(tokens * shape.batch * shape.heads * shape.width * size)


def time_attention(
    shape: AttentionShape, which: str, ceilings: Ceilings, *, repetitions: int, memory: float
) -> dict[str, Any]:
    """Time every contender on one shape: this package's attention, and what is installed beside it.

    Args:
        shape: what all compute.
        which: of `PASSES`.
        ceilings: of the chip.
        repetitions: of all of them, one after another.
        memory: bytes of temporaries above which one does not run.

    Returns:
        The outcome; `contenders` are records as of `attention_speed.measure`, with shares of the ceilings.
    """
    records = attention_speed.measure(shape, which, _entrants(shape), repetitions, memory)
    return _outcome(shape, which, records, ceilings)


def _entrants(shape: AttentionShape) -> dict[str, Callable[[AttentionShape, str], PreparedRun]]:
    """All that may run here; of biases beside the first one, this package's own kernels and the table in memory."""
    platform = jax.default_backend()
    own, entrants = OURS[platform][0], preparers(["exact", "off"])
    if shape.bias != AttentionShape.bias:
        return {name: entrants[name] for name in (f"ours {own}, exact", "dense")}
    if shape.length > SLOW and platform != "cpu":
        return {name: make for name, make in entrants.items() if not name.startswith("ours") or own in name}
    return entrants


def time_tiles(
    shape: AttentionShape,
    which: str,
    sizes: Sequence[tuple[int, int]],
    ceilings: Ceilings,
    *,
    repetitions: int,
    memory: float,
) -> dict[str, Any]:
    """Time this package's attention with tiles of several sizes, and with those that it chooses itself.

    Args:
        shape, which, ceilings, repetitions, memory: see `time_attention`.
        sizes: queries and keys of tiles.

    Returns:
        As `time_attention`; `best` is the fastest tile, and `gain` the share of the time that it saves.
    """
    own = OURS[jax.default_backend()][0]
    records = attention_speed.measure(shape, which, tile_preparers(own, [None, *sizes]), repetitions, memory)
    outcome = _outcome(shape, which, records, ceilings)
    default, *others = outcome["contenders"]
    timed = [(record["seconds"], size) for record, size in zip(others, sizes, strict=True) if "seconds" in record]
    if "seconds" in default and timed:
        seconds, best = min(timed)
        gain = 1 - seconds / default["seconds"]
        outcome |= {"best": list(best), "gain": gain, "backend": own}
        than = "less" if gain > 0 else "more"
        outcome["summary"] = f"{best[0]} x {best[1]} takes {abs(gain):.1%} {than} than the default"
    return outcome


def _outcome(shape: AttentionShape, which: str, records: list[dict], ceilings: Ceilings) -> dict[str, Any]:
    operations, moved = attention_operations(shape, which), attention_bytes(shape, which)
    for record in records:
        if "seconds" in record:
            record["peak_share"] = operations / record["seconds"] / ceilings.operations
            record["bandwidth_share"] = moved / record["seconds"] / ceilings.bandwidth
    ours = records[0]
    outcome = {"status": "measured", "pass": which, **dataclasses.asdict(shape)}
    outcome |= {"operations": operations, "bytes": moved, "contenders": records}
    if ours["reason"] is not None:
        return outcome | {"status": "failed", "reason": f"{ours['contender']}: {ours['reason']}"}
    others = [record for record in records if "ours" not in record["contender"] and "seconds" in record]
    beside = min(others, key=lambda record: record["seconds"], default=None)
    said = f", {beside['contender']} {beside['seconds'] * 1e3:.3g} ms" if beside else ""
    share = max(ours["peak_share"], ours["bandwidth_share"])
    return outcome | {"summary": f"{ours['seconds'] * 1e3:.3g} ms, {share:.1%} of the ceiling{said}"}


def shapes_of_lengths(lengths: Sequence[int], tokens: int, dtype: str) -> list[AttentionShape]:
    """The shapes of a curve over lengths: short rows come in batches, so that a chip is full.

    Args:
        lengths: of rows.
        tokens: of a batch, at least; one row of what is longer.
        dtype: of q, k and v.
    """
    return [AttentionShape(n, n, batch=max(1, tokens // n), dtype=dtype) for n in lengths]


def shapes_of_biases(length: int, tokens: int, dtype: str) -> list[AttentionShape]:
    """The shapes of one length, with every bias but the generalised Gaussian, which the curve over lengths has.

    Args:
        length, tokens, dtype: see `shapes_of_lengths`.
    """
    (shape,) = shapes_of_lengths([length], tokens, dtype)
    return [dataclasses.replace(shape, bias=name) for name in BIASES if name != shape.bias]


def time_step(file: Path, changes: Mapping[str, Any], ceilings: Ceilings, *, calls: int) -> dict[str, Any]:
    """Time optimiser steps of a model with random parameters, on a batch of the text that it is trained on.

    Random tokens may be less work: where a few tokens make up most of a text, many rows add to the gradients of a few
    embeddings.

    Args:
        file: its configuration, in which a batch is one micro-batch.
        changes: of it.
        ceilings: of the chip.
        calls: timed steps, after one that is not.

    Returns:
        The outcome: tokens a second, and the share of the chip's peak that the model's operations take (MFU).
    """
    config = configs.load(file, changes)
    contender = workloads.Contender(config)
    tokenizer = find_tokenizer(config.data.tokenizer, config.data.sources())
    with contextlib.closing(loader.batches(config, tokenizer)) as batches:
        work = workloads.training(contender, config.context, next(batches))
    taken = speed.race({"": work}, rounds=1, calls=calls)[""]
    seconds = sorted(taken.tolist())[len(taken) // 2]
    rate = work.work / seconds
    share = rate * operations_per_token(config) / ceilings.operations
    return {
        "status": "measured",
        "encoding": config.encoding,
        "ssmax": config.ssmax,
        "tokens_per_step": work.work,
        "tokens_per_second": rate,
        "seconds_per_step": seconds,
        "utilisation": share,
        "summary": f"{rate:,.0f} tokens/s, {share:.1%} of the peak",
    }


def operations_per_token(config: configs.Config) -> float:
    """Count a training step's floating-point operations for each token, nothing that is computed again among them.

    Args:
        config: of the model.
    """
    step = counts.step_operations(config, counts.parameters(config))
    return step / (config.sequences * config.context)
