"""The shortest possible time of a step: what it computes, reads and sends, at the rates of the chip.

XLA's cost analysis counts the body of a loop once, but layers and micro-batches are loops, so these counts come from the model.
"""

import dataclasses
import math

from bam_jax.config import Config
from bam_jax.models import counts
from bam_jax.parallel.sharding import CONTEXT, DATA, FSDP, TENSOR
from bam_jax.preflight.chips import Slice
from bam_jax.preflight.step import Step, held


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one device in a step."""

    operations: float  # floating-point operations, a third more if products are recomputed
    read: float  # bytes that it reads from and writes to its memory
    sent: float  # bytes that it sends to others

    def seconds(self, where: Slice, utilisation: float) -> dict[str, float] | None:
        """Seconds of each kind of work if there were no other; None for a CPU."""
        if where.chip is None:
            return None
        return {
            "compute": self.operations / (where.peak * utilisation),
            "memory": self.read / where.chip.bandwidth,
            "links": self.sent / where.chip.links,  # over all ports at once
        }


def work(step: Step) -> Work:
    """A rough estimate of the work of one device."""
    operations = counts.training_operations(step.config) / step.config.steps * (4 / 3 if _twice(step.config) else 1)
    return Work(operations / step.mesh.size, _read(step), _sent(step))


def _twice(config: Config) -> bool:
    """Whether the products of a layer are recomputed in the backward pass."""
    return config.model.remat and config.model.remat_keep == "nothing"


def _tokens(step: Step) -> float:
    """Tokens of a micro-batch on one device, times layers."""
    config, size = step.config, step.mesh.shape
    rows = config.sequences / config.optimizer.accumulate / (size[DATA] * size[FSDP])
    return rows * config.context / size[CONTEXT] * config.model.layers


def _read(step: Step) -> float:
    """Bytes of whole weights in every pass of every micro-batch, of activations written and read, and of seven optimiser arrays.

    The passes are one forward, another one if products are recomputed, and two backward. The activations of a layer are
    12 E + 8 F / t numbers per token and pass, with widths E and F, and t devices along tensor. Attention's tiles, and what the
    compiler does not fuse, come on top.
    """
    config, size = step.config, step.mesh.shape
    weights = held(step.state["model"]["params"])
    passes = 4 if _twice(config) else 3
    widths = 12 * config.model.width + 8 * config.model.hidden / size[TENSOR]
    activations = 2 * step.item * _tokens(step) * widths
    whole = weights * size[FSDP] / 4 * step.item
    return config.optimizer.accumulate * passes * (whole + activations) + 7 * weights


def _sent(step: Step) -> float:
    """Bytes sent in gathers and sums over the axes of the mesh.

    The device has P of the layers' parameters, `a` bytes each in products, and an axis has n devices. The device sends
    3 a P (n - 1) bytes to gather them over fsdp, forward and backward, and to scatter their gradients, which are also summed over
    data and context. Embedding and head are gathered in the same way, but their gradients are summed whole over all three axes.
    It also sends the sums of every layer over tensor and, around the ring of context, keys, values and their float32 gradients.
    """
    config, size, item = step.config, step.mesh.shape, step.item
    params = step.state["model"]["params"]
    part = held(params["layers"]) / 4
    vocab, width = params["embed"]["embedding"].shape
    head = vocab * width / size[TENSOR]
    again = 3 if _twice(config) else 2
    rows = _tokens(step) * config.model.width * item
    model = config.model
    keys = _tokens(step) * item * (model.kv_heads or model.heads) * model.head_width / size[TENSOR]
    others = lambda n: (n - 1) / n  # the share of an array that each of n devices sends, once around a ring
    each = [
        3 * item * part * (size[FSDP] - 1),
        2 * item * part * others(size[DATA] * size[CONTEXT]),
        2 * item * head * others(size[FSDP]),
        2 * (4 + item) * head * others(size[DATA] * size[FSDP] * size[CONTEXT]),
        again * 2 * 2 * rows * others(size[TENSOR]),
        (2 * again + 2 * 4 / item) * keys * size[CONTEXT] if size[CONTEXT] > 1 else 0,
    ]
    return config.optimizer.accumulate * math.fsum(each)
