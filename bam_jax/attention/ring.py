"""Attention over a text that is cut along a mesh axis: keys travel round the ring of devices, queries stay."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bam_jax.attention import tiles
from bam_jax.attention.merge import merge
from bam_jax.attention.op import Backend
from bam_jax.attention.scoring import HIDDEN, Scoring, Tokens, cotangent, split
from bam_jax.attention.tiles import Tiling


@functools.cache
def ring(backend: Backend, axis: str) -> Backend:
    """The backend for shards of a text along a mesh axis, from one for whole texts; for use inside `jax.shard_map`.

    Each device holds the queries, keys, values and tokens of its part of the text, any part: positions say which. Keys and
    values go round with their tokens, each device computes its queries' attention to whichever are there, and the parts
    are merged by their normalisers. A step whose keys can be shown to hold no mass is not computed; the bytes still travel.

    Args:
      backend: a value of `BACKENDS`.
      axis: of the mesh that the text is cut along.

    Source: Liu et al. 2023, Ring Attention with Blockwise Transformers.
    """
    return Backend(
        functools.partial(_forward, backend, axis), functools.partial(_backward, backend, axis), backend.refuses
    )


def _forward(
    backend: Backend, axis: str, q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling
) -> tuple[Array, Array]:
    def here(k: Array, v: Array, keys: Tokens) -> tuple[Array, Array]:
        out, lse = backend.forward(q, k, v, dataclasses.replace(scoring, keys=keys), tiling)
        return out.swapaxes(1, 2).astype(lse.dtype), lse

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        (k, v, keys), (out, lse) = carry
        k, v, keys = moved = _on((k, v, keys), axis)
        needed = _needed(q, k, scoring, keys, lse, tiling, axis)
        nothing = lambda *_: (jnp.zeros_like(out), jnp.full_like(lse, HIDDEN))
        other, other_lse = jax.lax.cond(needed, here, nothing, k, v, keys)
        return (moved, merge(jnp.stack([out, other]), jnp.stack([lse, other_lse]), axis=0)), None

    first = (k, v, scoring.keys), here(k, v, scoring.keys)
    (_, (out, lse)), _ = jax.lax.scan(step, first, length=jax.lax.axis_size(axis) - 1)
    return out.swapaxes(1, 2), lse


def _backward(
    backend: Backend,
    axis: str,
    q: Array,
    k: Array,
    v: Array,
    scoring: Scoring,
    tiling: Tiling,
    wanted: tuple[bool, ...],
    out: Array,
    lse: Array,
    d_out: Array,
) -> tuple[Array, Array, Array, Scoring]:
    wide = functools.partial(jax.tree.map, lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)))

    def here(k: Array, v: Array, keys: Tokens) -> tuple[tuple, tuple]:
        """Gradients of what stays here, and of what travels."""
        part = dataclasses.replace(scoring, keys=keys)
        dq, dk, dv, d_scoring = backend.backward(q, k, v, part, tiling, wanted, out, lse, d_out)
        (d_bias, d_temperature, d_i, d_j), _ = split(d_scoring)
        return wide((dq, d_bias, d_temperature, d_i)), wide((dk, dv, d_j))

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        block, stays, travels = carry
        block, travels = _on((block, travels), axis)
        nothing = lambda *_: jax.tree.map(jnp.zeros_like, (stays, travels))
        needed = _needed(q, block[0], scoring, block[2], lse, tiling, axis)
        more = jax.lax.cond(needed, here, nothing, *block)
        stays, travels = jax.tree.map(jnp.add, (stays, travels), more)
        return (block, stays, travels), None

    first = ((k, v, scoring.keys), *here(k, v, scoring.keys))
    (_, stays, travels), _ = jax.lax.scan(step, first, length=jax.lax.axis_size(axis) - 1)
    (dq, *d_queries), (dk, dv, d_j) = stays, _on(travels, axis)
    narrow = lambda x, like: x.astype(like.dtype)
    parts, _ = split(scoring)
    d_parts = jax.tree.map(narrow, (*d_queries, d_j), parts)
    return narrow(dq, q), narrow(dk, k), narrow(dv, v), cotangent(scoring, d_parts)


def _on(tree, axis: str):
    """Every array to the next device of the ring, and that of the one before in its place."""
    size = jax.lax.axis_size(axis)
    return jax.lax.ppermute(tree, axis, [(n, (n + 1) % size) for n in range(size)])


def _needed(q: Array, k: Array, scoring: Scoring, keys: Tokens, lse: Array, tiling: Tiling, axis: str) -> Array:
    """Whether any query may find mass among these keys, given the normalisers found so far."""
    part = dataclasses.replace(scoring, keys=keys)
    return tiles.reach(q, k, part, lse, tiling.skip, k.shape[1] * jax.lax.axis_size(axis))
