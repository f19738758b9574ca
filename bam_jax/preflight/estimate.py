"""The time of a step at best: what it computes, reads and sends, by the rates of the chip."""

import dataclasses
import math
from typing import Any

from bam_jax.config import Config
from bam_jax.parallel.sharding import CONTEXT, DATA, FSDP, TENSOR
from bam_jax.preflight import memory
from bam_jax.preflight.chips import Slice


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of one step, were there nothing else to do than each of these.

    Args:
        compute: at the stated utilisation of the peak.
        memory: for what is read and written there.
        links: for what is sent to other chips, over all ports at once, nothing of it hidden behind the others.
    """

    compute: float
    memory: float
    links: float

    @property
    def step(self) -> float:
        """Seconds of a step in which all three go on at once: the longest of them."""
        return max(self.compute, self.memory, self.links)

    @property
    def bound(self) -> str:
        """The name of the one that takes longest."""
        return max(dataclasses.asdict(self).items(), key=lambda item: item[1])[0]


def traffic(config: Config, state: Any, share: memory.Share, fsdp: int) -> float:
    """Bytes that one device reads from and writes to its memory in a step, roughly.

    In every micro-batch the weights, whole, a pass: one forward, one again under remat, two back; and each layer's activations
    written and read, a (12 E + 8 F / t) a token and pass. Once the optimiser's seven arrays. Attention's tiles and what the
    compiler does not fuse come on top.

    Args:
        config: the run's.
        state: shapes of the training state with shardings.
        share: what the device has of a micro-batch.
        fsdp: devices that share the parameters.
    """
    weights = memory.held(state["model"]["params"])
    passes = 4 if config.model.remat else 3
    tokens = share.rows * share.tokens * config.model.layers
    activations = 2 * share.item * tokens * (12 * config.model.width + 8 * config.model.hidden / share.tensor)
    whole = weights * fsdp / 4 * share.item
    return config.optimizer.accumulate * passes * (whole + activations) + 7 * weights


def sent(config: Config, state: Any, share: memory.Share, mesh: dict[str, int]) -> float:
    """Bytes that one device sends in a step, as a sum: no compiler is asked.

    With P numbers of the layers' parameters on the device, of a bytes each in products, and n(axis) devices along an axis:
    3 a P (n - 1) to gather them over fsdp, forward and back, and to scatter their gradients, which are summed over data and
    context; the same of embedding and head, but for their gradients, which are summed whole over all three; the sums of every
    layer over tensor; keys and values, and their gradients in float32, round the ring of context.

    Args:
        config: the run's.
        state: shapes of the training state with shardings.
        share: what the device has of a micro-batch.
        mesh: sizes of its axes.
    """
    params = state["model"]["params"]
    part = memory.held(params["layers"]) / 4
    vocab, width = params["embed"]["embedding"].shape
    head = vocab * width / share.tensor
    again = 3 if config.model.remat else 2
    rows = share.rows * share.tokens * config.model.width * share.item * config.model.layers
    keys = rows * (config.model.kv_heads or config.model.heads) / config.model.heads / share.tensor
    others = lambda n: (n - 1) / n  # what a ring of n devices sends of an array, once round
    each = [
        3 * share.item * part * (mesh[FSDP] - 1),
        2 * share.item * part * others(mesh[DATA] * mesh[CONTEXT]),
        2 * share.item * head * others(mesh[FSDP]),
        2 * (4 + share.item) * head * others(mesh[DATA] * mesh[FSDP] * mesh[CONTEXT]),
        again * 2 * 2 * rows * others(mesh[TENSOR]),
        (2 * again + 2 * 4 / share.item) * keys * mesh[CONTEXT] if mesh[CONTEXT] > 1 else 0,
    ]
    return config.optimizer.accumulate * math.fsum(each)


def estimate(where: Slice, operations: float, read: float, sent: float, utilisation: float) -> StepTime | None:
    """Seconds of one step on a slice; None for a CPU.

    Args:
        where: the slice.
        operations: of all devices together.
        read: bytes that one device reads and writes, of `traffic`.
        sent: bytes that one device sends.
        utilisation: share of the peak that matrix products reach, 0 to 1.
    """
    if where.chip is None:
        return None
    return StepTime(
        compute=operations / (len(where.devices) * where.peak * utilisation),
        memory=read / where.chip.bandwidth,
        links=sent / where.chip.links,
    )
