"""Second-order derivatives, for Hessians: kernels have no derivatives of their own, so those of `rows` are used."""

from collections.abc import Callable
from typing import Any

import jax

from bam_jax.attention import rows


def differentiable(forward: Callable, backward: Callable, twin: Callable = rows.forward) -> tuple[Callable, Callable]:
    """A backend's two functions, each with a derivative. It takes O(block S) memory, or O(T S) if it is transposed.

    Both passes of `rows` are the same functions of the same arguments, residuals included, so they have the same derivatives.
    A forward pass whose output has another form needs a twin with that form.
    """
    return _with_derivative_of(twin, forward), _with_derivative_of(rows.backward, backward)


def _with_derivative_of(twin: Callable, function: Callable) -> Callable:
    """The function of operands and a tiling, with the derivative of its twin."""

    def run(*arguments: Any) -> Any:
        *operands, tiling = arguments
        compute: Any = jax.custom_jvp(lambda *operands: function(*operands, tiling))

        @compute.defjvp
        def derivative(primals: tuple, tangents: tuple) -> tuple:
            made = compute(*primals)  # which can be differentiated again
            _, slopes = jax.jvp(lambda *operands: twin(*operands, tiling), primals, tangents)
            return made, jax.tree.map(lambda slope, x: slope.astype(x.dtype), slopes, made)

        return compute(*operands)

    return run
