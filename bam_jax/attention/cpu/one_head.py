"""One key head after another: each with its query heads, so that a local head does not wait for one that looks far.

Operands are read and results written in place, a head at a time: a transposed copy of all would take more memory than the
tiles do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bam_jax.attention.logits.scoring import Scoring, cotangent, split
from bam_jax.biases.base import head_axes
from bam_jax.system.axes import varying


def forward(run: Callable, q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    """`run(q, k, v, scoring) -> (out, lse)` for each key head and its group of query heads."""
    parts = _Parts(scoring, k.shape[2])
    one = lambda n: run(*parts.take((q, k, v), (2, 2, 2), n), parts.scoring(n))
    out, lse = parts.over_heads(one, (2, 1))
    return out, lse


def backward(
    run: Callable, q: Array, k: Array, v: Array, scoring: Scoring, out: Array, lse: Array, d_out: Array
) -> tuple[Array, Array, Array, Scoring]:
    """`run(q, k, v, scoring, out, lse, d_out) -> (dq, dk, dv, d_scoring)` for each key head and its group."""
    parts = _Parts(scoring, k.shape[2])

    def one(n: Array) -> list[Array]:
        rows = parts.take((q, k, v), (2, 2, 2), n)
        dq, dk, dv, d_scoring = run(*rows, parts.scoring(n), *parts.take((out, lse, d_out), (2, 1, 2), n))
        return [dq, dk, dv, *jax.tree.leaves(split(d_scoring)[0])]

    dq, dk, dv, *leaves = parts.over_heads(one, (2, 2, 2, *parts.axes))
    return dq, dk, dv, parts.cotangent(leaves)


class _Parts:
    """The differentiable parts of a scoring, and which axis of each belongs to the heads (None: common to all)."""

    def __init__(self, scoring: Scoring, heads: int):
        self.heads, self.whole = heads, scoring
        parts, self._put_back = split(scoring)
        bias, *rest = parts
        axes = jax.tree.leaves(head_axes(bias), is_leaf=lambda x: x is None)
        axes += [1 if x.shape[1] > 1 else None for x in jax.tree.leaves(rest)]
        self._leaves, self._tree = jax.tree.flatten(parts)
        self.axes: list[int | None] = axes

    def take(self, arrays: Sequence[Array], axes: Sequence[int | None], n: Array) -> list[Array]:
        """What belongs to key head n and its group."""

        def of(x: Array, axis: int | None) -> Array:
            if axis is None:
                return x
            size = x.shape[axis] // self.heads
            return jax.lax.dynamic_slice_in_dim(x, n * size, size, axis)

        return [of(x, axis) for x, axis in zip(arrays, axes, strict=True)]

    def over_heads(self, one: Callable, axes: Sequence[int | None]) -> list[Array]:
        """The results of `one(n)` of every key head side by side along their axes; summed where there is none."""

        def zeros(x: Any, axis: int | None) -> Array:
            shape = [size * (self.heads if at == axis else 1) for at, size in enumerate(x.shape)]
            return jnp.zeros(shape, x.dtype)

        def add(total: Array, part: Array, axis: int | None, n: Array) -> Array:
            if axis is None:
                return total + part
            return jax.lax.dynamic_update_slice_in_dim(total, part, n * part.shape[axis], axis)

        def body(n: Array, totals: list[Array]) -> list[Array]:
            return [add(*each, n) for each in zip(totals, one(n), axes, strict=True)]

        start = [zeros(x, axis) for x, axis in zip(jax.eval_shape(one, jnp.int32(0)), axes, strict=True)]
        return jax.lax.fori_loop(0, self.heads, body, varying(start, self.whole))

    def scoring(self, n: Array) -> Scoring:
        """The scoring of the group of key head n."""
        return self._put_back(jax.tree.unflatten(self._tree, self.take(self._leaves, self.axes, n)))

    def cotangent(self, leaves: list[Array]) -> Scoring:
        """The whole scoring's cotangent from the results of `over_heads`."""
        return cotangent(self.whole, jax.tree.unflatten(self._tree, leaves))
