"""Attention over a sequence that is sharded along a mesh axis: keys travel around the ring of devices, queries stay."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bam_jax.attention.logits import skipping
from bam_jax.attention.logits.merge import merge
from bam_jax.attention.logits.scoring import HIDDEN, Differentiable, Gradients, Residuals, Scoring, mask_nonfinite
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.logits.tokens import Tokens
from bam_jax.attention.op import Backend


@functools.cache
def ring(backend: Backend, axis: str) -> Backend:
    """Make a backend for sequences sharded along a mesh axis from one for whole sequences; for use inside `jax.shard_map`.

    Each device holds the queries, keys, values and tokens of any part of the sequence; the positions identify it. Keys and
    values travel around the ring with their tokens. Each device attends from its queries to the keys that it currently holds,
    and merges the partial results by their normalisers. A step is skipped if its keys provably hold negligible mass; the keys
    are still passed on.

    If the parts are contiguous, a causal mask gives the last device the most work: see `zigzag`.

    Args:
        backend: a value of `BACKENDS`.
        axis: the mesh axis that shards the sequence.

    Example:
      >>> from bam_jax.attention import BACKENDS, attention
      >>> from bam_jax.biases import Uniform
      >>> mesh = jax.make_mesh((1,), ("context",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> text = jax.sharding.PartitionSpec(None, "context")
      >>> around = functools.partial(attention, backend=ring(BACKENDS["chunked"], "context"))
      >>> specs = Scoring(Uniform(), Tokens(text), Tokens(text))
      >>> attend = jax.shard_map(around, mesh=mesh, in_specs=(text, text, text, specs), out_specs=text)
      >>> x, tokens = jnp.ones((1, 8, 2, 4)), Tokens(jnp.arange(8)[None])
      >>> jax.jit(attend)(x, x, x, Scoring(Uniform(), tokens, tokens)).shape
      (1, 8, 2, 4)

    Source: Liu et al. 2023, Ring Attention with Blockwise Transformers.
    """
    return Backend(
        functools.partial(_forward, backend, axis),
        functools.partial(_backward, backend, axis),
        backend.refuses,
        own_width=backend.own_width,
        scales=backend.scales,
    )


@functools.cache
def zigzag(backend: Backend, axis: str) -> Backend:
    """A ring with balanced work: of the 2 n pieces of the sequence, device d computes pieces d and 2 n - 1 - d.

    Under a causal mask every device then has the same number of pairs to compute. Pieces are sent to the device that computes
    them and the results are sent back, so nothing changes for callers. A mask that is not causal needs no balancing, and a part
    of odd length is not balanced.

    Args:
        backend: one made by `ring`.
        axis: the mesh axis; device d of n holds the d-th of n equal parts of the sequence.

    Source: Brandon et al. 2023, Striped Attention, for the imbalance; the two mirrored pieces are common practice.
    """

    def forward(q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling) -> tuple[Array, Array]:
        if not _can_balance(q, k, scoring):
            return backend.forward(q, k, v, scoring, tiling)
        (q, k, v), scoring = _deal((q, k, v), axis, 1), _deal_scoring(scoring, axis)
        out, lse = backend.forward(q, k, v, scoring, tiling)
        return _take_back(out, axis, 1), _take_back(lse, axis, 2)

    def backward(residuals: Residuals, d_out: Array, tiling: Tiling) -> Gradients:
        if not _can_balance(residuals.q, residuals.k, residuals.scoring):
            return backend.backward(residuals, d_out, tiling)
        whole = (residuals.q, residuals.k, residuals.v, residuals.out, d_out)
        q, k, v, out, d_out = _deal(whole, axis, 1)
        (lse, d_lse), scoring = _deal((residuals.lse, residuals.d_lse), axis, 2), _deal_scoring(residuals.scoring, axis)
        pieces = Residuals(q, k, v, scoring, out, lse, residuals.wanted, d_lse)
        dq, dk, dv, d_scoring = backend.backward(pieces, d_out, tiling)
        d_parts = Differentiable.of(d_scoring)
        of_tokens = d_parts._replace(bias=None)  # the bias belongs to no part of the text
        d_parts = _take_back(of_tokens, axis, 2)._replace(bias=d_parts.bias)
        dq, dk, dv = _take_back((dq, dk, dv), axis, 1)
        return Gradients(dq, dk, dv, d_parts.cotangent(residuals.scoring))

    return dataclasses.replace(backend, forward=forward, backward=backward)


def _can_balance(q: Array, k: Array, scoring: Scoring) -> bool:
    return scoring.mask.causal and q.shape[1] == k.shape[1] and q.shape[1] % 2 == 0


def _deal_scoring(scoring: Scoring, axis: str) -> Scoring:
    queries, keys = (dataclasses.replace(x, consecutive=False) for x in (scoring.queries, scoring.keys))
    queries, keys = _deal((queries, keys), axis, -1)
    return dataclasses.replace(scoring, queries=queries, keys=keys, temperature=_deal(scoring.temperature, axis, -1))


def _owners(size: int) -> tuple[list[int], list[int]]:
    """For each device, the device that computes the first half of its part of the sequence, and the one for the second half."""
    owner = lambda piece: min(piece, 2 * size - 1 - piece)
    return [owner(2 * n) for n in range(size)], [owner(2 * n + 1) for n in range(size)]


def _deal(tree: Any, axis: str, at: int) -> Any:
    """Receive the two pieces of the sequence that this device computes, in order, along an axis of each array."""
    owners = _owners(jax.lax.axis_size(axis))
    even = jax.lax.axis_index(axis) % 2 == 0  # an even piece is the first half of the part that it came from

    def deal(x: Array) -> Array:
        halves = jnp.split(x, 2, axis=at)
        # Each device owns one first half and one second half: the pieces d and 2 n - 1 - d, one even and one odd.
        first, second = (
            jax.lax.ppermute(half, axis, list(enumerate(to))) for half, to in zip(halves, owners, strict=True)
        )
        return jnp.concatenate([jnp.where(even, first, second), jnp.where(even, second, first)], axis=at)

    return jax.tree.map(deal, tree)


def _take_back(tree: Any, axis: str, at: int) -> Any:
    """Send the pieces back to where they came from: the inverse of `_deal`."""
    owners = _owners(jax.lax.axis_size(axis))
    even = jax.lax.axis_index(axis) % 2 == 0

    def take_back(x: Array) -> Array:
        low, high = jnp.split(x, 2, axis=at)
        halves = jnp.where(even, low, high), jnp.where(even, high, low)
        home = [
            jax.lax.ppermute(half, axis, [(owner, origin) for origin, owner in enumerate(to)])
            for half, to in zip(halves, owners, strict=True)
        ]
        return jnp.concatenate(home, axis=at)

    return jax.tree.map(take_back, tree)


def _forward(
    backend: Backend, axis: str, q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling
) -> tuple[Array, Array]:
    def attend(k: Array, v: Array, keys: Tokens) -> tuple[Array, Array]:
        out, lse = backend.forward(q, k, v, dataclasses.replace(scoring, keys=keys), tiling)
        return out.astype(lse.dtype).swapaxes(1, 2), lse

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        block, (out, lse) = carry
        block = _pass_on(block, axis)
        k, _, keys = block
        needed = _needed(q, k, scoring, keys, lse, tiling, axis)
        nothing = lambda *_: (jnp.zeros_like(out), jnp.full_like(lse, HIDDEN))
        other, other_lse = jax.lax.cond(needed, attend, nothing, *block)
        return (block, merge(jnp.stack([out, other]), jnp.stack([lse, other_lse]), axis=0)), None

    # `_needed` reads keys only. A key set to NaN because of its value is never skipped.
    k, v = mask_nonfinite(k, v)
    first = (k, v, scoring.keys), attend(k, v, scoring.keys)
    (_, (out, lse)), _ = jax.lax.scan(step, first, length=jax.lax.axis_size(axis) - 1)
    return out.swapaxes(1, 2), lse


def _backward(backend: Backend, axis: str, residuals: Residuals, d_out: Array, tiling: Tiling) -> Gradients:
    q, k, v, scoring = residuals.q, residuals.k, residuals.v, residuals.scoring
    # Gradients are summed over many steps, and bfloat16 would round at each of them.
    wide = functools.partial(jax.tree.map, lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)))

    def differentiate(k: Array, v: Array, keys: Tokens) -> tuple[tuple, tuple]:
        """The gradients that stay here, of queries and the bias, and those that travel on, of keys and values."""
        # With the normaliser of the whole sequence, the gradients of its parts add up to the gradients of the whole.
        part = dataclasses.replace(residuals, k=k, v=v, scoring=dataclasses.replace(scoring, keys=keys))
        dq, dk, dv, d_scoring = backend.backward(part, d_out, tiling)
        d_parts = Differentiable.of(d_scoring)
        return wide((dq, d_parts._replace(key_coordinate=None))), wide((dk, dv, d_parts.key_coordinate))

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        block, stays, travels = carry
        block, travels = _pass_on((block, travels), axis)
        nothing = lambda *_: jax.tree.map(jnp.zeros_like, (stays, travels))
        k, _, keys = block
        needed = _needed(q, k, scoring, keys, residuals.lse, tiling, axis)
        more = jax.lax.cond(needed, differentiate, nothing, *block)
        stays, travels = jax.tree.map(jnp.add, (stays, travels), more)
        return (block, stays, travels), None

    first = ((k, v, scoring.keys), *differentiate(k, v, scoring.keys))
    (_, stays, travels), _ = jax.lax.scan(step, first, length=jax.lax.axis_size(axis) - 1)
    (dq, d_parts), (dk, dv, d_j) = stays, _pass_on(travels, axis)  # one more step returns them to their device
    narrow = lambda x, like: x.astype(like.dtype)
    d_parts = jax.tree.map(narrow, d_parts._replace(key_coordinate=d_j), Differentiable.of(scoring))
    return Gradients(narrow(dq, q), narrow(dk, k), narrow(dv, v), d_parts.cotangent(scoring))


def _pass_on(tree: Any, axis: str) -> Any:
    """Send every array to the next device of the ring, and receive that of the previous device."""
    size = jax.lax.axis_size(axis)
    return jax.lax.ppermute(tree, axis, [(n, (n + 1) % size) for n in range(size)])


def _needed(q: Array, k: Array, scoring: Scoring, keys: Tokens, lse: Array, tiling: Tiling, axis: str) -> Array:
    """Whether these keys may hold non-negligible mass for any query, given the normalisers so far."""
    part = dataclasses.replace(scoring, keys=keys)
    return skipping.within_reach(q, k, part, lse, tiling.skip, k.shape[1] * jax.lax.axis_size(axis)).any()
