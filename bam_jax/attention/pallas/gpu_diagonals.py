"""The gradient of a relative bias at every offset, whatever its parameters are.

All tiles on one diagonal of the tile grid have the same offsets at the same elements. A thread block walks along such a
diagonal, for several rows of the batch, and sums its tiles. XLA then sums along the diagonals inside the result. For mixed
profiles, a tile's numbers are moved to their offsets and multiplied by the weights before the sum; see `gpu_profiles`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from bam_jax.attention.logits.skipping import Runs
from bam_jax.attention.logits.tokens import EMPTY
from bam_jax.attention.pallas import gpu_pipeline, gpu_profiles
from bam_jax.attention.pallas.gpu_arithmetic import (
    ALONG_COLUMNS,
    ALONG_ROWS,
    COMPUTING,
    INTERPRETER,
    TILE_ROWS,
    interpreted,
    keep_finite,
    spread,
    swizzled,
    zeros,
)
from bam_jax.attention.pallas.gpu_pipeline import HELD, LoadedTile, TilePipeline
from bam_jax.attention.pallas.gpu_profiles import MixedTile, ProfileStrips
from bam_jax.attention.pallas.gpu_strips import PairedStrips, StripBias, strip_bias
from bam_jax.attention.pallas.strips import StripTable
from bam_jax.biases import Bias
from bam_jax.biases.base import sum_to
from bam_jax.system.axes import typed

_WIDTH = 64  # keys of a tile; its queries are those of both compute warpgroups

# Thread blocks: 8 per multiprocessor. Half of them have no work in causal attention. More would only write more results.
_BLOCKS = 1056

_BYTES = (
    2**28
)  # of sums in memory at once. A head takes about 1 KB per token, so long texts are computed a few heads at a time.


class _Inputs(NamedTuple):
    """References to everything that the kernel reads, in global memory."""

    first_head: Any  # [1]
    flawed: Any
    runs: Any
    query_matrices: tuple
    query_vectors: Any
    key_matrices: tuple
    key_vectors: Any
    strips: Any


def bias_gradient(tiles: TilePipeline, cotangent: Callable, query_matrices: tuple, query_vectors: Any) -> Bias:
    """The cotangent of the bias of a pipeline whose bias comes in strips.

    Args:
        cotangent: function from a `LoadedTile` to the cotangent of the tile's biases, [64, 64].
        query_matrices, query_vectors: as in `TilePipeline.over_keys`.
    """
    assert tiles.strip_bias is not None
    batch, length, heads, _ = tiles.q.shape
    blocks = length // HELD, tiles.k.shape[1] // _WIDTH
    table = tiles.strips((HELD, _WIDTH), blocks, keys_in_rows=False)
    # The sums of a compute warpgroup: one tile or, for mixed profiles, the two halves of its offsets.
    sums, width = (2, 2 * table.columns) if isinstance(table, ProfileStrips) else (1, _WIDTH)
    parts = min(batch, max(1, _BLOCKS // (heads * table.count)))  # of the batch
    fitting = max(1, _BYTES // (4 * parts * table.count * sums * HELD * width))
    together = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= fitting)  # heads
    inputs = _Inputs(
        jnp.zeros(1, jnp.int32),
        tiles.flawed,
        _runs(tiles, table),
        (*query_matrices, *tiles.weights),
        query_vectors,
        (tiles.k, tiles.v),
        tiles.keys,
        table.array(()),
    )
    leaves, structure = jax.tree.flatten(inputs)

    def body(*refs: Any) -> None:
        *arrays, out, passage = refs
        inputs = jax.tree.unflatten(structure, arrays)
        _body(tiles, table, -(-batch // parts), cotangent, [width] * sums, inputs, out, passage)

    run = plgpu.kernel(
        body,
        out_type=typed(jax.ShapeDtypeStruct((parts, together, table.count, sums * HELD, width), jnp.float32), tiles.q),
        scratch_types=[gpu_profiles.passages(_WIDTH) if tiles.weights else []],
        grid=(together, table.count, parts),
        grid_names=("head", "diagonal", "part"),
        num_threads=COMPUTING + 1,
        thread_name="group",
        kernel_name="bias_gradients",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=INTERPRETER if interpreted() else None,
    )

    def of_heads(first: Array) -> Float[Array, "h O"]:
        """The cotangent of these heads' biases, or of each of the profiles that they share, at all offsets."""
        with jax.enable_x64(False):
            made = run(first[None], *leaves[1:]).sum(0)
        of_strips = gpu_profiles.strip_sums(made.sum(0)) if tiles.weights else _diagonal_sums(made)
        return _offset_sums(of_strips, table.step)

    firsts = jnp.arange(0, heads, together, dtype=jnp.int32)
    d_values = jax.lax.map(of_heads, firsts) if len(firsts) > 1 else of_heads(firsts[0])[None]
    if isinstance(table, ProfileStrips):
        return table.cotangent(d_values.sum(0))
    values, vjp = jax.vjp(table.values, table.bias)
    return vjp(sum_to(d_values.reshape(heads, -1), values))[0]


