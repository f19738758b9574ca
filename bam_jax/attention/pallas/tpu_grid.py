"""What the TPU kernels walk over: operands in blocks, and the tiles that each block needs."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from bam_jax.attention.logits import skipping, tile
from bam_jax.attention.logits.scoring import Scoring, sealed
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.pallas.tpu_strips import Strip, Strips
from bam_jax.biases import Bias, Uniform
from bam_jax.system.axes import typed

_INTERPRET: Any = True  # How kernels run on a CPU.


@dataclasses.dataclass(frozen=True)
class Step:
    """Where a kernel stands.

    Args:
      queries, keys: what it reads of the tokens.
      parameters, number: of the bias, and (n) -> the n-th of this head.
      strip, diagonal: of a bias that comes in strips the tile's, and its number; None and 0: it is a formula.
      first, last: whether this is the first, or last, step of the block that it holds.
      first_of_head: whether it is the first of a query head, too.
      first_block: whether the block that it holds is the first.
      needed: whether there is a tile to compute.
    """

    queries: tile.Queries
    keys: tile.Keys
    parameters: tile.Parameters
    number: Callable
    strip: Any
    diagonal: Any
    first: Array
    last: Array
    first_of_head: Array
    first_block: Array
    needed: Array

    def bias(self, width: int = 1) -> Bias:
        """The bias of this head, each parameter a row of this many lanes."""
        if self.strip is not None:
            return Strip(self.strip)
        return self.parameters.bias([jnp.full((1, width), self.number(n)) for n in range(sum(self.parameters.sizes))])


@dataclasses.dataclass(frozen=True)
class Plan:
    """The operands in the kernels' layout, the sequence last and padded to whole blocks, and which tiles are needed."""

    q: Array  # [B, H, D, T], already divided by sqrt(D)
    k: Array  # [B, K, D, S]
    v: Array
    queries: tile.Queries
    keys: tile.Keys
    table: Array  # [H, P]
    parameters: tile.Parameters
    needed: Array  # [H, query blocks, key blocks]
    block_q: int
    block_k: int
    strips: Strips | None  # of the bias; None: it is a formula

    @classmethod
    def of(cls, q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling, shift: Array | None = None) -> "Plan":
        """Lay out q [B, T, H, D] and k, v [B, S, K, D], and find out which tiles are needed.

        With a shift (see `strips.shift`) the bias comes in strips, without one it is a formula.
        """
        k, v = sealed(k, v)
        block_q, block_k = tiling.blocks(*_block_sizes(q.shape, k.shape))
        whole = skipping.padded(scoring, block_q, block_k)
        queries, keys = tile.sides(whole)
        inner = scoring.bias if shift is None else Uniform()
        parameters = tile.Parameters.of(inner)
        scaled = (q.astype(jnp.float32) / math.sqrt(q.shape[-1])).astype(q.dtype)
        needed = skipping.needed(q, k, whole, tiling.skip, block_q, block_k)
        strips = None
        if shift is not None:
            strips = Strips(scoring.bias, shift, q.shape[2], block_q, block_k, *needed.shape[1:])
        return cls(
            inside(scaled, block_q),
            inside(k, block_k),
            inside(v, block_k),
            queries,
            keys,
            parameters.table(inner, q.shape[2]),
            parameters,
            needed,
            block_q,
            block_k,
            strips,
        )

    def rows(self, count: int) -> jax.ShapeDtypeStruct | None:
        """An output of some numbers for each query, [B, H, count, T]."""
        return jax.ShapeDtypeStruct((*self.q.shape[:2], count, self.q.shape[3]), jnp.float32) if count else None

    def columns(self, count: int) -> jax.ShapeDtypeStruct | None:
        """An output of some numbers for each query head and key, [B, H, count, S]."""
        return jax.ShapeDtypeStruct((*self.q.shape[:2], count, self.k.shape[3]), jnp.float32) if count else None

    def diagonals(self) -> jax.ShapeDtypeStruct | None:
        """An output of a number for each query head and diagonal of its tiles, [B, H, G, W]."""
        if self.strips is None:
            return None
        return jax.ShapeDtypeStruct((*self.q.shape[:2], self.strips.count, self.strips.width), jnp.float32)

    def over_keys(
        self, kernel: Callable, rows: Any, outputs: tuple, scratch: list[tuple[int, int]], whole: tuple = ()
    ) -> Any:
        """Run a kernel that holds a block of queries and walks over the key blocks that it needs.

        Outputs are held block by block; behind them those of `whole` are held for all blocks of a head.
        """
        first, count = skipping.span(self.needed)
        return self._run(kernel, rows, outputs, scratch, first, count, self.needed.shape[2], whole, hold_queries=True)

    def over_queries(self, kernel: Callable, rows: Any, outputs: tuple, scratch: list[tuple[int, int]]) -> Any:
        """Run a kernel that holds a block of keys and walks, query head by query head, over the query blocks that need it."""
        first, count = skipping.span(self.needed.swapaxes(1, 2))
        return self._run(kernel, rows, outputs, scratch, first, count, self.needed.shape[1], (), hold_queries=False)

    def _run(
        self,
        kernel: Callable,
        rows: Any,
        outputs: tuple,
        scratch: list[tuple[int, int]],
        first: Array,
        count: Array,
        steps: int,
        whole: tuple,
        *,
        hold_queries: bool,
    ) -> Any:
        """Run a kernel over the grid [row, held head, held block, its query heads, blocks of the other side]."""
        heads = len(first)
        group = 1 if hold_queries else heads // self.k.shape[1]
        grid = (self.q.shape[0], heads // group, first.shape[1], group, steps)

        def held(b: Array, c: Array, n: Array, g: Array, m: Array, *_: Any) -> tuple:
            return b, c * group + g, n

        def other(b: Array, c: Array, n: Array, g: Array, m: Array, table: Any, first: Any, count: Any) -> tuple:
            # Behind the last block that is needed it stays the same, and is not fetched again.
            h = c * group + g
            return b, h, first[h, n] + jnp.minimum(m, jnp.maximum(count[h, n] - 1, 0))

        def diagonal(*at: Any) -> tuple:
            (b, h, n), (_, _, m) = held(*at), other(*at)
            return b, h, self.strips.number(*((n, m) if hold_queries else (m, n))) if self.strips else 0

        def head(b: Array, c: Array, *_: Any) -> tuple:
            return b, c, 0

        def body(
            table: Any,
            first: Any,
            count: Any,
            strip: Any,
            rows: Any,
            queries: Any,
            k: Any,
            v: Any,
            keys: Any,
            *rest: Any,
        ):
            at = [pl.program_id(axis) for axis in range(5)]
            _, c, n, g, m = at
            h = c * group + g
            step = Step(
                queries,
                keys,
                self.parameters,
                lambda n: table[h, n],
                strip,
                diagonal(*at, table, first, count)[2],
                first=(g == 0) & (m == 0),
                last=(g == group - 1) & (m == steps - 1),
                first_of_head=m == 0,
                first_block=n == 0,
                needed=m < count[h, n],
            )
            kernel(step, rows, k, v, rest[: -len(scratch)], *rest[-len(scratch) :])

        block, at_q, at_k = (self.block_q, held, other) if hold_queries else (self.block_k, other, held)
        strip, width = None, 0
        if self.strips is not None:
            strip, width = self.strips.values(keys_in_rows=hold_queries).reshape(1, heads, 1, -1), self.strips.width
        operands = (strip, rows, self.queries, self.k, self.v, self.keys)
        of_strip = lambda x: _spec(x, heads, width, diagonal)
        of_queries = lambda x: _spec(x, heads, self.block_q, at_q)
        of_keys = lambda x: _spec(x, heads, self.block_k, at_k)
        scalars = (self.table, first, count)
        call = lambda *operands, interpret: pl.pallas_call(
            body,
            out_shape=typed((*outputs, *whole), self.q),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=len(scalars),
                grid=grid,
                in_specs=[
                    jax.tree.map(of, x)
                    for of, x in zip(
                        (of_strip, of_queries, of_queries, of_keys, of_keys, of_keys),
                        operands[len(scalars) :],
                        strict=True,
                    )
                ],
                out_specs=(
                    *jax.tree.map(lambda x: _spec(x, heads, block, held), outputs),
                    *jax.tree.map(lambda x: _spec(x, heads, x.shape[3], head, pl.Buffered(1)), whole),
                ),
                scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
            ),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=(
                    "parallel",
                    "parallel",
                    "arbitrary" if jax.tree.leaves(whole) else "parallel",
                    "arbitrary",
                    "arbitrary",
                )
            ),
            interpret=interpret,
            name=getattr(kernel, "func", kernel).__name__.strip("_"),
        )(*operands)
        return jax.lax.platform_dependent(
            *scalars,
            *operands,
            tpu=functools.partial(call, interpret=False),
            cpu=functools.partial(call, interpret=_INTERPRET),
        )


