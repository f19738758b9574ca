"""Parity and determinism of this machine's attention: outputs and gradients beside those of the reference in float64.

The error of an array is ||made - expected|| / ||expected||.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bam_jax.attention import BACKENDS, Tiling, attention
from bam_jax.attention.logits.scoring import HIDDEN, Differentiable
from bam_jax.system.errors import UserError
from benchmarks.chip_problems import Inputs, Problem, draw, floating

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

POISON = 2**30
"""Most bytes of memory that are filled with NaN between two runs."""


def program(backend: str, tiling: Tiling) -> Callable:
    """Make a function of `Inputs` that gives the output, lse and all gradients, by name.

    Args:
        backend: a name in `bam_jax.attention.BACKENDS`.
        tiling: as `attention` takes it.
    """

    def run(inputs: Inputs) -> dict[str, Any]:
        def forward(q: Any, k: Any, v: Any, real: Differentiable, sinks: Any) -> tuple:
            scoring = dataclasses.replace(real.within(inputs.scoring), sink_logits=sinks)
            out, lse = attention(q, k, v, scoring, backend=backend, tiling=tiling, return_lse=True)
            return out, jnp.where(lse > HIDDEN, lse, 0)  # of rows that see nothing

        q, k, v, scoring, d_out, d_lse = inputs
        (out, lse), vjp = jax.vjp(forward, q, k, v, Differentiable.of(scoring), scoring.sink_logits)
        gradients = vjp((d_out, jnp.asarray(d_lse, lse.dtype)))
        made = {"out": out, "lse": lse, **dict(zip(("dq", "dk", "dv"), gradients, strict=False))}
        for path, leaf in jax.tree.leaves_with_path(gradients[3]):
            made[f"d{jax.tree_util.keystr(path)}"] = leaf
        if gradients[4] is not None:
            made["d.sink_logits"] = gradients[4]
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
    drawn = draw(problem)
    with jax.enable_x64(True), jax.default_device(cpu):
        inputs = jax.tree.map(lambda x: floating(x, jnp.float64), drawn)
        # It runs once: to optimise it takes longer than to run it.
        plain = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
        compiled = jax.jit(program("reference", Tiling())).lower(inputs).compile(compiler_options=plain)
        return jax.tree.map(np.asarray, compiled(inputs))


def error_of(made: np.ndarray, wanted: np.ndarray) -> float:
    """The error ||made - wanted|| / ||wanted||: infinite where something is not finite, or not 0 beside 0.

    Args:
        made, wanted: [...], of one shape.
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
    q, k, v = map(narrow, drawn[:3])
    inputs = Inputs(q, k, v, scoring, narrow(drawn.d_out), floating(drawn.d_lse, jnp.float32))
    reason = BACKENDS[backend].reason(q, k, v, scoring)
    if reason is not None:
        return reason
    # Accelerators round float32 operands of products unless told otherwise; here it is the kernels that are compared.
    with jax.default_matmul_precision("highest" if dtype == "float32" else None):
        compiled = jax.jit(program(backend, tiling)).lower(inputs).compile()
    memory = compiled.memory_analysis()
    size = 0 if memory is None else memory.temp_size_in_bytes + memory.output_size_in_bytes
    return Compiled(lambda: jax.block_until_ready(compiled(inputs)), kernels_in(compiled.as_text() or ""), size)


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
        makers = suspects(wrong, compiled.kernels) or [backend]
        outcome["reason"] = f"{', '.join(wrong)} of {', '.join(makers)} beyond the tolerance"
    return outcome


def suspects(wrong: list[str], kernels: list[str]) -> list[str]:
    """The kernels that make the wrong arrays, by their names; gradients come of the output, and are wrong where that is.

    Args:
        wrong: names of arrays.
        kernels: of the program.
    """
    makers = {"key" if name in ("dk", "dv") or name.startswith("d.key") else "query" for name in wrong}
    if {"out", "lse"} & set(wrong):
        makers = {"forward"}
    return [kernel for kernel in kernels if kernel.split("_")[0] in makers]


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
        outcome["reason"] = (
            f"{', '.join(sorted(differ))} of {', '.join(compiled.kernels) or backend} differ between runs"
        )
    return outcome
