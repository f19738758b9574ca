"""Parity and determinism of this machine's attention: outputs and gradients beside those of the reference in float64.

The error of an array is ||made - expected|| / ||expected||. Inputs are drawn anew for each case, of unit variance, and hold in
bfloat16, so that every type computes the same problem.
"""

import functools
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bam_jax.attention import BACKENDS, EMPTY, Mask, Scoring, Tiling, Tokens, attention
from bam_jax.attention.logits.scoring import HIDDEN, Differentiable
from bam_jax.bench.contenders import BIASES, AttentionShape
from bam_jax.system.errors import UserError

TOLERANCE = {
    # Weights, gradients of logits and results are rounded to 8 bits, an error of up to 2^-9 each: .0025 on a CPU. What is
    # wrong by a hundredth is above it.
    "bfloat16": 8e-3,
    # Sums of a thousand products of 24 bits, and exponentials as a chip has them: 4e-7 on a CPU.
    "float32": 2e-5,
}
"""The largest error of an output, and of a gradient with the size of an input."""

SUMMED = {"bfloat16": 2e-2, "float32": 1e-4}
"""The largest error of a gradient that is a sum over a row or a text, where most of it may cancel: .0054 and 3e-6 on a CPU."""

BATCH, HEADS, KEY_HEADS = 2, 4, 2

