"""The grid that TPU kernels walk over: operands in blocks, and the tiles that each block needs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from bam_jax.attention.logits import measured_tiles, skipping, tile
from bam_jax.attention.logits.scoring import Content, Scoring
from bam_jax.attention.logits.skipping import Runs, Tiling
from bam_jax.attention.pallas.strips import hides_later
from bam_jax.attention.pallas.tpu_layout import dimension_semantics, sequence_last
from bam_jax.attention.pallas.tpu_strips import RolledStrips, StripBias
from bam_jax.biases import Bias, Uniform
from bam_jax.system.axes import typed

_INTERPRET: Any = True  # How kernels run on a CPU.


@dataclasses.dataclass(frozen=True)
class GridStep:
    """The place in the grid where a kernel stands."""

    queries: tile.Queries  # what it reads of the tokens
    keys: tile.Keys
    parameters: tile.Parameters  # of the bias
    number: Callable  # n -> the n-th parameter of this head, a scalar
    strip: Any  # the tile's strip and the strip's number where the bias comes in strips; None and 0 for a formula
    diagonal: Any
    first: Array  # whether this is the first, or last, step of the held block
    last: Array
    first_of_head: Array  # whether this is the first step of a query head
    first_block: Array  # whether the held block is the head's first
    needed: Array  # whether there is a tile to compute
    content: Content  # what products of queries and keys become

    def bias(self, width: int = 1) -> Bias:
        """The bias of this head, each parameter spread over this many lanes: Mosaic takes vectors in a formula."""
        if self.strip is not None:
            return StripBias(self.strip)
        return self.parameters.bias([jnp.full((1, width), self.number(n)) for n in range(sum(self.parameters.sizes))])


@dataclasses.dataclass(frozen=True)
class TileGrid:
    """The operands in the kernels' layout, and the tiles of the table of logits to walk over.

    The sequence is the last axis, where lanes come in 128s; a head width of 64 there would be padded to twice its size. It
    is padded to whole blocks by tokens that nobody sees.
    """

    q: Array  # [B, H, D, T]
    k: Array  # [B, K, D, S]
    v: Array
    queries: tile.Queries
    keys: tile.Keys
    table: Array  # [H, P], the parameters of the bias
    parameters: tile.Parameters
    runs_of_keys: Runs  # [H, query blocks]
    runs_of_queries: Runs  # [H, key blocks]
    block_q: int
    block_k: int
    content: Content
    strips: RolledStrips | None  # of the bias; None: it is a formula

    @classmethod
    def of(
        cls,
        q: Array,
        k: Array,
        v: Array,
        scoring: Scoring,
        tiling: Tiling,
        shift: Array | None = None,
        marked: bool = True,
    ) -> "TileGrid":
        """Lay out q [B, T, H, D] and k, v [B, S, K, D], and find out over which tiles to walk.

        With a shift (see `strips.slot_shift`) the bias comes in strips, without one it is a formula. Keys are
        marked where their values are not finite, as `mask_nonfinite` does it, or the kernel sees to that.
        """
        block_q, block_k = measured_tiles.fill(tiling, q, k).blocks(*_block_sizes(q.shape, k.shape))
        whole = skipping.padded(scoring, block_q, block_k)
        queries, keys = tile.sides(whole)
        inner = scoring.bias if shift is None else Uniform()
        parameters = tile.Parameters.of(inner)
        runs = skipping.runs(q, k, whole, tiling.skip, block_q, block_k, None if marked else v)
        strips = None
        if shift is not None:
            blocks = (side.length.shape[1] for side in runs)
            strips = RolledStrips(scoring.bias, shift, hides_later(scoring), q.shape[2], block_q, block_k, *blocks)
        return cls(
            sequence_last(q, block_q),
            sequence_last(k, block_k),
            sequence_last(v, block_k),
            queries,
            keys,
            parameters.table(inner, q.shape[2]),
            parameters,
            *runs,
            block_q,
            block_k,
            scoring.content(q.shape[-1]),
            strips,
        )

    def per_query(self, count: int) -> jax.ShapeDtypeStruct | None:
        """An output of some numbers for each query, [B, H, count, T]."""
        return jax.ShapeDtypeStruct((*self.q.shape[:2], count, self.q.shape[3]), jnp.float32) if count else None

    def per_key(self, count: int) -> jax.ShapeDtypeStruct | None:
        """An output of some numbers for each query head and key, [B, H, count, S]."""
        return jax.ShapeDtypeStruct((*self.q.shape[:2], count, self.k.shape[3]), jnp.float32) if count else None

    def per_diagonal(self) -> jax.ShapeDtypeStruct | None:
        """An output of a number for each query head and diagonal of its tiles, [B, H, G, W]."""
        if self.strips is None:
            return None
        return jax.ShapeDtypeStruct((*self.q.shape[:2], self.strips.count, self.strips.width), jnp.float32)

    def over_keys(
        self,
        kernel: Callable,
        query_operands: Any,
        outputs: tuple,
        scratch: list[tuple[int, int]],
        whole_outputs: tuple = (),
    ) -> Any:
        """Run a kernel that holds a block of queries and walks over the key blocks that it needs.

        The operands of queries are a tree of arrays [#B, heads or fewer, n, T].
        """
        return _Walk.of(self, hold_queries=True).run(kernel, query_operands, outputs, whole_outputs, scratch)

    def over_queries(
        self, kernel: Callable, query_operands: Any, outputs: tuple, scratch: list[tuple[int, int]]
    ) -> Any:
        """Run a kernel that holds a block of keys and walks, query head by query head, over the query blocks that need it."""
        return _Walk.of(self, hold_queries=False).run(kernel, query_operands, outputs, (), scratch)


@dataclasses.dataclass(frozen=True)
class _Walk:
    """One pass of a kernel over the tiles: a block of one side is held while those of the other side pass by.

    The grid is [batch, held head, held block, its query heads, blocks of the other side], in index maps b, c, n, g and m. A
    kernel that holds keys walks over all query heads of a key head, so that the gradient of a key is summed where it is held
    and leaves the chip once.
    """

    tiles: "TileGrid"
    hold_queries: bool  # whether the held side is that of the queries
    first: Array  # [H, held blocks], the run of other blocks that each needs
    count: Array

    @classmethod
    def of(cls, tiles: "TileGrid", *, hold_queries: bool) -> "_Walk":
        runs = tiles.runs_of_keys if hold_queries else tiles.runs_of_queries
        return cls(tiles, hold_queries, runs.first, runs.length)

    @property
    def heads(self) -> int:
        """Query heads."""
        return len(self.first)

    @property
    def group(self) -> int:
        """Query heads that one held block serves."""
        return 1 if self.hold_queries else self.heads // self.tiles.k.shape[1]

    def run(
        self,
        kernel: Callable,
        query_operands: Any,
        outputs: tuple,
        whole_outputs: tuple,
        scratch: list[tuple[int, int]],
    ) -> Any:
        """The kernel's outputs; see `TileGrid.over_keys`."""
        tiles, strip = self.tiles, None
        if tiles.strips is not None:
            strip = tiles.strips.rolled(keys_in_sublanes=self.hold_queries).reshape(1, self.heads, 1, -1)
        # Scalars come ahead of the blocks, since they decide which blocks are fetched.
        scalars = (tiles.table, self.first, self.count)
        operands = (strip, query_operands, tiles.queries, tiles.k, tiles.v, tiles.keys)
        body = self._body(kernel, len(scratch))  # one for both platforms, so that it is traced once
        # The longest run, but at least one step, which writes the outputs. Steps without work still take time.
        steps = jnp.maximum(self.count.max(), 1)

        def call(steps: Array, *arguments: Any, interpret: Any) -> Any:
            return pl.pallas_call(
                body,
                out_shape=typed((*outputs, *whole_outputs), tiles.q),
                grid_spec=pltpu.PrefetchScalarGridSpec(
                    num_scalar_prefetch=len(scalars),
                    grid=(tiles.q.shape[0], self.heads // self.group, self.first.shape[1], self.group, steps),
                    in_specs=self._input_specs(*operands),
                    out_specs=self._output_specs(outputs, whole_outputs),
                    # Sums over many tiles are float32 whatever the operands are: in bfloat16 small summands would vanish.
                    scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
                ),
                compiler_params=pltpu.CompilerParams(dimension_semantics=dimension_semantics(whole_outputs)),
                interpret=interpret,
                name=getattr(kernel, "func", kernel).__name__,  # of a partial, too: reports find kernels by their names
            )(*arguments)

        return jax.lax.platform_dependent(
            steps,
            *scalars,
            *operands,
            tpu=functools.partial(call, interpret=False),
            cpu=functools.partial(call, interpret=_INTERPRET),
        )

    def _body(self, kernel: Callable, scratch_count: int) -> Callable:
        """The kernel as Pallas calls it: it is told at which `GridStep` of the grid it stands."""

        def body(
            table: Any,
            first: Any,
            count: Any,
            strip: Any,
            query_operands: Any,
            queries: Any,
            k: Any,
            v: Any,
            keys: Any,
            *rest: Any,
        ) -> None:
            at = [pl.program_id(axis) for axis in range(5)]
            _, c, n, g, m = at
            h = c * self.group + g
            step = GridStep(
                queries,
                keys,
                self.tiles.parameters,
                lambda n: table[h, n],
                strip,
                self._diagonal(*at, table, first, count)[2],
                first=(g == 0) & (m == 0),
                last=(g == self.group - 1) & (m == pl.num_programs(4) - 1),
                first_of_head=m == 0,
                first_block=n == 0,
                needed=m < count[h, n],
                content=self.tiles.content,
            )
            outputs, scratch = rest[:-scratch_count], rest[-scratch_count:]
            kernel(step, query_operands, k, v, outputs, *scratch)

        return body

    def _input_specs(self, strip: Any, query_operands: Any, queries: Any, k: Any, v: Any, keys: Any) -> list:
        """The block of every operand at a step of the grid."""
        tiles = self.tiles
        at_queries, at_keys = (self._held, self._other) if self.hold_queries else (self._other, self._held)
        width = 0 if tiles.strips is None else tiles.strips.width
        of_strip = lambda x: self._spec(x, width, self._diagonal)
        of_queries = lambda x: self._spec(x, tiles.block_q, at_queries)
        of_keys = lambda x: self._spec(x, tiles.block_k, at_keys)
        return [
            jax.tree.map(of_strip, strip),
            jax.tree.map(of_queries, query_operands),
            jax.tree.map(of_queries, queries),
            jax.tree.map(of_keys, k),
            jax.tree.map(of_keys, v),
            jax.tree.map(of_keys, keys),
        ]

    def _output_specs(self, outputs: tuple, whole_outputs: tuple) -> tuple:
        """The block of every output at a step of the grid; that of a whole one is all of a head."""
        block = self.tiles.block_q if self.hold_queries else self.tiles.block_k
        # A whole output stays on the chip for a head's every block: a second buffer for it would take room and save nothing.
        once = pl.Buffered(1)
        return (
            *jax.tree.map(lambda x: self._spec(x, block, self._held), outputs),
            *jax.tree.map(lambda x: self._spec(x, x.shape[3], self._head, once), whole_outputs),
        )

    def _spec(self, x: Array, block: int, at: Callable, mode: Any = None) -> pl.BlockSpec:
        """The block of an array [#B, heads or fewer, n, length] where `at` gives the batch index, query head and block."""

        def index(*grid: Any) -> tuple:
            b, h, n = at(*grid)
            return b if x.shape[0] != 1 else 0, h // (self.heads // x.shape[1]), 0, n

        return pl.BlockSpec((None, None, x.shape[2], block), index, pipeline_mode=mode)

    def _held(self, b: Array, c: Array, n: Array, g: Array, m: Array, *_: Any) -> tuple:
        return b, c * self.group + g, n

    def _other(self, b: Array, c: Array, n: Array, g: Array, m: Array, table: Any, first: Any, count: Any) -> tuple:
        # Behind the last block that is needed the index stays the same, and nothing is fetched for steps without work.
        h = c * self.group + g
        return b, h, first[h, n] + jnp.minimum(m, jnp.maximum(count[h, n] - 1, 0))

    def _diagonal(self, *at: Any) -> tuple:
        (b, h, n), (_, _, m) = self._held(*at), self._other(*at)
        if self.tiles.strips is None:
            return b, h, 0
        return b, h, self.tiles.strips.index(n, m) if self.hold_queries else self.tiles.strips.index(m, n)

    def _head(self, b: Array, c: Array, *_: Any) -> tuple:
        return b, c, 0


def _block_sizes(q: tuple[int, ...], k: tuple[int, ...]) -> tuple[int, int]:
    """Query and key block: 512, or 256 for wide heads; four times as many keys for one query."""
    side = 512 if q[3] <= 128 else 256  # half as many tokens of heads twice as wide fill the same memory on the chip

    def fit(length: int, most: int) -> int:
        """A multiple of 128, as lanes come, or the whole of a short row."""
        return length if length <= 128 else min(most, -(-length // 128) * 128)

    if q[1] > 1:
        return fit(q[1], side), fit(k[1], side)
    # One query's keys are cut evenly where they can be: padding would copy the cache in every step of decoding.
    even = [n for n in range(4 * side, 0, -128) if k[1] % n == 0]
    return 1, even[0] if even else fit(k[1], 4 * side)
