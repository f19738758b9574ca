"""One key head after another, each with its query heads, so local heads do not wait for long-range heads.

Operands are read and results written in place, one head at a time: a transposed copy of all of them would take more memory
than the tiles.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bam_jax.attention.cpu.blocks import Blocks
from bam_jax.attention.logits.scoring import Differentiable, Gradients, Residuals, Scoring
from bam_jax.biases.base import head_axes
from bam_jax.system.axes import varying


def forward(run: Callable, q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    """`run(q, k, v, scoring) -> (out, lse)` for each key head and its group of query heads."""
    heads = _Heads(scoring, k.shape[2])

    def one(n: Array) -> list[Array]:
        of_head = heads.take([q, k, v], [2, 2, 2], n)
        return list(run(*of_head, heads.scoring(n)))

    out, lse = heads.map(one, [2, 1])
    return out, lse


def decode(run: Callable, blocks: Blocks) -> tuple[Array, Array]:
    """`run(blocks) -> (out, lse)` for the blocks of each key head, whose keys and values are read in place."""
    heads = _Heads(blocks.scoring, blocks.kv_heads)

    def one(n: Array) -> list[Array]:
        (q,) = heads.take([blocks.q], [2], n)
        return list(run(blocks.of_head(n, q, heads.scoring(n))))

    out, lse = heads.map(one, [2, 1])
    return out, lse


def backward(run: Callable, residuals: Residuals, d_out: Array) -> Gradients:
    """`run(residuals, d_out) -> Gradients` for each key head and its group."""
    scoring = residuals.scoring
    heads = _Heads(scoring, residuals.k.shape[2])

    def one(n: Array) -> list[Array]:
        whole = [residuals.q, residuals.k, residuals.v, residuals.out, d_out]
        q, k, v, out, d_out_of_head = heads.take(whole, [2] * len(whole), n)
        of_rows = lambda x: heads.take([x], [1], n)[0]
        lse, d_lse = jax.tree.map(of_rows, (residuals.lse, residuals.d_lse))
        of_head = Residuals(q, k, v, heads.scoring(n), out, lse, residuals.wanted, d_lse)
        dq, dk, dv, d_scoring = run(of_head, d_out_of_head)
        return [dq, dk, dv, *jax.tree.leaves(Differentiable.of(d_scoring))]

    dq, dk, dv, *leaves = heads.map(one, [2, 2, 2, *heads.axes])
    return Gradients(dq, dk, dv, heads.from_leaves(leaves).cotangent(scoring))


class _Heads:
    """The key heads of a scoring one by one, and the head axis of each differentiable part (None: shared)."""

    def __init__(self, scoring: Scoring, count: int):
        self.whole, self.count = scoring, count
        whole = Differentiable.of(scoring)
        self._leaves, self._structure = jax.tree.flatten(whole)
        of_bias = jax.tree.leaves(head_axes(whole.bias), is_leaf=lambda x: x is None)
        of_rest = [1 if x.shape[1] > 1 else None for x in self._leaves[len(of_bias) :]]
        self.axes: list[int | None] = [*of_bias, *of_rest]

    def take(self, arrays: list[Array], axes: list[int | None], n: Array) -> list[Array]:
        """The part of each array that belongs to key head n and its group; the whole array if it has no head axis."""

        def slice_of(x: Array, axis: int | None) -> Array:
            if axis is None:
                return x
            size = x.shape[axis] // self.count
            return jax.lax.dynamic_slice_in_dim(x, n * size, size, axis)

        return [slice_of(x, axis) for x, axis in zip(arrays, axes, strict=True)]

    def map(self, one: Callable, axes: list[int | None]) -> list[Array]:
        """The results of `one(n)` for all key heads, concatenated along their head axes; summed if there is none."""

        def zeros(x: Any, axis: int | None) -> Array:
            shape = [size * (self.count if at == axis else 1) for at, size in enumerate(x.shape)]
            return jnp.zeros(shape, x.dtype)

        def add(total: Array, part: Array, axis: int | None, n: Array) -> Array:
            if axis is None:
                return total + part
            return jax.lax.dynamic_update_slice_in_dim(total, part, n * part.shape[axis], axis)

        def body(n: Array, totals: list[Array]) -> list[Array]:
            return [add(total, part, axis, n) for total, part, axis in zip(totals, one(n), axes, strict=True)]

        start = [zeros(x, axis) for x, axis in zip(jax.eval_shape(one, jnp.int32(0)), axes, strict=True)]
        return jax.lax.fori_loop(0, self.count, body, varying(start, self.whole))

    def from_leaves(self, leaves: list[Array]) -> Differentiable:
        """The differentiable parts from their leaves."""
        return jax.tree.unflatten(self._structure, leaves)

    def scoring(self, n: Array) -> Scoring:
        """The scoring of the group of key head n."""
        of_head = self.from_leaves(self.take(self._leaves, self.axes, n)).within(self.whole)
        summary, structure = jax.tree.flatten(self.whole.keys.summary)
        axes = [1 if x.ndim == 3 and x.shape[1] > 1 else None for x in summary]
        own = jax.tree.unflatten(structure, self.take(summary, axes, n))
        dropout = jax.tree.map(lambda seeds: self.take([seeds], [1], n)[0], self.whole.dropout)
        return dataclasses.replace(of_head, keys=dataclasses.replace(of_head.keys, summary=own), dropout=dropout)
