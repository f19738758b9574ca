"""The backend for TPUs: flash attention in Pallas, with the bias computed and differentiated tile by tile.

A kernel holds one block of queries (forward, and the gradients of the query side) or of keys (the gradients of the key side)
in the lanes and walks over the blocks of the other side, which lie in the sublanes; see `tpu_layout`. Positions are inputs, so
packed, cached and rotated tokens need no separate kernels. Where position offsets equal slot offsets (see `strips`), a relative
bias is read from strips, so tiles do not evaluate its formula; see `tpu_strips`, and `tpu_profiles` for mixtures.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bam_jax.attention.logits import skipping, tile
from bam_jax.attention.logits.scoring import Gradients, Residuals, Scoring, mask_nonfinite
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.pallas import strips
from bam_jax.attention.pallas.tpu_backward import QueryOperands, key_kernel, query_kernel
from bam_jax.attention.pallas.tpu_forward import decode, forward_kernel
from bam_jax.attention.pallas.tpu_grid import TileGrid
from bam_jax.attention.pallas.tpu_layout import sequence_last, sequence_second
from bam_jax.attention.pallas.tpu_profiles import bytes_of_sums
from bam_jax.biases import ALiBi, Mixture, Uniform

_SUMS = 2**25  # bytes for the gradients of a mixture's profiles: half of a v5p core's memory

_CHEAP = (Uniform, ALiBi)  # Summed over all kernels, their formulas take fewer instructions than strips.


def refuses(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring
) -> str | None:
    """The reason why these kernels do not support the call, or None; see `Backend.refuses`."""
    for x in (q, k, v):
        if x.dtype.name not in ("bfloat16", "float32"):
            return f"a TPU has no {x.dtype}"
    if max(q.shape[-1], v.shape[-1]) > 256:
        return f"a head width of {max(q.shape[-1], v.shape[-1])}, above 256"
    if isinstance(scoring.bias, Mixture):
        number, offsets = len(jax.tree.leaves(scoring.queries.coordinate)), q.shape[1] + k.shape[1]
        if (size := bytes_of_sums(number, offsets)) > _SUMS:
            return f"{number} profiles at {offsets} offsets, whose gradients take {size:,} bytes of a core, above {_SUMS:,}"
    return strips.refusal(scoring, tile.LOWERED)


def fits(q: Float[Array, "B T H D"], scoring: Scoring) -> bool | Bool[Array, ""]:
    """Whether the kernels can compute a call that is not refused; see `strips.fits`."""
    return strips.fits(q, scoring, tile.LOWERED)


def forward(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K D"],
    scoring: Scoring,
    tiling: Tiling,
    *,
    alone: bool = False,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser, with a running softmax; see `Backend.forward` and `Backend.alone`."""
    if q.shape[1] == 1:
        return decode(q, k, v, scoring, tiling)
    run = functools.partial(tiled_forward, q, k, v, scoring, tiling, alone=alone)
    return strips.by_slots(scoring, tile.LOWERED, _CHEAP, run)


def tiled_forward(
    q: Array,
    k: Array,
    v: Array,
    scoring: Scoring,
    tiling: Tiling,
    shift: Array | None,
    *,
    alone: bool = False,
) -> tuple[Array, Array]:
    """`forward` of several queries, with the bias in strips or, if `shift` is None, as a formula."""
    grid = TileGrid.of(q, *mask_nonfinite(k, v), scoring, tiling, shift)
    # For gradients the output stays in float32, because delta is computed from it. If one key has nearly all the weight, a
    # prior's gradient is smaller than the error of rounding to two bytes.
    outputs = jax.ShapeDtypeStruct(grid.q.shape, q.dtype if alone else jnp.float32), grid.per_query(1)
    scratch = [(count, grid.block_q) for count in (1, 1, q.shape[-1])]  # maximum, total, weighted values
    out, lse = grid.over_keys(forward_kernel, grid.q, outputs, scratch)
    return sequence_second(out, q.shape[1]), lse[:, :, 0, : q.shape[1]]


def backward(residuals: Residuals, d_out: Float[Array, "B T H D"], tiling: Tiling) -> Gradients:
    """Gradients from the output and its log-normaliser, tile by tile; see `Backend.backward`."""
    run = functools.partial(tiled_backward, residuals, d_out, tiling)
    one_query = residuals.q.shape[1] == 1  # then `decode` used no strips either
    return run(None) if one_query else strips.by_slots(residuals.scoring, tile.LOWERED, _CHEAP, run)


def tiled_backward(residuals: Residuals, d_out: Array, tiling: Tiling, shift: Array | None) -> Gradients:
    """`backward` with the bias in strips or, if `shift` is None, as a formula."""
    q, k, v, scoring, wanted = residuals.q, residuals.k, residuals.v, residuals.scoring, residuals.wanted
    grid = TileGrid.of(q, *mask_nonfinite(k, v), scoring, tiling, shift)
    lse, delta = (skipping.pad(x[:, :, None], grid.block_q) for x in residuals.row_terms(d_out))
    query_operands = QueryOperands(grid.q, sequence_last(d_out, grid.block_q), lse, delta)

    bias, mixed, strips_wanted, weights = scoring.bias, scoring.queries.coordinate, False, 0
    if grid.strips is not None:
        # Kernels compute the cotangent of the strips; that of the bias's parameters is computed from it outside the kernels.
        strips_wanted = any(wanted.bias)
        weights = grid.strips.sums[0] if isinstance(bias, Mixture) and any(wanted.query_coordinate) else 0
        scoring, wanted = strips.without_coordinates(scoring), wanted._replace(bias=(), query_coordinate=())
    sums = tile.ScoringSums.of(scoring, grid.parameters, wanted)
    dq, d_query, d_weights, d_strips = grid.over_keys(
        functools.partial(query_kernel, sums.of_queries),
        query_operands,
        (_like(grid.q), grid.per_query(sum(sums.of_queries)), grid.per_query(weights)),
        [(q.shape[-1], grid.block_q)],
        (grid.per_diagonal() if strips_wanted else None,),
    )
    dk, dv, d_key = grid.over_queries(
        functools.partial(key_kernel, sums.of_keys),
        query_operands,
        (_like(grid.k), _like(grid.v), grid.per_key(sum(sums.of_keys))),
        [(q.shape[-1], grid.block_k)] * 2,
    )
    d_scoring = sums.cotangent(_sums_first(d_query, q), _sums_first(d_key, k), q.shape[2])
    if grid.strips is not None:
        d_bias = jax.tree.map(jnp.zeros_like, bias) if d_strips is None else grid.strips.cotangent(d_strips.sum(0))
        number = len(jax.tree.leaves(mixed))
        parts = [None] * number if d_weights is None else [*_sums_first(d_weights, q)][:number]
        d_mixed = tile.refolded(mixed, list[Array | None](parts))
        d_queries = dataclasses.replace(d_scoring.queries, coordinate=d_mixed)
        d_scoring = dataclasses.replace(d_scoring, bias=d_bias, queries=d_queries)
    dq, dk, dv = (sequence_second(x, like.shape[1]) for x, like in ((dq, q), (dk, k), (dv, v)))
    return Gradients(dq, dk, dv, d_scoring)


def _like(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _sums_first(sums: Array | None, like: Array) -> Array:
    """[B, H, n, T] -> [n, B, H, T]; n is 0 for None."""
    batch, length, heads, _ = like.shape
    return jnp.zeros((0, batch, heads, length), jnp.float32) if sums is None else jnp.moveaxis(sums, 2, 0)
