"""The pipeline that GPU kernels run in: two warpgroups compute tiles, a third copies blocks into shared memory.

The stationary side lies along the rows of the tiles, 64 in each compute warpgroup. Every sum over the streamed side then runs
along a row, within four threads. The streamed side arrives in blocks that both compute warpgroups read.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from bam_jax.attention.logits import measured_tiles, skipping, tile
from bam_jax.attention.logits.scoring import Content, Scoring
from bam_jax.attention.logits.skipping import Runs, Tiling
from bam_jax.attention.logits.tokens import EMPTY
from bam_jax.attention.pallas import gpu_profiles
from bam_jax.attention.pallas.gpu_arithmetic import (
    ALONG_COLUMNS,
    ALONG_ROWS,
    COMPUTING,
    INTERPRETER,
    SWIZZLES,
    TILE_ROWS,
    interpreted,
    keep_finite,
    spread,
    swizzled,
)
from bam_jax.attention.pallas.gpu_profiles import MixedTile, ProfileStrips
from bam_jax.attention.pallas.gpu_strips import PairedStrips, StripBias, strip_bias
from bam_jax.attention.pallas.strips import hides_later, without_coordinates
from bam_jax.biases import Bias, Mixture, Uniform
from bam_jax.system.axes import typed

HELD = COMPUTING * TILE_ROWS  # tokens that a thread block holds

# Buffers of each operand: tiles are computed from one while the other is filled.
_STAGES = 2
_SHARED_MEMORY = 227 * 2**10  # Bytes per thread block on Hopper.
_KILOBYTE = 2**10  # Taken by the buffers of a vector; row sums and barriers take three.

MEMORY_REGISTERS = 40  # Per thread that only starts copies; the compute warpgroups share the registers it releases.
# Sequences up to this length have few negligible tiles. By an estimate, reading all queries and keys for bounds takes longer.
_SHORT = 512


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The work of the compute warpgroups."""

    name: str  # shown by profilers
    start: Callable  # (head width) -> state, before the first tile
    step: Callable  # (tile, state) -> state
    finish: Callable  # state -> (matrices [64, D], vectors [64]) to store
    width: int  # the streamed side's tokens in a tile
    slopes: tuple[
        int, ...
    ] = ()  # the columns of the bias's parameter table whose derivatives it reads, if the bias comes in strips


@dataclasses.dataclass(frozen=True)
class LoadedTile:
    """The data of one tile for a warpgroup: matrices in shared memory, and vectors of its tokens in registers."""

    stationary: tuple  # references to matrices of the side that lies along the rows, [64, D]
    streamed: tuple  # references to matrices of the side that lies along the columns, [n, D]
    along_rows: Any  # trees of vectors of each side, broadcast to the tile, [64, n]
    along_columns: Any
    columns_again: (
        Callable  # () -> along_columns, read again for the mask; tiles without a mask do not read what only masks need
    )
    # () -> None: replaces non-finite values of keys before they are multiplied; a tile without a mask has none
    mend: Callable
    whole: Array | bool  # whether every query sees every key, and the values of all keys are finite
    bias: Any  # of this head, with its parameters broadcast too; or of this tile, from a strip or mixed from several
    mixed: MixedTile | None  # the operands of a mixed bias
    content: Content  # the content scores of products


