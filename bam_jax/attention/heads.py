"""One key head after another: each with its query heads, so that a local head does not wait for one that looks far."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bam_jax.attention.scoring import Scoring, cotangent, split
from bam_jax.biases.base import head_axes


def forward(run: Callable, q: Array, k: Array, v: Array, scoring: Scoring) -> tuple[Array, Array]:
    """`run(q, k, v, scoring) -> (out, lse)` for each key head and its group of query heads."""
    parts = _Parts(scoring, k.shape[2])
    cut = (_cut(q, 2, parts.heads), _cut(k, 2, parts.heads), _cut(v, 2, parts.heads), parts.mapped)
    out, lse = jax.lax.map(lambda x: run(*x[:3], parts.scoring(x[3])), cut)
    return _join(out, 2), _join(lse, 1)


def backward(
    run: Callable, q: Array, k: Array, v: Array, scoring: Scoring, out: Array, lse: Array, d_out: Array
) -> tuple[Array, Array, Array, Scoring]:
    """`run(q, k, v, scoring, out, lse, d_out) -> (dq, dk, dv, d_scoring)` for each key head and its group."""
    parts = _Parts(scoring, k.shape[2])
    rows = [_cut(x, axis, parts.heads) for x, axis in ((q, 2), (k, 2), (v, 2), (out, 2), (lse, 1), (d_out, 2))]

    def one(x: tuple) -> tuple:
        (q, k, v, out, lse, d_out), mapped = x
        dq, dk, dv, d_scoring = run(q, k, v, parts.scoring(mapped), out, lse, d_out)
        return dq, dk, dv, jax.tree.leaves(split(d_scoring)[0])

    dq, dk, dv, leaves = jax.lax.map(one, (rows, parts.mapped))
    return _join(dq, 2), _join(dk, 2), _join(dv, 2), parts.cotangent(leaves)


class _Parts:
    """The differentiable parts of a scoring, cut into those of each key head and those common to all."""

    def __init__(self, scoring: Scoring, heads: int):
        self.heads, self.whole = heads, scoring
        parts, self._put_back = split(scoring)
        bias, *rest = parts
        axes = jax.tree.leaves(head_axes(bias), is_leaf=lambda x: x is None)
        axes += [1 if x.shape[1] > 1 else None for x in jax.tree.leaves(rest)]
        self._leaves, self._tree = jax.tree.flatten(parts)
        self._axes: list[int | None] = axes
        self.mapped = [_cut(x, a, heads) for x, a in zip(self._leaves, axes, strict=True) if a is not None]

    def scoring(self, mapped: list[Array]) -> Scoring:
        """The scoring of one key head's group."""
        own = iter(mapped)
        leaves = [x if a is None else next(own) for x, a in zip(self._leaves, self._axes, strict=True)]
        return self._put_back(jax.tree.unflatten(self._tree, leaves))

    def cotangent(self, leaves: list[Array]) -> Scoring:
        """The whole scoring's cotangent from those of all groups, stacked."""
        whole = [x.sum(0) if a is None else _join(x, a) for x, a in zip(leaves, self._axes, strict=True)]
        return cotangent(self.whole, jax.tree.unflatten(self._tree, whole))


def _cut(x: Any, axis: int, heads: int) -> Array:
    """[..., heads * G, ...] -> [heads, ..., G, ...]."""
    return jnp.moveaxis(x.reshape(*x.shape[:axis], heads, -1, *x.shape[axis + 1 :]), axis, 0)


def _join(x: Array, axis: int) -> Array:
    """[heads, ..., G, ...] -> [..., heads * G, ...]."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
