"""The gradient of a relative bias at every offset, of whatever parameters it is made: sums along the diagonals of tiles.

Tiles that lie on one diagonal have the same offsets, place by place. A block of threads walks along such a diagonal, in several
texts of the batch, and adds the tiles up. The diagonals of what is left are summed by XLA.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from bam_jax.attention.logits.tokens import EMPTY
from bam_jax.attention.pallas import gpu_pipeline
from bam_jax.attention.pallas.gpu_arithmetic import ALONG_COLUMNS, ALONG_ROWS, TILE_ROWS, keep_finite, spread, zeros
from bam_jax.attention.pallas.gpu_pipeline import COMPUTING, HELD, LoadedTile, TilePipeline
from bam_jax.attention.pallas.gpu_strips import PIECES, PairedStrips, strip_bias
from bam_jax.biases import Bias
from bam_jax.system.axes import typed

_WIDTH = 64  # keys of a tile; its queries are those of both computing warpgroups

_BLOCKS = 528  # blocks of threads that suffice for all 132 multiprocessors: more only write more sums


class _Inputs(NamedTuple):
    """References to everything that the kernel reads, in global memory."""

    flawed: Any
    runs: Any
    query_matrices: tuple
    query_vectors: Any
    key_matrices: tuple
    key_vectors: Any
    strips: Any


def bias_gradient(tiles: TilePipeline, cotangent: Callable, query_matrices: tuple, query_vectors: Any) -> Bias:
    """Give the cotangent of the bias of a pipeline whose bias comes in strips.

    Args:
        cotangent: gives that of a tile's biases, [64, 64], from its `LoadedTile`.
        query_matrices, query_vectors: as `TilePipeline.over_keys` takes them.
    """
    assert tiles.strip_bias is not None
    batch, length, heads, _ = tiles.q.shape
    blocks = length // HELD, tiles.k.shape[1] // _WIDTH
    table = PairedStrips(*tiles.strip_bias, heads, HELD, _WIDTH, *blocks, keys_in_rows=False)
    enough = max(1, _BLOCKS // (heads * table.count))
    parts = max(n for n in range(1, batch + 1) if batch % n == 0 and n <= enough)  # of the batch
    inputs = _Inputs(
        tiles.flawed,
        _runs_of_diagonals(tiles, table),
        query_matrices,
        query_vectors,
        (tiles.k, tiles.v),
        tiles.keys,
        table.array(()),
    )
    leaves, structure = jax.tree.flatten(inputs)
    interpret = gpu_pipeline.interpret()
    of_strips = functools.partial(strip_bias, width=_WIDTH, interpreted=interpret is not None)

    def body(*refs: Any) -> None:
        *arrays, out = refs
        _body(tiles, table, batch // parts, of_strips, cotangent, jax.tree.unflatten(structure, arrays), out)

    run = plgpu.kernel(
        body,
        out_type=typed(jax.ShapeDtypeStruct((parts, heads, table.count, HELD, _WIDTH), jnp.float32), tiles.q),
        grid=(heads, table.count, parts),
        grid_names=("head", "diagonal", "part"),
        num_threads=COMPUTING + 1,
        thread_name="group",
        kernel_name="bias_gradients",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=interpret,
    )
    with jax.enable_x64(False):
        sums = run(*leaves)
    _, vjp = jax.vjp(table.strips, table.bias)
    return vjp(_diagonal_sums(sums.sum(0)))[0]


def _body(
    tiles: TilePipeline,
    table: PairedStrips,
    texts: int,
    of_strips: Callable,
    cotangent: Callable,
    inputs: _Inputs,
    out: Any,
) -> None:
    """All that one block of threads does; see `gpu_pipeline`."""
    h, diagonal, part, group = (jax.lax.axis_index(name) for name in ("head", "diagonal", "part", "group"))
    start, steps, whole = (inputs.runs[n, h, diagonal] for n in range(3))
    first_flawed = inputs.flawed[0]
    own = pl.ds(group * TILE_ROWS, TILE_ROWS)
    queries = lambda step: start + step  # the number of the block at each step
    keys = lambda step: _keys_of(table, diagonal, start + step)

    def compute(loop: Callable) -> None:
        gpu_pipeline.store(out.at[part, h, diagonal, own], loop(zeros(_WIDTH)))

    def step(at: tuple, queries: tuple, rows: Any, pairs: tuple, columns: Any, strips: Any, total: Any) -> Any:
        shape = (TILE_ROWS, _WIDTH)
        load_row = lambda x: spread(plgpu.load(x.at[own], layout=ALONG_ROWS, optimized=False), shape)
        load_column = lambda x: spread(plgpu.load(x, layout=ALONG_COLUMNS), shape, 1)
        read = lambda: jax.tree.map(load_column, columns)
        finite = (keys(at[1]) + 1) * _WIDTH <= first_flawed
        loaded = LoadedTile(
            tuple(x.at[own] for x in queries),
            pairs,
            jax.tree.map(load_row, rows),
            read(),
            read,
            lambda: pl.when(first_flawed < EMPTY)(functools.partial(keep_finite, pairs[-1])),
            (whole > 0) & finite,
            of_strips(strips),
            tiles.content,
            lambda *_: None,  # no product is summed
        )
        return total + cotangent(loaded)

    def specs(tokens: int, number: Callable, matrices: tuple, vectors: Any) -> tuple:
        """Those of one side: a text, a block of its tokens, a head."""
        text = lambda ref, b: part * texts + b if ref.shape[0] > 1 else 0
        head = lambda ref, axis: h // (tiles.q.shape[2] // ref.shape[axis])

        def matrix(ref: Any) -> Any:
            place = lambda b, step: (text(ref, b), number(step), head(ref, 2), 0)
            return plgpu.BlockSpec((None, tokens, None, ref.shape[3]), place, transforms=tiles.swizzled)

        def vector(ref: Any) -> Any:
            return plgpu.BlockSpec(
                (None, None, None, tokens), lambda b, step: (text(ref, b), head(ref, 1), 0, number(step))
            )

        return jax.tree.map(matrix, matrices), jax.tree.map(vector, vectors)

    pipeline = plgpu.emit_pipeline_warp_specialized(
        step,
        grid=(texts, steps),
        in_specs=(
            *specs(HELD, queries, inputs.query_matrices, inputs.query_vectors),
            *specs(_WIDTH, keys, inputs.key_matrices, inputs.key_vectors),
            # The same at each step, which the pipeline does not know.
            plgpu.BlockSpec((PIECES, table.piece), lambda b, step: (table.index(queries(step), keys(step)), 0)),
        ),
        max_concurrent_steps=gpu_pipeline.STAGES,
        num_compute_wgs=COMPUTING,
        wg_axis="group",
        memory_registers=gpu_pipeline.MEMORY_REGISTERS,
        compute_context=compute,
    )
    pipeline(*inputs[2:6], inputs.strips.at[h])


def _keys_of(table: PairedStrips, diagonal: Any, n: Any) -> Any:
    """The block of keys that a diagonal has beside block `n` of queries: the inverse of `StripTable.index`."""
    return (diagonal - table.index(n, 0)) // (table.block_k // table.step)


def _runs_of_diagonals(tiles: TilePipeline, table: PairedStrips) -> Int[Array, "3 H G"]:
    """The first block of queries of each diagonal that needs its tile there, how many there are up to the last one, and whether
    none of these has a hidden pair.
    """
    n, diagonal = np.arange(table.query_blocks), np.arange(table.count)[:, None]
    m = _keys_of(table, diagonal, n)  # [G, N]
    there = (m >= 0) & (m < table.key_blocks)
    first, count, whole_first, whole_count = (
        jnp.repeat(x, tiles.block_q // HELD, axis=1)[:, None, : len(n)] * (tiles.block_k // _WIDTH)
        for x in tiles.runs[0]
    )
    needed = there & (m >= first) & (m < first + count)  # [H, G, N]
    whole = (m >= whole_first) & (m < whole_first + whole_count)
    start = jnp.where(needed, n, len(n)).min(2)
    stop = jnp.where(needed, n + 1, 0).max(2)
    within = (n >= start[..., None]) & (n < stop[..., None])
    every = (whole | ~within).all(2)
    return jnp.stack([jnp.minimum(start, stop), jnp.maximum(stop - start, 0), every]).astype(jnp.int32)


def _diagonal_sums(x: Float[Array, "*H n m"]) -> Float[Array, "*H d"]:
    """Sum the diagonals of tiles, the one of the last row and the first column first."""
    n, m = x.shape[-2:]
    # In rows one shorter than they are, each begins one place behind the row above: flipped, rows lie as their diagonals do.
    flat = jnp.pad(x[..., ::-1, :], [(0, 0)] * (x.ndim - 1) + [(0, n)]).reshape(*x.shape[:-2], -1)[..., :-n]
    return flat.reshape(*x.shape[:-2], n, n + m - 1).sum(-2)
