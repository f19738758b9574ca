"""The TPU kernels of the backward pass: one holds queries and one holds keys, so each accumulates its own gradients in place.

Both recompute the weights of a tile from the log-normaliser of the forward pass: the full weights are never in memory.

    d_logit = weight * (d_out . v - delta),    delta = out . d_out
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from bam_jax.attention.logits import tile
from bam_jax.attention.logits.dropout import drop
from bam_jax.attention.pallas.tpu_forward import bias_of_piece, pieces_of_keys
from bam_jax.attention.pallas.tpu_grid import GridStep
from bam_jax.attention.pallas.tpu_layout import (
    along_lanes,
    along_sublanes,
    multiply,
    query_pieces,
    take_piece,
)
from bam_jax.attention.pallas.tpu_profiles import MixedBias
from bam_jax.attention.pallas.tpu_strips import StripBias


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QueryOperands:
    """The operands of queries that backward kernels need besides the tokens."""

    q: Array  # [B, H, D, T]
    d_out: Array  # [B, H, D, T]
    lse: Array  # [B, H, 1, T], the log-normaliser
    delta: Array  # [B, H, 1, T], the sum over D of out times d_out


def query_kernel(
    wanted: list[bool], step: GridStep, held: QueryOperands, k: Any, v: Any, outputs: Any, sums: Any
) -> None:
    """Add one tile to the gradients of a block of queries.

    Args:
        held: operands of the block of queries, [D, n] and [1, n].
        k, v: [D, m].
        outputs: dq [D, n]; the sums that are wanted, [count, n]; sums for the weights of a mixture, [C, n]; sums along the
            diagonals of tiles. None: not wanted.
        sums: [D, n], dq so far.
    """
    dq, d_query, d_mixed, d_strips = outputs

    @pl.when(step.first)
    def start() -> None:
        sums[...] = jnp.zeros_like(sums)
        if d_query is not None:
            d_query[...] = jnp.zeros_like(d_query)
        if d_mixed is not None:
            d_mixed[...] = jnp.zeros_like(d_mixed)

    if d_strips is not None:
        # All blocks of a head share the strips' sums, which start with its first block.
        @pl.when(step.first & step.first_block)
        def start_strips() -> None:
            d_strips[...] = jnp.zeros_like(d_strips)

    @step.when_needed
    def compute(whole: bool, near: bool) -> None:
        bias, d_pieces = step.bias(near, held.q.shape[-1]), []
        # Tiles are [keys, queries], except for mixtures: theirs are [queries, keys], because rows are rolled, and rolled back.
        turned = isinstance(bias, MixedBias)
        axis = 1 if turned else 0  # of the keys
        of_queries, of_keys = (along_sublanes, along_lanes) if turned else (along_lanes, along_sublanes)
        products = lambda a, b: multiply(b, a, 0, 0) if turned else multiply(a, b, 0, 0)
        row = lambda x: x[:, 0][None] if turned else x
        queries, lse, delta = of_queries((step.queries, held.lse, held.delta))
        for piece in pieces_of_keys(bias, k):
            keys = of_keys(take_piece(step.keys, piece))
            scores = step.content.scores(products(k[:, piece], held.q))
            logits, raw = tile.logits(scores, bias_of_piece(bias, piece), queries, keys, whole)
            d_weights = drop(products(v[:, piece], held.d_out), tile.dropout_factor(queries, keys))
            d_logits = jnp.exp(logits - lse) * (d_weights - delta)
            d_temperature = []
            if queries.temperature is not None:
                d_temperature = [row((d_logits * raw).sum(axis, keepdims=True))]
                d_logits = d_logits * queries.temperature
            sums[...] += multiply(k[:, piece], step.content.d_scaled(d_logits, scores), 1, axis)
            if d_query is not None:
                d_bias, d_i, _ = bias.cotangents(*tile.coordinates(queries, keys), d_logits)
                _accumulate(d_query, [*jax.tree.leaves(d_bias), *d_temperature, *jax.tree.leaves(d_i)], wanted)
            d_pieces.append(d_logits)
        if isinstance(bias, StripBias | MixedBias) and (d_strips is not None or d_mixed is not None):
            # Once for the whole tile: a strip covers all of its sublanes, from the first.
            bias.add_sums(jnp.concatenate(d_pieces), d_mixed, d_strips, step.diagonal)

    @pl.when(step.last)
    def finish() -> None:
        dq[...] = step.content.scaled(sums[...]).astype(dq.dtype)


def key_kernel(
    wanted: list[bool], step: GridStep, passing: QueryOperands, k: Any, v: Any, outputs: Any, d_k: Any, d_v: Any
) -> None:
    """Add one tile to the gradients of a block of keys.

    Args:
        passing: operands of the block of queries, [D, n] and [1, n].
        k, v: [D, m].
        outputs: dk and dv [D, m]; the sums that are wanted for each query head, [count, m]; None: none are wanted.
        d_k, d_v: [D, m], dk and dv so far, summed over the query heads of a key head.
    """
    dk, dv, d_key = outputs

    @pl.when(step.first)
    def start() -> None:
        d_k[...] = jnp.zeros_like(d_k)
        d_v[...] = jnp.zeros_like(d_v)

    if d_key is not None:
        # A bias may use different coordinates for each query head, so these sums are kept per head.
        @pl.when(step.first_of_head)
        def start_head() -> None:
            d_key[...] = jnp.zeros_like(d_key)

    @step.when_needed
    def compute(whole: bool, near: bool) -> None:
        keys, bias = along_lanes(step.keys), step.bias(near)
        for piece in query_pieces(passing.q.shape[1]):
            some = take_piece(passing, piece)
            queries, lse, delta = along_sublanes((take_piece(step.queries, piece), some.lse, some.delta))
            scores = step.content.scores(multiply(some.q, k, 0, 0))  # [queries, keys]
            logits, _ = tile.logits(scores, bias_of_piece(bias, piece), queries, keys, whole)
            weights, factor = jnp.exp(logits - lse), tile.dropout_factor(queries, keys)
            d_v[...] += multiply(some.d_out, drop(weights, factor), 1, 0)
            d_logits = weights * (drop(multiply(some.d_out, v, 0, 0), factor) - delta)
            if queries.temperature is not None:
                d_logits = d_logits * queries.temperature
            d_k[...] += multiply(some.q, step.content.d_scaled(d_logits, scores), 1, 0)
            if d_key is not None:
                _, _, d_j = bias.cotangents(*tile.coordinates(queries, keys), d_logits)
                _accumulate(d_key, jax.tree.leaves(d_j), wanted)

    @pl.when(step.last)
    def finish() -> None:
        dk[...] = step.content.scaled(d_k[...]).astype(dk.dtype)
        dv[...] = d_v[...].astype(dv.dtype)


def _accumulate(total: Any, summands: list[Array], wanted: list[bool]) -> None:
    """Add those summands [1, n] that are wanted, each to its row of `total`.

    There may be more summands than flags: those of coordinates that are positions, which are not wanted.
    """
    chosen = [summand for summand, flag in zip(summands, wanted, strict=False) if flag]
    for n, summand in enumerate(chosen):
        total[n : n + 1] += summand
