"""A bias's formula and its gradient in primitives that Mosaic, the compiler of GPU kernels, lowers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend

LOWERED = frozenset(
    """abs add add_any and broadcast_in_dim clamp convert_element_type copy cos custom_jvp_call custom_vjp_call div eq erf exp
    exp2 ge gt integer_pow jit le log log2 logistic lt max min mul ne neg not or pjit reduce_max reduce_min reduce_sum reshape
    rsqrt select_n sign sin sqrt square squeeze sub tanh xor""".split()
)
"""The primitives that Mosaic, the compiler of GPU kernels, lowers in a formula and, by `lowered`, in its gradient."""


def cotangents(*arguments: Any) -> tuple:
    """`Bias.cotangents` inside a kernel; see `lowered`."""
    return lowered(lambda bias, *rest: bias.cotangents(*rest), *arguments)


def lowered(function: Callable, *arguments: Any) -> Any:
    """The results of a function inside a kernel, in primitives that Mosaic lowers: no `add_any`, no negative power."""
    # JAX's derivatives introduce primitives that Mosaic lacks, and custom derivatives break the count of shared memory in jax
    # 0.11. The function is therefore traced, and such primitives are replaced one by one.
    traced, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    results = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def _evaluate(jaxpr: Any, constants: Any, arguments: list) -> list:
    """A jaxpr's results, evaluated equation by equation; primitives that Mosaic lacks are replaced."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

    def read(x: Any) -> Any:
        return x.val if isinstance(x, jax.extend.core.Literal) else known[x]

    for equation in jaxpr.eqns:
        inputs = [read(x) for x in equation.invars]
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if equation.primitive.name == "add_any":
            results = [inputs[0] + inputs[1]]
        elif equation.primitive.name == "integer_pow" and equation.params["y"] < 0:
            results = [1 / jax.lax.integer_pow(inputs[0], -equation.params["y"])]
        elif inner is not None:
            results = _evaluate(inner.jaxpr, inner.consts, inputs)
        else:
            bound = equation.primitive.bind(*inputs, **equation.params)
            results = bound if equation.primitive.multiple_results else [bound]
        known.update(zip(equation.outvars, results, strict=True))
    return [read(x) for x in jaxpr.outvars]