def _body(
    tiles: TilePipeline,
    table: PairedStrips | ProfileStrips,
    texts: int,
    cotangent: Callable,
    widths: list[int],
    inputs: _Inputs,
    out: Any,
    passage: Any,
) -> None:
    """The program of one thread block; see `gpu_pipeline`."""
    own_head, place, part, group = (jax.lax.axis_index(name) for name in ("head", "diagonal", "part", "group"))
    h = inputs.first_head[0] + own_head
    diagonal = table.count - 1 - place  # in causal attention, the one with most tiles comes first
    start, steps, whole_start, whole_steps = (inputs.runs[n, h, diagonal] for n in range(4))
    first_flawed = inputs.flawed[0]
    own = pl.ds(group * TILE_ROWS, TILE_ROWS)
    query_block = lambda step: start + step
    key_block = lambda step: _key_block(table, diagonal, start + step)

    mixes = isinstance(table, ProfileStrips)

    def compute(loop: Callable) -> None:
        if mixes:
            gpu_profiles.clear(passage.at[group])
        for n, total in enumerate(loop(tuple(zeros(width) for width in widths))):
            rows = pl.ds((group * len(widths) + n) * TILE_ROWS, TILE_ROWS)
            gpu_pipeline.store(out.at[part, own_head, diagonal, rows], total)

    def add_tile(at: tuple, queries: tuple, rows: Any, pairs: tuple, columns: Any, strips: Any, total: Any) -> Any:
        shape = (TILE_ROWS, _WIDTH)
        load_row = lambda x: spread(plgpu.load(x.at[own], layout=ALONG_ROWS, optimized=False), shape)
        load_column = lambda x: spread(plgpu.load(x, layout=ALONG_COLUMNS), shape, 1)
        read = lambda: jax.tree.map(load_column, columns)
        beyond = start + at[1] - whole_start
        finite = (key_block(at[1]) + 1) * _WIDTH <= first_flawed
        matrices, mixed = [x.at[own] for x in queries], None
        if mixes:
            mixed = MixedTile.of(matrices.pop(), strips, passage, group, keys_in_rows=False)
        loaded = LoadedTile(
            tuple(matrices),
            pairs,
            jax.tree.map(load_row, rows),
            read(),
            read,
            lambda: pl.when(first_flawed < EMPTY)(functools.partial(keep_finite, pairs[-1])),
            (beyond >= 0) & (beyond < whole_steps) & finite,
            strip_bias(strips, _WIDTH) if mixed is None else StripBias(mixed.values(), []),
            mixed,
            tiles.content,
        )
        d_tile = cotangent(loaded)
        return (total[0] + d_tile,) if mixed is None else mixed.add_to_profiles(total, d_tile)

    def specs(tokens: int, number: Callable, matrices: tuple, vectors: Any) -> tuple:
        """The block specs of one side: a batch row, a block of its tokens, a head."""
        text = lambda ref, b: (part * texts + b) if ref.shape[0] > 1 else 0
        head = lambda ref, axis: h // (tiles.q.shape[2] // ref.shape[axis])

        def matrix(ref: Any) -> Any:
            place = lambda b, step: (text(ref, b), number(step), head(ref, 2), 0)
            pieces = 2 if ref is weights else 1  # each multiplied separately
            order = swizzled(ref, ref.shape[3] // pieces)
            return plgpu.BlockSpec((None, tokens, None, ref.shape[3]), place, transforms=order)

        def vector(ref: Any) -> Any:
            return plgpu.BlockSpec(
                (None, None, None, tokens), lambda b, step: (text(ref, b), head(ref, 1), 0, number(step))
            )

        return jax.tree.map(matrix, matrices), jax.tree.map(vector, vectors)

    weights = inputs.query_matrices[-1] if mixes else None
    strips = inputs.strips.at[0 if mixes else h]
    operands = inputs.query_matrices, inputs.query_vectors, inputs.key_matrices, inputs.key_vectors, strips
    pipeline = plgpu.emit_pipeline_warp_specialized(
        add_tile,
        grid=(jnp.clip(tiles.q.shape[0] - part * texts, 0, texts), steps),
        in_specs=(
            *specs(HELD, query_block, *operands[:2]),
            *specs(_WIDTH, key_block, *operands[2:4]),
            # The same at each step, but the pipeline requires indices that depend on the step.
            table.spec(lambda b, step: diagonal + 0 * step, 0),
        ),
        # Nothing is stationary, and a block has 128 queries, twice `_WIDTH`.
        max_concurrent_steps=gpu_pipeline.stages(
            (),
            (tiles.k, tiles.v, *inputs.query_matrices * 2),
            (inputs.query_vectors, inputs.key_vectors),
            _WIDTH,
            table,
        ),
        num_compute_wgs=COMPUTING,
        wg_axis="group",
        memory_registers=gpu_pipeline.MEMORY_REGISTERS,
        compute_context=compute,
    )
    pipeline(*operands)


def _key_block(table: StripTable, diagonal: Any, n: Any) -> Any:
    """The key block where a diagonal meets query block `n`: the inverse of `StripTable.index`."""
    return (diagonal - table.index(n, 0)) // (table.block_k // table.step)


def _runs(tiles: TilePipeline, table: StripTable) -> Int[Array, "4 H G"]:
    """For each diagonal, the first query block and the number of query blocks, first of those whose tile on the diagonal is
    needed, then of those whose tile there has no hidden pairs.
    """
    n = jnp.arange(table.query_blocks, dtype=jnp.int32)
    m = _key_block(table, jnp.arange(table.count, dtype=jnp.int32)[:, None], n)  # [G, N]
    first, count, whole_first, whole_count = (
        jnp.repeat(x, tiles.block_q // HELD, axis=1)[:, None, : len(n)] * (tiles.block_k // _WIDTH)
        for x in tiles.runs[0]
    )
    within = lambda first, count: (m >= jnp.maximum(first, 0)) & (m < jnp.minimum(first + count, table.key_blocks))
    needed = within(first, count)
    if (near := table.near()) is not None:  # elsewhere the bias is 0, whatever its parameters are
        place = jnp.arange(table.count)
        needed &= ((place >= near[0]) & (place < near[1]))[:, None]
    return jnp.stack([*Runs.of(needed), *Runs.unbroken(within(whole_first, whole_count))])


def _diagonal_sums(x: Float[Array, "*H n m"]) -> Float[Array, "*H d"]:
    """Sum along the diagonals inside tiles, starting with the diagonal of the last row and the first column."""
    n, m = x.shape[-2:]
    # Reshaped to rows that are one number shorter, each flipped row starts one column after the row above, so diagonals become
    # columns.
    flat = jnp.pad(x[..., ::-1, :], [(0, 0)] * (x.ndim - 1) + [(0, n)]).reshape(*x.shape[:-2], -1)[..., :-n]
    return flat.reshape(*x.shape[:-2], n, n + m - 1).sum(-2)


def _offset_sums(strips: Float[Array, "H G n"], step: int) -> Float[Array, "H O"]:
    """Sum where strips overlap: the transpose of `StripTable.cut`. JAX's own transpose would sum in no fixed order on a GPU."""
    heads, count, used = strips.shape
    pieces = (used + 1) // step
    parts = jnp.pad(strips, ((0, 0), (0, 0), (0, 1))).reshape(heads, count, pieces, step)
    moved = [jnp.pad(parts[:, :, n], ((0, 0), (n, pieces - 1 - n), (0, 0))) for n in range(pieces)]
    return jnp.stack(moved).sum(0).reshape(heads, -1)[:, :-1]
