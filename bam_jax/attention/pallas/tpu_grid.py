"""The grid that TPU kernels walk over: operands in blocks, and the tiles that each block needs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Int

from bam_jax.attention.logits import measured_tiles, skipping, tile
from bam_jax.attention.logits.scoring import Content, Scoring
from bam_jax.attention.logits.skipping import Runs, Tiling
from bam_jax.attention.pallas.strips import hides_later, without_coordinates
from bam_jax.attention.pallas.tpu_layout import dimension_semantics, sequence_last
from bam_jax.attention.pallas.tpu_profiles import ProfileStrips
from bam_jax.attention.pallas.tpu_strips import RolledStrips
from bam_jax.biases import Bias, Mixture, Uniform
from bam_jax.system.axes import typed

_INTERPRET: Any = True  # How kernels run on a CPU.

# From this many held blocks on, each held head may have its own grid. We assume about 10 us to start a grid and 0.3 us for a
# step without a tile; neither is measured.
_MANY_BLOCKS = 16

# With more held blocks over all heads, each head also has its own grid: the segments of all heads would fill half of the 1 MiB
# that a v5e has for scalars.
_MOST_RUNS = 2**15

_MEMORY = 2**24  # bytes of a core's memory that a kernel may use on every chip

_NEVER = 2**30  # beyond the last step of any grid


@dataclasses.dataclass(frozen=True)
class GridStep:
    """The kernel's current step in the grid."""

    queries: tile.Queries  # the tokens of the tile
    keys: tile.Keys
    parameters: tile.Parameters  # of the bias
    number: Callable  # n -> the n-th parameter of this head, a scalar
    in_strips: Callable | None  # () -> the bias of the tile if it comes in strips; None: it is a formula
    diagonal: Any  # index of the tile's strip
    first: Array  # whether this is the first, or last, step of the held block
    last: Array
    first_of_head: Array  # whether this is the held block's first step of a query head
    first_block: Array  # whether the held block is the head's first
    needed: Array  # whether there is a tile to compute
    whole: Array | None  # whether every query of the tile sees every key; None: not known
    near: Array | None  # whether the tile's biases may be nonzero; None: not known
    content: Content  # the content scores of products

    def bias(self, near: bool, width: int = 1) -> Bias:
        """The bias of this head. Each parameter is broadcast to this many lanes, because Mosaic needs vectors in a formula."""
        if not near:
            return Uniform()
        if self.in_strips is not None:
            return self.in_strips()
        return self.parameters.bias([jnp.full((1, width), self.number(n)) for n in range(sum(self.parameters.sizes))])

    def when_needed(self, compute: Callable[[bool, bool], None]) -> None:
        """Call `compute(whole, near)` if the tile is needed. Whole tiles need no mask, and tiles that are not near no bias."""
        if self.whole is None:
            pl.when(self.needed)(lambda: compute(False, True))
            return
        near = True if self.near is None else self.near
        pl.when(self.needed & self.whole & near)(lambda: compute(True, True))
        pl.when(self.needed & ~self.whole)(lambda: compute(False, True))
        if self.near is not None:
            pl.when(self.needed & self.whole & ~near)(lambda: compute(True, False))