MASKS: dict[str, Callable[[int], Mask]] = {
    "causal": lambda length: Mask(),
    "window": lambda length: Mask(window=length // 3),
    "bidirectional": lambda length: Mask(causal=False),
    "both sides": lambda length: Mask(causal=False, window=length // 4),
}

LAYOUTS = ("packed", "plain", "padded", "cached")
"""Rows of several documents with a temperature for each token; of one; with empty slots in front; the last queries of a
cache with empty slots behind, and a temperature that rows share."""

POISON = 2**30
"""Most bytes of memory that are filled with NaN between two runs."""


class Problem(NamedTuple):
    """An attention to compute.

    Args:
        bias: a name in `BIASES`.
        mask: a name in `MASKS`.
        layout: of `LAYOUTS`.
        length: tokens.
        width: of a head.
    """

    bias: str
    mask: str
    layout: str
    length: int
    width: int


class Inputs(NamedTuple):
    """Operands as NumPy arrays, and what comes back to them.

    Args:
        q, k, v: [B, T, H, D], [B, S, K, D], [B, S, K, D].
        scoring: with a bias for every head.
        d_out, d_lse: cotangents, [B, T, H, D] and [B, H, T].
    """

    q: Any
    k: Any
    v: Any
    scoring: Scoring
    d_out: Any
    d_lse: Any


def problems(length: int, widths: Sequence[int]) -> Iterator[Problem]:
    """Every bias with every mask, the first masks first; layouts and widths change from one to the next.

    Every bias meets every layout, and so does every mask.

    Args:
        length: tokens.
        widths: of heads.
    """
    for m, mask in enumerate(MASKS):
        for n, bias in enumerate(BIASES):
            yield Problem(bias, mask, LAYOUTS[(n + m) % len(LAYOUTS)], length, widths[(n + m) % len(widths)])


def draw(problem: Problem) -> Inputs:
    """Draw the inputs of a problem, the same ones each time, others for each problem.

    Args:
        problem: what is computed.
    """
    rng = np.random.default_rng(zlib.crc32(repr(tuple(problem)).encode()))
    length, slots = problem.length, problem.length + (16 if problem.layout == "cached" else 0)
    rows = slice(length // 2, length) if problem.layout == "cached" else slice(0, length)
    position = np.broadcast_to(np.arange(slots, dtype=np.int32), (BATCH, slots)).copy()
    position[:, length:] = EMPTY
    segment = None
    if problem.layout == "padded":
        shifted = position[1] - length // 5
        position[1] = np.where(shifted < 0, EMPTY, shifted)
    if problem.layout == "packed":
        ends = np.sort(rng.choice(np.arange(1, length), (BATCH, 3)), axis=1)
        segment = 1 + (np.arange(length)[:, None] >= ends[:, None]).sum(-1, dtype=np.int32)
        segment[0, -length // 16 :] = 0  # a pad sees nothing

    shape = AttentionShape(slots, slots, BATCH, HEADS, problem.width, bias=problem.bias)
    bias, _, i, j = BIASES[problem.bias](shape)
    vary = lambda x: np.asarray(x) * rng.uniform(0.8, 1.2, np.shape(x)).astype(np.float32)
    bias, own_i, own_j = jax.tree.map(vary, bias), *(jax.tree.map(np.asarray, x) for x in (i, j))
    count = slice(None) if problem.layout == "packed" else slice(1)
    temperature = rng.uniform(0.5, 2.0, (BATCH, HEADS, rows.stop - rows.start)).astype(np.float32)[count]

    def side(at: slice, own: Any) -> Tokens:
        part = lambda x: x[..., at]
        return Tokens(part(position), None if segment is None else part(segment), jax.tree.map(part, own))

    scoring = Scoring(
        bias,
        side(rows, own_i),
        side(slice(None), own_j),
        temperature if problem.layout in ("packed", "cached") else None,
        MASKS[problem.mask](length),
    )
    normal = lambda *sizes: rng.standard_normal(sizes, np.float32).astype(jnp.bfloat16)
    queries = temperature.shape[-1]
    keys = (BATCH, slots, KEY_HEADS, problem.width)
    q, d_out = normal(BATCH, queries, HEADS, problem.width), normal(BATCH, queries, HEADS, problem.width)
    return Inputs(q, normal(*keys), normal(*keys), scoring, d_out, normal(BATCH, HEADS, queries))


def floating(x: Any, dtype: Any) -> Any:
    """The array in this type if it holds numbers with a fraction, else as it is.

    Args:
        x: of any shape.
        dtype: floating-point.
    """
    return jnp.asarray(x, dtype if jnp.issubdtype(x.dtype, jnp.floating) else None)


def program(backend: str, tiling: Tiling) -> Callable:
    """Make a function of `Inputs` that gives the output, lse and all gradients, by name.

    Args:
        backend: a name in `bam_jax.attention.BACKENDS`.
        tiling: as `attention` takes it.
    """

    def run(inputs: Inputs) -> dict[str, Any]:
        def forward(q: Any, k: Any, v: Any, real: Differentiable) -> tuple:
            scoring = real.within(inputs.scoring)
            out, lse = attention(q, k, v, scoring, backend=backend, tiling=tiling, return_lse=True)
            return out, jnp.where(lse > HIDDEN, lse, 0)  # of rows that see nothing

        q, k, v, scoring, d_out, d_lse = inputs
        (out, lse), vjp = jax.vjp(forward, q, k, v, Differentiable.of(scoring))
        gradients = vjp((d_out, d_lse.astype(lse.dtype)))
        made = {"out": out, "lse": lse, **dict(zip(("dq", "dk", "dv"), gradients, strict=False))}
        for path, leaf in jax.tree.leaves_with_path(gradients[3]):
            made[f"d{jax.tree_util.keystr(path)}"] = leaf
        return made

    return run


@functools.lru_cache(maxsize=1)  # cases of one problem follow each other
def expected(problem: Problem) -> dict[str, np.ndarray]:
    """Compute a problem with the reference in float64, on the CPU.

    Args:
        problem: what is computed.

    Raises:
        UserError: jax has no CPU here.
    """
    try:
        cpu = jax.devices("cpu")[0]
    except RuntimeError as error:
        raise UserError("the reference runs on the CPU: add it, as in JAX_PLATFORMS=cuda,cpu") from error
    with jax.enable_x64(True), jax.default_device(cpu):
        inputs = jax.tree.map(lambda x: floating(x, jnp.float64), draw(problem))
        # It runs once: to optimise it takes longer than to run it.
        plain = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
        compiled = jax.jit(program("reference", Tiling())).lower(inputs).compile(compiler_options=plain)
        return jax.tree.map(np.asarray, compiled(inputs))


def error_of(made: np.ndarray, wanted: np.ndarray) -> float:
    """The error ||made - wanted|| / ||wanted||: infinite where something is not finite, or not 0 beside 0.

    Args:
        made, wanted: of one shape.
    """
    difference = np.linalg.norm(np.asarray(made, np.float64) - wanted)
    norm = np.linalg.norm(wanted)
    if not math.isfinite(difference):
        return math.inf
    return float(difference / norm) if norm else (math.inf if difference else 0.0)


def limit_of(name: str, dtype: str) -> float:
    """The tolerance of an array, by its name in `program`'s results.

    Args:
        name: of the array.
        dtype: of q, k and v.
    """
    return (TOLERANCE if name in ("out", "lse", "dq", "dk", "dv") else SUMMED)[dtype]


def kernels_in(compiled: str) -> list[str]:
    """The names of the Pallas kernels in a compiled program, in its order.

    Args:
        compiled: its text.
    """
    calls = re.findall(r'custom_call_target="(?:tpu_custom_call|mosaic_gpu\w*)"[^\n]*?op_name="([^"]*)"', compiled)
    return list(dict.fromkeys(name.split("/")[-2] for name in calls if "/" in name))


class Compiled(NamedTuple):
    """A program for one problem, compiled, with its inputs on the device.

    Args:
        run: computes it.
        kernels: the names of its Pallas kernels.
        bytes: that it takes beside its inputs.
    """

    run: Callable[[], dict[str, Any]]
    kernels: list[str]
    bytes: int


def compile_problem(problem: Problem, backend: str, dtype: str, tiling: Tiling) -> Compiled | str:
    """Compile a problem for this machine, or give the reason why the backend refuses it.

    Args:
        problem: what is computed.
        backend, tiling: see `program`.
        dtype: of q, k and v; all else is float32.
    """
    drawn = draw(problem)
    narrow = lambda x: floating(x, dtype)
    scoring = jax.tree.map(lambda x: floating(x, jnp.float32), drawn.scoring)
    inputs = Inputs(*map(narrow, drawn[:3]), scoring, narrow(drawn.d_out), floating(drawn.d_lse, jnp.float32))
    reason = BACKENDS[backend].reason(*inputs[:4])
    if reason is not None:
        return reason
    # Accelerators round float32 operands of products unless told otherwise; here it is the kernels that are compared.
    with jax.default_matmul_precision("highest" if dtype == "float32" else None):
        compiled = jax.jit(program(backend, tiling)).lower(inputs).compile()
    memory = compiled.memory_analysis()
    size = 0 if memory is None else memory.temp_size_in_bytes + memory.output_size_in_bytes
    return Compiled(lambda: jax.block_until_ready(compiled(inputs)), kernels_in(compiled.as_text()), size)


def poison(size: int) -> None:
    """Fill memory that is free with NaN, and compute something else.

    Args:
        size: bytes, about; at most `POISON` are filled.
    """
    numbers = min(size, POISON) // 4 + 2**16
    jax.block_until_ready([jnp.full(numbers, jnp.nan), jnp.full(2**18, jnp.nan)])
    side = jax.random.normal(jax.random.key(0), (256, 256))
    jax.block_until_ready(side @ side)


def parity(problem: Problem, backend: str, dtype: str, tiling: Tiling) -> dict[str, Any]:
    """Compare a backend with the reference on one problem.

    Args:
        problem, backend, dtype, tiling: see `compile_problem`.

    Returns:
        The outcome: `errors` by array, None where one is not finite; `wrong`, the arrays above their tolerance; `kernels`.
    """
    compiled = compile_problem(problem, backend, dtype, tiling)
    if isinstance(compiled, str):
        return {"status": "refused", "reason": compiled}
    wanted = expected(problem)
    poison(compiled.bytes)
    made = compiled.run()
    errors = {name: error_of(np.asarray(made[name]), wanted[name]) for name in wanted}
    wrong = [name for name, error in errors.items() if not error <= limit_of(name, dtype)]
    worst = max(errors, key=lambda name: errors[name] / limit_of(name, dtype))
    outcome: dict[str, Any] = {
        "status": "failed" if wrong else "passed",
        "backend": backend,
        "dtype": dtype,
        "bias": problem.bias,
        "mask": problem.mask,
        "layout": problem.layout,
        "errors": {name: error if math.isfinite(error) else None for name, error in errors.items()},
        "wrong": wrong,
        "kernels": compiled.kernels,
        "summary": f"{worst} errs {errors[worst]:.2g} of {limit_of(worst, dtype):g}",
    }
    if wrong:
        suspects = _suspects(wrong, compiled.kernels) or [backend]
        outcome["reason"] = f"{', '.join(wrong)} of {', '.join(suspects)} beyond the tolerance"
    return outcome


def _suspects(wrong: list[str], kernels: list[str]) -> list[str]:
    """The kernels that make the wrong arrays: the first of a program makes output and lse, the others gradients."""
    forward = {"out", "lse"} & set(wrong)
    return kernels[:1] if forward else kernels[1:]


def determinism(problem: Problem, backend: str, dtype: str) -> dict[str, Any]:
    """Run one program three times, with other work in the same memory between, and compare all bits.

    Args:
        problem, backend, dtype: see `compile_problem`.

    Returns:
        The outcome: `differ` has the arrays that were not the same each time.
    """
    compiled = compile_problem(problem, backend, dtype, Tiling())
    if isinstance(compiled, str):
        return {"status": "refused", "reason": compiled}
    first = jax.tree.map(np.asarray, compiled.run())
    differ: set[str] = set()
    for _ in range(2):
        poison(compiled.bytes)
        again = compiled.run()
        differ |= {name for name, x in first.items() if x.tobytes() != np.asarray(again[name]).tobytes()}
    outcome: dict[str, Any] = {"status": "failed" if differ else "passed", "kernels": compiled.kernels}
    outcome |= {"backend": backend, "dtype": dtype, "differ": sorted(differ)}
    if differ:
        outcome["reason"] = f"{', '.join(sorted(differ))} of {', '.join(compiled.kernels) or backend} differ between runs"
    return outcome
