"""The bytes that a device holds in a training step, by kind, as a sum: no compiler is asked."""

import dataclasses
import itertools
import math
from typing import Any

import jax

from bam_jax.config import Config
from bam_jax.parallel.sharding import CONTEXT, DATA, FSDP, TENSOR
from bam_jax.training import losses

KINDS = ("parameters", "optimizer", "batch", "gradients", "activations", "temporaries")


@dataclasses.dataclass(frozen=True)
class Share:
    """One device's share of a step.

    Args:
        rows: sequences of a micro-batch.
        tokens: of each of them.
        tensor: devices that share heads, the MLP's width and the vocabulary.
        ring: whether several devices share a text.
        fetched: whether parameters are cut, and gathered where they are used.
        item: bytes of a number in matrix products.
        tiles: whether arrays fill whole tiles: see `held`.
    """

    rows: float
    tokens: float
    tensor: int
    ring: bool
    fetched: bool
    item: int
    tiles: bool

    @classmethod
    def of(
        cls, config: Config, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh, *, item: int, tiles: bool
    ) -> "Share":
        """The share under a mesh, with matrix products of `item` bytes a number."""
        size = dict(mesh.shape)
        return cls(
            rows=config.sequences / config.optimizer.accumulate / (size[DATA] * size[FSDP]),
            tokens=config.context / size[CONTEXT],
            tensor=size[TENSOR],
            ring=size[CONTEXT] > 1,
            fetched=size[FSDP] > 1,
            item=item,
            tiles=tiles,
        )


def held(tree: Any, tiles: bool = False) -> int:
    """Bytes that one device holds of arrays, or of their shapes, with shardings.

    Args:
        tree: the arrays.
        tiles: whether each fills whole tiles of 8 x 128, as on TPUs: the two of its axes that lose least by it.
    """
    shapes = [(x.sharding.shard_shape(x.shape), x.dtype.itemsize) for x in jax.tree.leaves(tree)]
    return sum((_in_tiles(shape) if tiles else math.prod(shape)) * size for shape, size in shapes)


def _in_tiles(shape: tuple[int, ...]) -> int:
    """Numbers of an array that fills whole tiles.

    >>> _in_tiles((12, 12, 768)), _in_tiles((768,)), _in_tiles(())
    (147456, 1024, 128)
    """
    whole = lambda n, tile: math.ceil(n / tile) * tile
    rows = lambda n: min(8, 2 ** math.ceil(math.log2(n)))
    if len(shape) < 2:
        return whole(shape[0], 1024 if shape[0] > 128 else 128) if shape else 128
    sizes = [
        math.prod(shape) // (shape[i] * shape[j]) * whole(shape[i], rows(shape[i])) * whole(shape[j], 128)
        for i, j in itertools.permutations(range(len(shape)), 2)
    ]
    return min(sizes)


def kinds(config: Config, state: Any, batch: Any, share: Share) -> dict[str, float]:
    """Bytes of one device by kind, at the moment when they are most.

    Args:
        config: the run's.
        state: shapes of the training state with shardings: {'model': {'params', 'frozen'}, 'optimizer'}.
        batch: the same of a whole batch.
        share: what the device has of it.

    Returns:
        Bytes by `KINDS`. The first three are exact.
    """
    trees = {"parameters": state["model"], "optimizer": state["optimizer"], "batch": batch}
    kept = {kind: held(tree, share.tiles) for kind, tree in trees.items()}
    return kept | max(phases(config, state, share).values(), key=lambda phase: sum(phase.values()))


def phases(config: Config, state: Any, share: Share) -> dict[str, dict[str, float]]:
    """Bytes of one device by the last three of `KINDS`, in each of the phases of a step in one of which they are most.

    With N tokens and P parameters on the device, widths E and F, V entries of the vocabulary, t devices along tensor, and a
    bytes of a number in matrix products:

        the loss         3 a V E / t (the head in both orders, whole, and its gradient), a chunk of logits in float32, 3 a N E
        a layer, back    the larger of 7.5 a N F / t in the MLP and, in attention, 12 a N E / t or, round a ring, 28 a N E / t:
                         twelve arrays, and eight in float32; the weights of the layer, whole; 4 P and a V E / t, the gradients
        the embedding    (4 + 2 a) V E / t, its gradient in float32, and before and after it is summed over devices; a V E / t,
                         the table, whole; 4 P and a V E / t, the other gradients

    Until the embedding's phase there are the weights of layers in the products' type and what the layers keep for the backward
    pass: a N E each under remat; without it every operand of a product, and float32 inputs of norms. With micro-batches
    their gradients' sums, 4 P, and the table, whole, stay, and the head's gradient is cut as soon as it is made.

    Args:
        config, state, share: as in `kinds`.
    """
    params = state["model"]["params"]
    vocab, width = params["embed"]["embedding"].shape
    layers, others = held(params["layers"]), held({name: params[name] for name in params if name != "layers"})
    n, a = share.rows * share.tokens, share.item
    head = vocab * width / share.tensor
    several = config.optimizer.accumulate > 1
    sums = layers + others if several else 0
    copies = layers / 4 * a if a < 4 else 0
    kept = config.model.layers * n * _kept(config, share)
    logits = 4 * min(n, losses.chunk_rows(vocab // share.tensor)) * vocab / share.tensor
    late = 0 if several else a * head  # the head's gradient
    table = a * head if several else 0
    return {
        "the loss": {
            "gradients": sums + a * head,
            "activations": kept,
            "temporaries": copies + table + 2 * a * head + logits + 3 * a * n * width,
        },
        "a layer, back": {
            "gradients": sums + layers + late,
            "activations": kept,
            "temporaries": copies + table + _working(config, share),
        },
        "the embedding": {
            "gradients": sums + layers + late + (4 + 2 * a) * head,
            "activations": 0.0,
            "temporaries": a * head,
        },
    }


def _kept(config: Config, share: Share) -> float:
    """Bytes a token that a layer keeps for the backward pass."""
    width, hidden = config.model.width, config.model.hidden
    if config.model.remat:
        return share.item * width
    gated = 2 * width / share.tensor if config.model.gate else 0
    return share.item * (7 * width + gated + 6 * hidden / share.tensor) + 4 * 6 * width


def _working(config: Config, share: Share) -> float:
    """Bytes of the backward pass of one layer, what it computes again included, and its weights if they are gathered."""
    width, hidden = config.model.width, config.model.hidden
    wide, narrow = (7.5, 28 if share.ring else 12) if config.model.remat else (3, 28 if share.ring else 10)
    live = max(wide * hidden, narrow * width) / share.tensor
    key_heads = (config.model.kv_heads or config.model.heads) / config.model.heads
    matrices = (2 + 2 * key_heads + config.model.gate) * width**2 + (
        3 if config.model.family == "llama" else 2
    ) * width * hidden
    return share.item * (share.rows * share.tokens * live + (matrices / share.tensor if share.fetched else 0))