@dataclasses.dataclass(frozen=True)
class TileGrid:
    """The operands in the kernels' layout, and the tiles of the logits to compute.

    The sequence is the last axis, along the lanes, which come in groups of 128; a head width of 64 there would be padded to
    twice its size. The sequence is padded to whole blocks with empty slots, which are never visible.
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
    whole_runs: tuple[Runs, Runs] | None  # of keys and of queries, without hidden pairs; None: not known
    block_q: int
    block_k: int
    content: Content
    strips: RolledStrips | ProfileStrips | None  # of the bias; None: it is a formula
    weights: Array | None  # [#B, heads or fewer, C, T], of the profiles of a mixture
    heads_differ: bool  # whether heads may need different tiles

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
        """Lay out q [B, T, H, D] and k, v [B, S, K, D], and find the tiles to compute.

        With a shift (see `strips.slot_shift`) the bias comes in strips, otherwise it is a formula. If `marked`, keys with
        non-finite values are already NaN, as from `mask_nonfinite`; otherwise the kernel handles them.
        """
        block_q, block_k = measured_tiles.fill(tiling, q, k).blocks(*_block_sizes(q.shape, k.shape))
        whole = skipping.padded(scoring, block_q, block_k)
        mixed, weights = isinstance(scoring.bias, Mixture), None
        queries, keys = tile.sides(without_coordinates(whole) if mixed else whole)
        inner = scoring.bias if shift is None else Uniform()
        parameters = tile.Parameters.of(inner)
        runs = skipping.runs(q, k, whole, tiling.skip, block_q, block_k, None if marked else v)
        bounded = type(scoring.bias).bounds is not Bias.bounds
        one_tile = block_q >= q.shape[1] and block_k >= k.shape[1]
        strips: RolledStrips | ProfileStrips | None = None
        if shift is not None:
            causal = hides_later(scoring)
            sizes = block_q, block_k, runs[0].length.shape[1], runs[1].length.shape[1]
            if isinstance(scoring.bias, Mixture):
                number = len(whole.queries.coordinate)
                strips = ProfileStrips(scoring.bias.profiles, shift, causal, number, *sizes, q.dtype == jnp.float32)
                weights = strips.weights(whole.queries.coordinate)
            else:
                strips = RolledStrips(scoring.bias, shift, causal, q.shape[2], *sizes)
        return cls(
            sequence_last(q, block_q),
            sequence_last(k, block_k),
            sequence_last(v, block_k),
            queries,
            keys,
            parameters.table(inner, q.shape[2]),
            parameters,
            *runs,
            None if one_tile and scoring.mask.causal else skipping.whole_runs(q, k, whole, block_q, block_k),
            block_q,
            block_k,
            scoring.content(q.shape[-1]),
            strips,
            weights,
            heads_differ=tiling.skip != "off" and not isinstance(scoring.bias, Uniform) and bounded,
        )

    def per_query(self, count: int) -> jax.ShapeDtypeStruct | None:
        """An output of `count` numbers for each query, [B, H, count, T]."""
        return jax.ShapeDtypeStruct((*self.q.shape[:2], count, self.q.shape[3]), jnp.float32) if count else None

    def per_key(self, count: int) -> jax.ShapeDtypeStruct | None:
        """An output of `count` numbers for each query head and key, [B, H, count, S]."""
        return jax.ShapeDtypeStruct((*self.q.shape[:2], count, self.k.shape[3]), jnp.float32) if count else None

    def per_diagonal(self) -> jax.ShapeDtypeStruct | None:
        """An output of sums along the diagonals of tiles, for each query head, [B, H, ...]."""
        if self.strips is None:
            return None
        return jax.ShapeDtypeStruct((*self.q.shape[:2], *self.strips.sums), jnp.float32)

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
        return Walk.of(self, hold_queries=True).run(kernel, query_operands, outputs, whole_outputs, scratch)

    def over_queries(
        self, kernel: Callable, query_operands: Any, outputs: tuple, scratch: list[tuple[int, int]]
    ) -> Any:
        """Run a kernel that holds a block of keys and walks, query head by query head, over the query blocks that need it."""
        return Walk.of(self, hold_queries=False).run(kernel, query_operands, outputs, (), scratch)


class _Segments(NamedTuple):
    """The steps of each pair of held blocks in segments: one per query head for the first block, then for the second.

    Each field is an array [held heads * pairs * size]. The segments of a pair are padded to a power of two, so that a step finds
    its segment with few instructions: index maps are computed for every operand, in every step.
    """

    start: Any  # first step; `_NEVER` if there is no segment: padding, or the missing partner of the middle block
    last: Any  # last step
    end: Any  # one past the last step with a tile to compute
    base: Any  # block of the other side = base + step


class _Scalars(NamedTuple):
    """Scalars that are loaded before the blocks: index maps compute from `segments` and `head` which blocks to fetch."""

    table: Any  # [H, P], the parameters of the bias
    segments: _Segments
    whole: Any  # [1, held blocks], see `Walk`
    near: Any  # [2], the range of strips that may be nonzero, end excluded; None: all
    head: Any  # [1], the first held head of the grid; None: 0


@dataclasses.dataclass(frozen=True)
class Walk:
    """One pass of a kernel over the tiles: a block of one side is held while the blocks of the other side are streamed.

    The grid is [batch, held head, pair of held blocks, steps], named b, c, p and t in index maps. The steps of a block are the
    runs of its query heads, one after another: a kernel that holds keys walks over all query heads of a key head, so the
    gradient of a key is accumulated on the chip and written once.

    Every pair in a grid takes as many steps as the longest pair, and an empty step still takes time. So block n is paired with
    block N - 1 - n: in causal rows the first block needs one tile and the last needs all. With many blocks, if heads may need
    different tiles, each held head has its own grid, so local heads do not wait for long-range heads.
    """

    tiles: "TileGrid"
    hold_queries: bool  # whether the held side is the queries
    first: Array  # [H, held blocks], the run of other blocks that each needs
    count: Array
    whole: Runs | None  # [1, held blocks], the run of other blocks that need no mask

    @classmethod
    def of(cls, tiles: "TileGrid", *, hold_queries: bool) -> "Walk":
        runs = tiles.runs_of_keys if hold_queries else tiles.runs_of_queries
        whole = None if tiles.whole_runs is None else tiles.whole_runs[0 if hold_queries else 1]
        return cls(tiles, hold_queries, runs.first, runs.length, whole)

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return len(self.first)

    @property
    def group(self) -> int:
        """Number of query heads per held block."""
        return 1 if self.hold_queries else self.heads // self.tiles.k.shape[1]

    @property
    def blocks(self) -> int:
        """Held blocks of a head."""
        return self.first.shape[1]

    @property
    def held(self) -> int:
        """Held heads."""
        return self.heads // self.group

    @property
    def apart(self) -> bool:
        """Whether each held head has its own grid, because heads differ or because one grid would have too many segments."""
        return (self.tiles.heads_differ and self.blocks >= _MANY_BLOCKS) or self.count.size > _MOST_RUNS

    @property
    def pairs(self) -> int:
        """Number of pairs of held blocks of a head."""
        return -(-self.blocks // 2)

    @property
    def size(self) -> int:
        """Number of segments of a pair, padded to a power of two."""
        return 2 * 2 ** (self.group - 1).bit_length()

    def segments(self) -> tuple[_Segments, Int[Array, " held"]]:
        """The segments of all pairs, and the steps of each held head's longest pair."""

        def by_pair(x: Array) -> Int[Array, "held pairs 2 group"]:
            x = x.reshape(self.held, self.group, self.blocks)
            return jnp.stack([x[..., : self.pairs], x[..., ::-1][..., : self.pairs]]).transpose(1, 3, 0, 2)

        first, count = by_pair(self.first), by_pair(self.count)
        lonely = (jnp.arange(self.pairs) == self.blocks - 1 - jnp.arange(self.pairs))[:, None, None]
        missing = lonely & (jnp.arange(2) == 1)[:, None]
        # At least one step each, which writes the outputs.
        steps = jnp.where(missing, 0, jnp.maximum(count, 1))
        stop = jnp.cumsum(steps.reshape(self.held, self.pairs, -1), axis=2).reshape(steps.shape)
        start = jnp.where(missing, _NEVER, stop - steps)

        def flat(x: Array, fill: int) -> Int[Array, " N"]:
            x = x.reshape(self.held, self.pairs, 2 * self.group)
            filled = jnp.pad(x, ((0, 0), (0, 0), (0, self.size - x.shape[2])), constant_values=fill)
            return filled.ravel()

        made = flat(start, _NEVER), flat(stop - 1, 0), flat(start + count, 0), flat(first - start, 0)
        return _Segments(*made), stop.reshape(self.held, -1).max(1)

    def run(
        self,
        kernel: Callable,
        query_operands: Any,
        outputs: tuple,
        whole_outputs: tuple,
        scratch: list[tuple[int, int]],
    ) -> Any:
        """The kernel's outputs; see `TileGrid.over_keys`."""
        tiles = self.tiles
        strip = None if tiles.strips is None else tiles.strips.operand(keys_in_sublanes=self.hold_queries)
        near = None if tiles.strips is None else tiles.strips.near()
        operands = (strip, tiles.weights, query_operands, tiles.queries, tiles.k, tiles.v, tiles.keys)
        body = self._body(kernel, len(scratch))  # one for both platforms, so that it is traced once
        grids = self.held if self.apart else 1
        of_grid = lambda x: jax.ShapeDtypeStruct((x.shape[0], x.shape[1] // grids, *x.shape[2:]), x.dtype)
        outputs, whole_outputs = jax.tree.map(of_grid, (outputs, whole_outputs))
        segments, steps = self.segments()
        # A core has more memory than kernels get by default. Sums over all offsets of long texts need more than the default.
        summed = sum(4 * x.shape[2] * x.shape[3] for x in jax.tree.leaves(whole_outputs))
        memory = _MEMORY + summed if summed > _MEMORY // 4 else None

        def call(steps: Array, *arguments: Any, interpret: Any) -> Any:
            return pl.pallas_call(
                body,
                out_shape=typed((*outputs, *whole_outputs), tiles.q),
                grid_spec=pltpu.PrefetchScalarGridSpec(
                    num_scalar_prefetch=len(_Scalars._fields),
                    grid=(tiles.q.shape[0], self.held // grids, self.pairs, steps),
                    in_specs=self._input_specs(*operands),
                    out_specs=self._output_specs(outputs, whole_outputs),
                    # Sums over many tiles are float32 for all operands, because small summands would vanish in bfloat16.
                    scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
                ),
                compiler_params=pltpu.CompilerParams(
                    dimension_semantics=dimension_semantics(whole_outputs), vmem_limit_bytes=memory
                ),
                interpret=interpret,
                name=getattr(kernel, "func", kernel).__name__,  # also for a partial: reports find kernels by name
            )(*arguments)

        def grid(steps: Array, segments: _Segments, head: Array | None) -> Any:
            return jax.lax.platform_dependent(
                steps,
                *_Scalars(tiles.table, segments, self.whole, near, head),
                *operands,
                tpu=functools.partial(call, interpret=False),
                cpu=functools.partial(call, interpret=_INTERPRET),
            )

        if not self.apart:
            return grid(steps.max(), segments, None)
        by_head = jax.tree.map(lambda x: x.reshape(self.held, -1), segments)
        heads = jnp.arange(self.held, dtype=jnp.int32)[:, None]
        made = jax.lax.map(lambda x: grid(*x), (steps, by_head, heads))
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(x.shape[1], -1, *x.shape[3:]), made)

    def _body(self, kernel: Callable, scratch_count: int) -> Callable:
        """The function that Pallas calls: it passes the current `GridStep` to the kernel."""

        def body(
            table: Any,
            segments: Any,
            whole: Any,
            near: Any,
            head: Any,
            strip: Any,
            weights: Any,
            query_operands: Any,
            queries: Any,
            k: Any,
            v: Any,
            keys: Any,
            *rest: Any,
        ) -> None:
            b, c, p, t = at = tuple(pl.program_id(axis) for axis in range(4))
            scalars = _Scalars(table, segments, whole, near, head)
            segment, of_held, n = self._place(c, p, t, segments)
            _, h, other = self._other(b, c, p, t, *scalars)
            diagonal = self._diagonal(*at, *scalars)[2]
            start, strips = segments.start[segment], self.tiles.strips
            in_strips = functools.partial(strips.in_tile, strip, weights) if strips else None
            step = GridStep(
                queries,
                keys,
                self.tiles.parameters,
                lambda n: table[h, n],
                in_strips,
                diagonal,
                first=(t == start) & (of_held == 0),
                last=(t == segments.last[segment]) & (of_held == self.group - 1),
                first_of_head=t == start,
                first_block=n == 0,
                needed=t < segments.end[segment],
                whole=None if whole is None else _within(whole, n, other),
                near=None if near is None else (near[0] <= diagonal) & (diagonal < near[1]),
                content=self.tiles.content,
            )
            outputs, scratch = rest[:-scratch_count], rest[-scratch_count:]
            kernel(step, query_operands, k, v, outputs, *scratch)

        return body

    def _input_specs(
        self, strip: Any, weights: Any, query_operands: Any, queries: Any, k: Any, v: Any, keys: Any
    ) -> list:
        """The block of every operand at a step of the grid."""
        tiles = self.tiles
        at_queries, at_keys = (self._held, self._other) if self.hold_queries else (self._other, self._held)
        width = 0 if tiles.strips is None else tiles.strips.width
        of_strip = lambda x: self._spec(x, width, self._diagonal)
        of_queries = lambda x: self._spec(x, tiles.block_q, at_queries)
        of_keys = lambda x: self._spec(x, tiles.block_k, at_keys)
        return [
            jax.tree.map(of_strip, strip),
            jax.tree.map(of_queries, weights),
            jax.tree.map(of_queries, query_operands),
            jax.tree.map(of_queries, queries),
            jax.tree.map(of_keys, k),
            jax.tree.map(of_keys, v),
            jax.tree.map(of_keys, keys),
        ]

    def _output_specs(self, outputs: tuple, whole_outputs: tuple) -> tuple:
        """The block of every output at a step of the grid; the block of a whole output covers a head."""
        block = self.tiles.block_q if self.hold_queries else self.tiles.block_k
        # A whole output stays on the chip for all blocks of a head, so a second buffer would take memory and save nothing.
        once = pl.Buffered(1)
        return (
            *jax.tree.map(lambda x: self._spec(x, block, self._made, self._heads_made), outputs),
            *jax.tree.map(lambda x: self._spec(x, x.shape[3], self._head, self._heads_made, once), whole_outputs),
        )

    @property
    def _heads_made(self) -> int:
        """Query heads of a grid's outputs."""
        return self.group if self.apart else self.heads

    def _spec(self, x: Array, block: int, at: Callable, heads: int = 0, mode: Any = None) -> pl.BlockSpec:
        """The block of an array [#B, heads or fewer, n, length] where `at` gives the batch index, query head and block."""
        shared = (heads or self.heads) // x.shape[1]

        def index(*grid: Any) -> tuple:
            b, h, n = at(*grid)
            return b if x.shape[0] != 1 else 0, h // shared, 0, n

        return pl.BlockSpec((None, None, x.shape[2], block), index, pipeline_mode=mode)

    def _place(self, c: Array, p: Array, t: Array, segments: _Segments) -> tuple[Array, Array, Array]:
        """The segment at a step of a pair, the index of its query head in the key head's group, and the held block."""
        of_pair, number = (c * self.pairs + p) * self.size, jnp.int32(0)
        for bit in range(self.size.bit_length() - 2, -1, -1):  # bisection: the starts are ascending
            if self.blocks == 1 and 2**bit >= self.group:
                continue  # the only block has no partner
            later = number + 2**bit
            number = jnp.where(t >= segments.start[of_pair + later], later, number)
        second = number >= self.group
        of_held = number - jnp.where(second, self.group, 0) if self.group > 1 else jnp.int32(0)
        return of_pair + number, of_held, jnp.where(second, self.blocks - 1 - p, p)

    def _held(self, b: Array, c: Array, p: Array, t: Array, *scalars: Any) -> tuple:
        of = _Scalars(*scalars)
        _, of_held, n = self._place(c, p, t, of.segments)
        return b, (c if of.head is None else of.head[0]) * self.group + of_held, n

    def _made(self, b: Array, c: Array, p: Array, t: Array, *scalars: Any) -> tuple:
        """As `_held`, for outputs, whose heads are those of the grid."""
        return self._held(b, c, p, t, *_Scalars(*scalars)._replace(head=None))

    def _other(self, b: Array, c: Array, p: Array, t: Array, *scalars: Any) -> tuple:
        _, h, _ = self._held(b, c, p, t, *scalars)
        segments = _Scalars(*scalars).segments
        segment, _, _ = self._place(c, p, t, segments)
        # After the last step the index stays the same, so nothing is fetched for steps without work.
        return b, h, jnp.minimum(t, segments.last[segment]) + segments.base[segment]

    def _diagonal(self, *at: Any) -> tuple:
        (b, h, n), (_, _, m) = self._held(*at), self._other(*at)
        if self.tiles.strips is None:
            return b, h, 0
        return b, h, self.tiles.strips.index(n, m) if self.hold_queries else self.tiles.strips.index(m, n)

    def _head(self, b: Array, c: Array, *_: Any) -> tuple:
        return b, c, 0


def _within(runs: Runs, n: Array, block: Array) -> Array:
    """Whether a block is in the n-th run of [1, N], in a kernel."""
    first = runs.first[0, n]
    return (block >= first) & (block < first + runs.length[0, n])


def _block_sizes(q: tuple[int, ...], k: tuple[int, ...]) -> tuple[int, int]:
    """Query and key block sizes: 512, or 256 for wide heads; four times as many keys for one query."""
    side = 512 if q[3] <= 128 else 256  # half as many tokens of heads twice as wide take the same memory on the chip

    def fit(length: int, most: int) -> int:
        """A multiple of 128, the number of lanes, or all of a short row."""
        return length if length <= 128 else min(most, -(-length // 128) * 128)

    if q[1] > 1:
        return fit(q[1], side), fit(k[1], side)
    # For one query, choose a block that divides the keys if possible: padding would copy the cache in every decoding step.
    even = [n for n in range(4 * side, 0, -128) if k[1] % n == 0]
    return 1, even[0] if even else fit(k[1], 4 * side)
