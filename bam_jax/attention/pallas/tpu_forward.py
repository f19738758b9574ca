"""The TPU kernel of the forward pass: a block of queries in the lanes walks over the keys that it needs."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from bam_jax.attention.logits import tile
from bam_jax.attention.logits.scoring import FLOOR, HIDDEN
from bam_jax.attention.pallas import tpu_strips
from bam_jax.attention.pallas.tpu_grid import GridStep
from bam_jax.attention.pallas.tpu_layout import along_lanes, along_sublanes, key_pieces, multiply, take_piece
from bam_jax.biases import Bias


def forward_kernel(step: GridStep, q: Any, k: Any, v: Any, outputs: Any, top: Any, total: Any, sums: Any) -> None:
    """Add one tile to a running softmax.

    Args:
        q: [D, n].
        k, v: [D, m].
        outputs: out [D, n] and lse [1, n].
        top, total: [1, n], the largest logit so far, and the sum of exponents relative to it.
        sums: [D, n], values weighted by the same exponents.
    """
    out, lse = outputs

    @pl.when(step.first)
    def start() -> None:
        start_softmax(top, total, sums)

    @pl.when(step.needed)
    def compute() -> None:
        queries, bias = along_lanes(step.queries), step.bias()
        for piece in key_pieces(k.shape[1]):
            keys = along_sublanes(take_piece(step.keys, piece))
            scores = step.content.scores(multiply(k[:, piece], q, 0, 0))  # [keys, queries]
            logits, _ = tile.logits(scores, bias_of_piece(bias, piece), queries, keys)
            highest = jnp.maximum(top[...], logits.max(0, keepdims=True))
            weights = jnp.exp(logits - highest)
            # What was summed so far is relative to the old maximum. No exponent is ever above 1, and none overflows.
            shrink = jnp.exp(top[...] - highest)
            total[...] = total[...] * shrink + weights.sum(0, keepdims=True)
            sums[...] = sums[...] * shrink + multiply(v[:, piece], weights, 1, 0)
            top[...] = highest

    @pl.when(step.last)
    def finish() -> None:
        finish_softmax(out, lse, top[...], total[...], sums[...])


def bias_of_piece(bias: Bias, piece: slice) -> Bias:
    """Restrict the bias of a tile to a piece of its sublanes: a strip is rolled further, a formula is that of all."""
    return dataclasses.replace(bias, first=piece.start) if isinstance(bias, tpu_strips.StripBias) else bias


def start_softmax(top: Any, total: Any, sums: Any) -> None:
    """Set a running softmax's state before the first tile.

    The maximum starts above `HIDDEN`: where all keys of a tile are hidden their exponents are 0, and not 1.
    """
    top[...] = jnp.full_like(top, FLOOR)
    total[...] = jnp.zeros_like(total)
    sums[...] = jnp.zeros_like(sums)


def finish_softmax(out: Any, lse: Any, top: Array, total: Array, sums: Array) -> None:
    """Write the output and the log-normaliser after the last tile: top and total [1, n], sums [D, n]."""
    none = total == 0  # false for NaN, which stays
    whole = jnp.where(none, 1.0, total)
    out[...] = (sums * (1 / whole)).astype(out.dtype)  # one division for each query, not for each number
    lse[...] = jnp.where(none, HIDDEN, top + jnp.log(whole))