class _Side(NamedTuple):
    """The operands of one side: matrices [B, length, heads, D], a tree of vectors [#B, #H, 1, length], tokens per block."""

    matrices: tuple
    vectors: Any
    block: int
    weights: tuple = ()  # for queries only; see `TilePipeline`

    @property
    def operands(self) -> tuple:
        """The matrices, the weights last."""
        return *self.matrices, *self.weights

    @property
    def orders(self) -> list[tuple]:
        """Their tiling and swizzle in shared memory; the two parts of the weights are multiplied separately."""
        return [
            *(swizzled(x, x.shape[3]) for x in self.matrices),
            *(swizzled(x, x.shape[3] // 2) for x in self.weights),
        ]


class _Inputs(NamedTuple):
    """References to everything that a kernel reads, in global memory."""

    table: Any
    flawed: Any
    runs: Any
    held_matrices: tuple
    held_vectors: Any
    other_matrices: tuple
    other_vectors: Any
    strips: Any  # [#H, strips, numbers], or none
    near: Any  # [2], the range of strips whose mixed profiles are not all 0, end excluded; None: any may be nonzero


@dataclasses.dataclass(frozen=True)
class TilePipeline:
    """The operands, padded to whole blocks and swizzled rows, and the tiles of the logits to compute."""

    q: Array  # [B, T, H, D]
    k: Array  # [B, S, K, D]
    v: Array
    queries: tile.Queries
    keys: tile.Keys
    table: Array | None  # [H, P], the parameters of the bias; None: it has none
    flawed: Array  # [1], the first slot with a non-finite value; `EMPTY` if there is none
    parameters: tile.Parameters
    # [2, 4, H, N]: for each query block, and for each key block, the first block and the number of blocks of the other side,
    # first of those that it needs, then of those without hidden pairs
    runs: Array
    block_q: int
    block_k: int
    content: Content
    strip_bias: tuple[Bias, Array, bool] | None  # the first fields of its strips; None: it is a formula
    weights: tuple[Array, ...]  # of the profiles that queries mix, one array [B, T, H, 2 C]; empty: no mixture

    @classmethod
    def of(cls, q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling, shift: Array | None) -> "TilePipeline":
        """Lay out the operands of attention, [B, T, H, D] and [B, S, K, D], and find the tiles to compute.

        With a shift (see `strips.slot_shift`) the bias comes in strips, otherwise it is a formula.
        """
        block_q, block_k = measured_tiles.fill(tiling, q, k).blocks(HELD, HELD)
        if block_q % HELD or block_k % HELD:
            raise ValueError(f"tiles on a GPU are multiples of {HELD} queries and keys, got {block_q} x {block_k}")
        whole = skipping.padded(scoring, block_q, block_k)
        weights: tuple[Array, ...] = ()
        if isinstance(scoring.bias, Mixture):
            stacked = gpu_profiles.stack_weights(whole.queries.coordinate, q.dtype)
            weights = (jnp.broadcast_to(stacked, (q.shape[0], stacked.shape[1], q.shape[2], stacked.shape[3])),)
        queries, keys = tile.sides(without_coordinates(whole) if weights else whole)
        # As `mask_nonfinite`, but without writing new keys and values: a number per key is added to its logits before the mask,
        # and kernels replace non-finite values in shared memory. Without the barrier, XLA would read all values a second time
        # to find the first flawed slot.
        flaw = jax.lax.optimization_barrier((v.astype(jnp.float32) * 0).sum(-1).swapaxes(1, 2))  # 0 or NaN
        keys = dataclasses.replace(keys, flaw=skipping.pad(flaw, block_k)[:, :, None])
        formula = scoring.bias if shift is None else Uniform()
        parameters = tile.Parameters.of(formula)
        return cls(
            pad(q, block_q),
            pad(k, block_k),
            pad(v, block_k),
            queries,
            keys,
            parameters.table(formula, q.shape[2]) if parameters.shapes else None,
            skipping.first_false(flaw == 0)[None],
            parameters,
            _stacked(
                skipping.runs(q, k, whole, _worth_skipping(q, k, tiling), block_q, block_k, v),
                skipping.whole_runs(q, k, whole, block_q, block_k),
            ),
            block_q,
            block_k,
            scoring.content(q.shape[-1]),
            None if shift is None else (scoring.bias, shift, hides_later(scoring)),
            weights,
        )

    def strips(
        self, tokens: tuple[int, int], blocks: tuple[int, int], keys_in_rows: bool
    ) -> PairedStrips | ProfileStrips:
        """The strips for tiles of `tokens` queries and keys, and `blocks` blocks of each."""
        assert self.strip_bias is not None
        bias, shift, hidden = self.strip_bias
        if isinstance(bias, Mixture):
            number = len(jax.tree.leaves(bias.profiles)[0])
            return ProfileStrips(bias.profiles, shift, hidden, number, *tokens, *blocks, self.q.dtype)
        return PairedStrips(bias, shift, hidden, self.q.shape[2], *tokens, *blocks, keys_in_rows)

    def over_keys(
        self, kernel: Kernel, query_matrices: tuple, query_vectors: Any, *, matrices: Sequence[Any], vectors: int
    ) -> tuple[list[Array], Array]:
        """Run a kernel that holds queries and walks over the keys that they need.

        Args:
            query_matrices, query_vectors: [B, T, H, D], and a tree of [#B, #H, 1, T].
            matrices: a row of each matrix that the kernel computes, [D] or [2 C], in the operands' dtype or float32.
            vectors: the number of vectors that it computes.

        Returns:
            Matrices [B, T, H, row], and vectors [n, B, H, T] in float32.
        """
        stationary = _Side(query_matrices, query_vectors, self.block_q, self.weights)
        streamed = _Side((self.k, self.v), self.keys, self.block_k)
        return _Walk(self, kernel, stationary, streamed, matrices, vectors).run()

    def over_queries(
        self, kernel: Kernel, query_matrices: tuple, query_vectors: Any, *, matrices: Sequence[Any], vectors: int
    ) -> tuple[list[Array], Array]:
        """Run a kernel that holds keys, for each query head, and walks over the queries that need them; see `over_keys`.

        Returns:
            Matrices [B, S, H, D] and vectors [n, B, H, S], not yet summed over the query heads of a key head: otherwise several
            thread blocks would have to add to the same numbers.
        """
        stationary = _Side((self.k, self.v), self.keys, self.block_k)
        streamed = _Side(query_matrices, query_vectors, self.block_q, self.weights)
        return _Walk(self, kernel, stationary, streamed, matrices, vectors).run()


@dataclasses.dataclass(frozen=True)
class _Walk:
    """One pass of a kernel over the tiles, on the grid [query head, 128 tokens of the stationary side, batch]."""

    tiles: TilePipeline
    kernel: Kernel
    stationary: _Side
    streamed: _Side
    matrices: Sequence[Any]  # a row of each that the kernel computes
    vectors: int  # how many it computes

    def run(self) -> tuple[list[Array], Array]:
        """The kernel's matrices and vectors."""
        inputs = _Inputs(
            self.tiles.table,
            self.tiles.flawed,
            self.tiles.runs,
            self.stationary.operands,
            self.stationary.vectors,
            self.streamed.operands,
            self.streamed.vectors,
            () if self._strips is None else self._strips.array(self.kernel.slopes),
            self._strips.near() if isinstance(self._strips, ProfileStrips) else None,
        )
        leaves, structure = jax.tree.flatten(inputs)

        def body(*refs: Any) -> None:
            *arrays, held_memory, landed, passage = refs
            inputs = jax.tree.unflatten(structure, arrays[: len(leaves)])
            self._body(inputs, arrays[len(leaves) :], held_memory, landed, passage)

        (batch, _, heads, _), length = self.tiles.q.shape, self.stationary.matrices[0].shape[1]
        matrices = [jax.ShapeDtypeStruct((batch, length, heads, *x.shape), x.dtype) for x in self.matrices]
        # All vectors are one array, so one pass sums them.
        vectors = [jax.ShapeDtypeStruct((self.vectors, batch, heads, length), jnp.float32)] if self.vectors else []
        run = plgpu.kernel(
            body,
            out_type=typed(matrices + vectors, self.stationary.matrices[0]),
            scratch_types=[
                [
                    plgpu.SMEM((COMPUTING, TILE_ROWS, x.shape[3]), x.dtype, transforms=order)
                    for x, order in zip(self.stationary.operands, self.stationary.orders, strict=True)
                ],
                # One for each compute warpgroup, which waits only for its own matrices.
                plgpu.Barrier(num_arrivals=len(self.stationary.operands), num_barriers=COMPUTING),
                gpu_profiles.passages(self.kernel.width) if self.tiles.weights else [],
            ],
            grid=(heads, length // HELD, batch),
            grid_names=("head", "block", "batch"),
            num_threads=COMPUTING + 1,
            thread_name="group",
            kernel_name=self.kernel.name,
            # Hardware exp and division: their error is far below the rounding of two-byte operands.
            compiler_params=plgpu.CompilerParams(approx_math=True),
            interpret=INTERPRETER if interpreted() else None,
        )
        with jax.enable_x64(False):  # The pipeline's counters must be int32, also in 64-bit mode.
            results = run(*leaves)
        *made, sums = results if vectors else [*results, jnp.zeros((0, batch, heads, length), jnp.float32)]
        return made, sums

    @functools.cached_property
    def _strips(self) -> PairedStrips | ProfileStrips | None:
        """The strips of all tiles; None: the bias is a formula."""
        if self.tiles.strip_bias is None:
            return None
        held, other = (side.matrices[0].shape[1] for side in (self.stationary, self.streamed))
        tokens, blocks = (HELD, self.kernel.width), (held // HELD, other // self.kernel.width)
        if self._holds_keys:
            tokens, blocks = tokens[::-1], blocks[::-1]
        return self.tiles.strips(tokens, blocks, self._holds_keys)

    @property
    def _holds_keys(self) -> bool:
        return self.stationary.vectors is self.tiles.keys

    def _body(self, inputs: _Inputs, outputs: list, held_memory: list, landed: Any, passage: Any) -> None:
        """The program of one thread block; every warpgroup runs it, and the pipeline distinguishes them."""
        h, n, b, group = (jax.lax.axis_index(name) for name in ("head", "block", "batch", "group"))
        tokens = pl.ds(n * HELD + group * TILE_ROWS, TILE_ROWS)
        block = n // (self.stationary.block // HELD)
        shape = (TILE_ROWS, self.kernel.width)
        side, tiles = int(self._holds_keys), self.streamed.block // self.kernel.width  # in a block
        start, steps, whole_start, whole_steps = (inputs.runs[side, part, h, block] * tiles for part in range(4))
        numbers = 0 if inputs.table is None else inputs.table.shape[1]
        formula = self.tiles.parameters.bias([jnp.full(shape, inputs.table[h, p]) for p in range(numbers)])
        first_flawed = inputs.flawed[0]
        flawed = first_flawed < EMPTY
        mine = [memory.at[group] for memory in held_memory]
        held, passing = len(self.stationary.matrices), len(self.streamed.matrices)
        matrix, vector = (functools.partial(take, b=b, h=h) for take in (self._matrix, self._vector))
        table, specs = self._strips, self._other_specs(start)

        def strip(m: Array) -> Array:
            """The index of a tile's strip."""
            assert table is not None
            return table.index(start + m, n) if self._holds_keys else table.index(n, start + m)

        def compute(loop: Callable) -> None:
            for source, target in zip(inputs.held_matrices, mine, strict=True):
                plgpu.copy_gmem_to_smem(matrix(source).at[tokens], target, landed.at[group])
            # Vectors are loaded to registers while the matrices are copied; only the matrices need a wait. "Optimized" is about
            # banks of shared memory, which are not involved here.
            load = lambda x: plgpu.load(vector(x).at[tokens], layout=ALONG_ROWS, optimized=False)
            along_rows = jax.tree.map(load, inputs.held_vectors)
            plgpu.barrier_wait(landed.at[group])
            if self._holds_keys:
                pl.when(flawed)(functools.partial(keep_finite, mine[held - 1]))
            if self.tiles.weights:
                gpu_profiles.clear(passage.at[group])
            _, state = loop((along_rows, self.kernel.start(self.tiles.q.shape[3])))
            self._store(state, mine[:held], outputs, b, h, tokens)

        def step(at: tuple, matrices: tuple, vectors: Any, strips: Any, carry: tuple) -> Any:
            along_rows, state = carry
            load = lambda x: spread(plgpu.load(x, layout=ALONG_COLUMNS), shape, 1)
            read = functools.partial(jax.tree.map, load, vectors)
            rows = jax.tree.map(lambda x: spread(x, shape), along_rows)
            bias, mixed = formula, None
            if self.tiles.weights:
                near, place = inputs.near, strip(at[0])
                mixed = MixedTile.of(
                    matrices[-1] if self._holds_keys else mine[-1],
                    strips,
                    passage,
                    group,
                    self._holds_keys,
                    True if near is None else (place >= near[0]) & (place < near[1]),
                )
                bias = StripBias(mixed.values(), [])
            elif table is not None:
                bias = strip_bias(strips, self.kernel.width)
            beyond = start + at[0] - whole_start
            end = (n + 1) * HELD if self._holds_keys else (start + at[0] + 1) * self.kernel.width  # of the tile's keys
            whole = (beyond >= 0) & (beyond < whole_steps) & (end <= first_flawed)

            def mend() -> None:
                if not self._holds_keys:  # held keys were mended before the first tile
                    # Both warpgroups do this for the whole block. They write the same numbers, so this race is harmless.
                    pl.when(flawed)(functools.partial(keep_finite, matrices[passing - 1]))

            products = tuple(mine[:held]), matrices[:passing]
            loaded = LoadedTile(*products, rows, read(), read, mend, whole, bias, mixed, self.tiles.content)
            return along_rows, self.kernel.step(loaded, state)

        # The memory warpgroup refills a buffer when both compute warpgroups have released it, and these wait until it is full.
        # They do not wait for each other: one may multiply while the other computes exponentials.
        pipeline = plgpu.emit_pipeline_warp_specialized(
            step,
            grid=(steps,),
            in_specs=(*specs, () if table is None else table.spec(strip, len(self.kernel.slopes))),
            max_concurrent_steps=stages(
                self.stationary.operands, self.streamed.operands, self.streamed.vectors, self.kernel.width, table
            ),
            num_compute_wgs=COMPUTING,
            wg_axis="group",
            memory_registers=MEMORY_REGISTERS,
            compute_context=compute,
        )
        strips = () if table is None else inputs.strips.at[h if inputs.strips.shape[0] > 1 else 0]
        pipeline(tuple(matrix(x) for x in inputs.other_matrices), jax.tree.map(vector, inputs.other_vectors), strips)

    def _other_specs(self, start: Array) -> tuple:
        """The block specs of the streamed side, starting at the first tile that is needed."""
        matrices = tuple(
            plgpu.BlockSpec((self.kernel.width, x.shape[3]), lambda m: (start + m, 0), transforms=order)
            for x, order in zip(self.streamed.operands, self.streamed.orders, strict=True)
        )
        vectors = jax.tree.map(
            lambda _: plgpu.BlockSpec((self.kernel.width,), lambda m: (start + m,)), self.streamed.vectors
        )
        return matrices, vectors

    def _store(self, state: Any, mine: list, outputs: list, b: Array, h: Array, tokens: Any) -> None:
        """Write the kernel's results: float32 from registers, matrices in the operands' dtype through shared memory.

        The latter overwrite this warpgroup's stationary matrices, which are no longer read, as many at a time as there are
        stationary matrices.
        """
        matrices, vectors = self.kernel.finish(state)
        count = len(self.matrices)
        for n, x in enumerate(vectors):
            outputs[count][n, b, h, tokens] = x
        for some in itertools.batched(zip(outputs[:count], matrices, strict=True), len(mine)):
            leaving = []
            for (target, x), memory in zip(some, mine, strict=False):
                part = target.at[b, tokens, h]
                if target.dtype == memory.dtype and x.shape == memory.shape:
                    memory[...] = x.astype(memory.dtype)
                    leaving.append((memory, part))
                else:
                    store(part, x)
            if leaving:
                plgpu.commit_smem()
                for memory, part in leaving:
                    plgpu.copy_smem_to_gmem(memory, part)
                plgpu.wait_smem_to_gmem(0)

    def _matrix(self, ref: Any, b: Array, h: Array) -> Any:
        """The matrix [length, D] of a batch index and query head."""
        b, h = self._indices(ref, 2, b, h)
        return ref.at[b, :, h]

    def _vector(self, ref: Any, b: Array, h: Array) -> Any:
        """The vector [length] of a batch index and query head."""
        b, h = self._indices(ref, 1, b, h)
        return ref.at[b, h, 0]

    def _indices(self, ref: Any, head_axis: int, b: Array, h: Array) -> tuple:
        """The indices into an array that the rows of a batch, or several query heads, may share."""
        return b if ref.shape[0] > 1 else 0, h // (self.tiles.q.shape[2] // ref.shape[head_axis])


def stages(held: tuple, streamed: tuple, vectors: Any, width: int, strips: Any) -> int:
    """The number of buffers for the streamed operands, `width` tokens at a time, while `HELD` tokens are held."""
    if not isinstance(strips, ProfileStrips):
        return _STAGES
    of_rows = lambda rows, matrices: rows * sum(x.shape[3] * x.dtype.itemsize for x in matrices)
    each = of_rows(width, streamed) + strips.bytes
    kept = of_rows(HELD, held) + 4 * COMPUTING * gpu_profiles.passage_size(width)
    kept += (len(jax.tree.leaves(vectors)) + 3) * _KILOBYTE
    return _STAGES if kept + _STAGES * each <= _SHARED_MEMORY else 1


def store(target: Any, x: Array) -> None:
    """Write a matrix from registers to global memory."""
    if hasattr(plgpu, "store"):  # an optimized store needs rows of whole cache lines, which 48 numbers are not
        plgpu.store(target, x, optimized=False)
    else:  # jax 0.11 has only optimized stores
        target[...] = x


def _stacked(needed: tuple[Runs, Runs], whole: tuple[Runs, Runs]) -> Array:
    """The runs of both sides as one array, because XLA would launch a kernel for each."""
    longest = max(runs.first.shape[1] for runs in needed)
    sides = [jnp.stack(jnp.broadcast_arrays(*ours, *theirs)) for ours, theirs in zip(needed, whole, strict=True)]
    return jnp.stack([jnp.pad(x, ((0, 0), (0, 0), (0, longest - x.shape[2]))) for x in sides])


def _worth_skipping(q: Array, k: Array, tiling: Tiling) -> float | str:
    """The share of mass that negligible tiles may hold together; see `Tiling.skip`."""
    return "off" if tiling.skip == "exact" and max(q.shape[1], k.shape[1]) <= _SHORT else tiling.skip


def pad(x: Array, block: int) -> Array:
    """Pad [B, T, H, D] to whole blocks of tokens and swizzled rows."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0), (0, -x.shape[3] % (SWIZZLES[-1] // x.dtype.itemsize))))
