"""How a kernel walks over tiles on a Hopper GPU: two warpgroups compute, a third brings blocks through shared memory.

What a block of threads holds lies along the rows of its tiles, 64 in each computing warpgroup, so that every sum over the other
side runs along a row, inside four threads.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from bam_jax.attention.logits import skipping, tile
from bam_jax.attention.logits.scoring import Scoring, sealed
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.system.axes import typed
from bam_jax.system.platform import platform

_ROWS = 64  # Rows of a tile: what one warpgroup's matrix product has.
_GROUPS = 2  # Computing warpgroups.
_HELD = _GROUPS * _ROWS
_SWIZZLE = 128  # Bytes of a swizzled row of shared memory.
_WIDTH = 64  # Head widths are padded to multiples of it: a swizzled row of two-byte numbers.
_ALONG_ROWS, _ALONG_COLUMNS = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
_INTERPRET: Any = plgpu.InterpretGPUParams()  # How kernels run on a CPU.

LOWERED = frozenset(
    """abs add add_any and broadcast_in_dim clamp convert_element_type copy cos custom_jvp_call custom_vjp_call div eq erf exp
    exp2 ge gt integer_pow jit le log log2 logistic lt max min mul ne neg not or pjit reduce_max reduce_min reduce_sum reshape
    rsqrt select_n sign sin sqrt square squeeze sub tanh xor""".split()
)
"""What Mosaic, the compiler of GPU kernels, lowers in a formula and, written as in `cotangents`, in its gradient."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What the computing warpgroups do.

    Args:
      start: (head width) -> state, before the first tile.
      step: (tile, state) -> state.
      finish: state -> (matrices [64, D], vectors [64]) to store.
      width: the other side's tokens in a tile.
    """

    name: str
    start: Callable
    step: Callable
    finish: Callable
    width: int


@dataclasses.dataclass(frozen=True)
class Tile:
    """One tile: references to matrices in shared memory, and what it must know of its tokens, spread over the tile.

    Args:
      held: matrices of what lies along the rows, [64, D].
      other: matrices of what lies along the columns, [n, D].
      rows, columns: vectors of either side, each [64, n] by now.
      bias: of this head, its parameters spread, too.
      scale: 1 / sqrt(D).
      add_product: (total, a, b) -> total + a b, with a in registers and b in shared memory.
    """

    held: tuple
    other: tuple
    rows: Any
    columns: Any
    bias: Any
    scale: float
    add_product: Callable


@dataclasses.dataclass(frozen=True)
class Plan:
    """The operands padded to whole blocks and swizzled rows, and which tiles are needed."""

    q: Array  # [B, T, H, D]
    k: Array  # [B, S, K, D]
    v: Array
    queries: tile.Queries
    keys: tile.Keys
    table: Array  # [H, P]
    parameters: tile.Parameters
    needed: Array  # [H, query blocks, key blocks]
    block_q: int
    block_k: int
    scale: float

    @classmethod
    def of(cls, q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling) -> "Plan":
        """The plan of an attention's operands, [B, T, H, D] and [B, S, K, D].

        Raises:
          ValueError: tiles of a size that the kernels do not have.
        """
        block_q, block_k = tiling.blocks(_HELD, _HELD)
        if block_q % _HELD or block_k % _HELD:
            raise ValueError(f"tiles on a GPU are multiples of {_HELD} queries and keys, got {block_q} x {block_k}")
        k, v = sealed(k, v)
        whole = skipping.padded(scoring, block_q, block_k)
        queries, keys = tile.sides(whole)
        parameters = tile.Parameters.of(scoring.bias)
        return cls(
            pad(q, block_q),
            pad(k, block_k),
            pad(v, block_k),
            queries,
            keys,
            parameters.table(scoring.bias, q.shape[2]),
            parameters,
            skipping.needed(q, k, whole, tiling.skip, block_q, block_k),
            block_q,
            block_k,
            1 / math.sqrt(q.shape[-1]),
        )

    def over_keys(self, kernel: Kernel, of_queries: tuple, queries: Any, **outputs: int) -> Any:
        """Run a kernel that holds queries and walks over the keys that they need."""
        held, other = (of_queries, queries, self.block_q), ((self.k, self.v), self.keys, self.block_k)
        return self._run(kernel, held, other, self.needed, **outputs)

    def over_queries(self, kernel: Kernel, of_queries: tuple, queries: Any, **outputs: int) -> Any:
        """Run a kernel that holds keys, for each query head, and walks over the queries that need them."""
        held, other = ((self.k, self.v), self.keys, self.block_k), (of_queries, queries, self.block_q)
        return self._run(kernel, held, other, self.needed.swapaxes(1, 2), **outputs)

    def _run(self, kernel: Kernel, held: tuple, other: tuple, needed: Array, *, matrices: int, vectors: int) -> Any:
        """Run a kernel over the grid [query head, 128 tokens of what is held, row]; its matrices and vectors."""
        held_matrices, held_vectors, held_block = held
        other_matrices, other_vectors, other_block = other
        first, count = (x * (other_block // kernel.width) for x in skipping.span(needed))
        batch, heads = self.q.shape[0], self.q.shape[2]
        length, width, dtype = held_matrices[0].shape[1], self.q.shape[3], self.q.dtype
        tiled: Any = plgpu.TilingTransform
        swizzle: Any = plgpu.SwizzleTransform
        swizzled = (tiled((8, _SWIZZLE // dtype.itemsize)), swizzle(_SWIZZLE))

        def of_head(x: Any, b: Array, h: Array, axis: int) -> tuple:
            return b if x.shape[0] > 1 else 0, h // (heads // x.shape[axis])

        def body(add_product: Callable, inputs: Any, outputs: tuple, shared: list, barrier: Any) -> None:
            table, first, count, held_matrices, held_vectors, other_matrices, other_vectors = inputs
            out_matrices, out_vectors = outputs[:matrices], outputs[matrices:]
            h, n, b, group = (jax.lax.axis_index(name) for name in ("head", "block", "row", "group"))
            rows = pl.ds(n * _HELD + group * _ROWS, _ROWS)
            at = n // (held_block // _HELD)
            shape = (_ROWS, kernel.width)
            start, steps = first[h, at], count[h, at]
            bias = self.parameters.bias([jnp.full(shape, table[h, p]) for p in range(table.shape[1])])
            mine = [x.at[group] for x in shared]

            def vector(ref: Any) -> Any:
                i, j = of_head(ref, b, h, 1)
                return ref.at[i, j, 0]

            def matrix(ref: Any) -> Any:
                i, j = of_head(ref, b, h, 2)
                return ref.at[i, :, j]

            def compute(loop: Callable) -> None:
                for source, target in zip(held_matrices, mine, strict=True):
                    plgpu.copy_gmem_to_smem(matrix(source).at[rows], target, barrier.at[group])
                vectors = jax.tree.map(lambda x: plgpu.load(vector(x).at[rows], layout=_ALONG_ROWS), held_vectors)
                plgpu.barrier_wait(barrier.at[group])
                _, state = loop((vectors, kernel.start(width)))
                made_matrices, made_vectors = kernel.finish(state)
                for target, x in zip(out_matrices, made_matrices, strict=True):
                    target[b, rows, h] = x
                for target, x in zip(out_vectors, made_vectors, strict=True):
                    target[b, h, rows] = x

            def step(_: Any, matrices: tuple, vectors: Any, carry: tuple) -> Any:
                along_rows, state = carry
                columns = jax.tree.map(lambda x: spread(plgpu.load(x, layout=_ALONG_COLUMNS), shape, 1), vectors)
                spread_rows = jax.tree.map(lambda x: spread(x, shape), along_rows)
                made = Tile(tuple(mine), matrices, spread_rows, columns, bias, self.scale, add_product)
                return along_rows, kernel.step(made, state)

            pipeline = plgpu.emit_pipeline_warp_specialized(
                step,
                grid=(steps,),
                in_specs=(
                    tuple(
                        plgpu.BlockSpec((kernel.width, width), lambda m: (start + m, 0), transforms=swizzled)
                        for _ in other_matrices
                    ),
                    jax.tree.map(lambda _: plgpu.BlockSpec((kernel.width,), lambda m: (start + m,)), other_vectors),
                ),
                max_concurrent_steps=2,
                num_compute_wgs=_GROUPS,
                wg_axis="group",
                memory_registers=40,
                compute_context=compute,
            )
            pipeline(tuple(matrix(x) for x in other_matrices), jax.tree.map(vector, other_vectors))

        arguments = (self.table, first, count, held_matrices, held_vectors, other_matrices, other_vectors)
        leaves, structure = jax.tree.flatten(arguments)
        number = len(leaves)

        def flat(add_product: Callable, *refs: Any) -> None:
            outputs = refs[number : number + matrices + vectors]
            shared, barrier = refs[number + matrices + vectors :]
            inputs = jax.tree.unflatten(structure, refs[:number])
            body(add_product, inputs, outputs, shared, barrier)

        interpret = _INTERPRET if platform() == "cpu" else None
        run = plgpu.kernel(
            functools.partial(flat, _interpreted_add_product if interpret else _add_product),
            out_type=typed(
                [
                    *[jax.ShapeDtypeStruct((batch, length, heads, width), jnp.float32)] * matrices,
                    *[jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)] * vectors,
                ],
                held_matrices[0],
            ),
            scratch_types=[
                [plgpu.SMEM((_GROUPS, _ROWS, width), dtype, transforms=swizzled) for _ in held_matrices],
                plgpu.Barrier(num_arrivals=len(held_matrices), num_barriers=_GROUPS),
            ],
            grid=(heads, length // _HELD, batch),
            grid_names=("head", "block", "row"),
            num_threads=_GROUPS + 1,
            thread_name="group",
            kernel_name=kernel.name,
            compiler_params=plgpu.CompilerParams(approx_math=True),
            interpret=interpret,
        )
        with jax.enable_x64(False):  # The pipeline's counters are int32 whatever the user's default.
            made = run(*leaves)
        return made[:matrices], made[matrices:]


def product(a: Any, b: Any) -> Array:
    """a b^T of two matrices in shared memory, [64, D] and [n, D], in float32."""

    def run(total: Any) -> Array:
        plgpu.wgmma(total, a, b.transpose((1, 0)))
        return total[...]

    return pl.run_scoped(run, plgpu.ACC((a.shape[0], b.shape[0]), jnp.float32))


def _add_product(total: Array, a: Array, b: Any) -> Array:
    """total + a b, with a in registers and b in shared memory, summed where total lies."""
    return pl.run_state(lambda total: plgpu.wgmma(total, a, b))(plgpu.ACC.init(total))


def _interpreted_add_product(total: Array, a: Array, b: Any) -> Array:
    """`_add_product` for the interpreter, whose matrix products take no operand and no initial sum from registers."""
    return total + jax.lax.dot(a, b[...], preferred_element_type=jnp.float32)


def spread(x: Array, shape: tuple[int, ...], axis: int = 0) -> Array:
    """A vector [64] along the rows (axis 0) of a tile, or [n] along its columns (axis 1)."""
    return jax.lax.broadcast_in_dim(x, shape, (axis,))


def constant_row(value: float) -> Array:
    """A number for each row."""
    return plgpu.layout_cast(jnp.full((_ROWS,), value, jnp.float32), _ALONG_ROWS)


def zeros(width: int) -> Array:
    """A sum that starts, [64, width]."""
    return plgpu.layout_cast(jnp.zeros((_ROWS, width), jnp.float32), plgpu.Layout.WGMMA)


def row_sum(x: Array) -> Array:
    """The sum of each row of a tile, [64, n] -> [64]."""
    return plgpu.layout_cast(x, plgpu.Layout.WGMMA).sum(1)


def cotangents(*arguments: Any) -> tuple:
    """`Bias.cotangents` of (bias, i, j, d_logits), in terms that Mosaic knows: no `add_any`, no negative power."""
    function = lambda bias, *rest: bias.cotangents(*rest)
    traced, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    made = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shape), made)


def _evaluate(jaxpr: Any, constants: Any, arguments: list) -> list:
    """A jaxpr's value, step by step."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))
    read = lambda x: x.val if isinstance(x, jax.extend.core.Literal) else known[x]
    for equation in jaxpr.eqns:
        inputs = [read(x) for x in equation.invars]
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if equation.primitive.name == "add_any":
            made = [inputs[0] + inputs[1]]
        elif equation.primitive.name == "integer_pow" and equation.params["y"] < 0:
            made = [1 / jax.lax.integer_pow(inputs[0], -equation.params["y"])]
        elif inner is not None:
            made = _evaluate(inner.jaxpr, inner.consts, inputs)
        else:
            made = equation.primitive.bind(*inputs, **equation.params)
            made = made if equation.primitive.multiple_results else [made]
        known.update(zip(equation.outvars, made, strict=True))
    return [read(x) for x in jaxpr.outvars]


def pad(x: Array, block: int) -> Array:
    """[B, T, H, D] padded to whole blocks of tokens and swizzled rows."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0), (0, -x.shape[3] % _WIDTH)))