def _spec(x: Array, heads: int, block: int, at: Callable, mode: Any = None) -> pl.BlockSpec:
    """The block of an array [#B, heads or fewer, n, length] at a row, query head and block number."""

    def index(*grid: Any) -> tuple:
        b, h, n = at(*grid)
        return b if x.shape[0] > 1 else 0, h // (heads // x.shape[1]), 0, n

    return pl.BlockSpec((None, None, x.shape[2], block), index, pipeline_mode=mode)


def inside(x: Array, block: int) -> Array:
    """[B, T, H, D] -> [B, H, D, T], T padded to whole blocks."""
    return skipping.pad(x.transpose(0, 2, 3, 1), block)


def _block_sizes(q: tuple[int, ...], k: tuple[int, ...]) -> tuple[int, int]:
    """Query and key block: 512, or 256 for wide heads; four times as many keys for one query.

    They are multiples of 128, as lanes come, or the whole of a short row. One query's keys are cut evenly where they can
    be: padding would copy the cache.
    """
    side = 512 if q[3] <= 128 else 256
    fit = lambda length, most: length if length <= 128 else min(most, -(-length // 128) * 128)
    if q[1] > 1:
        return fit(q[1], side), fit(k[1], side)
    even = [n for n in range(4 * side, 0, -128) if k[1] % n == 0]
    return 1, even[0] if even else fit(k[1], 4 * side)
