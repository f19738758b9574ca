"""Derivatives of what backends compute, for Hessians: those of kernels, which have none, are taken of blocks of rows."""

from collections.abc import Callable
from typing import Any

import jax

from bam_jax.attention import rows


def differentiable(forward: Callable, backward: Callable, twin: Callable = rows.forward) -> tuple[Callable, Callable]:
    """A backend's two functions, each with a derivative: in O(block S) memory forwards, O(T S) where it is transposed.

    Both passes of `rows` are the same functions of the same arguments, residuals included, so that they have the same
    derivatives. A forward pass whose output has another form has a twin of that form.
    """
    return _with_derivative_of(twin, forward), _with_derivative_of(rows.backward, backward)


def _with_derivative_of(twin: Callable, function: Callable) -> Callable:
    """A function of operands and a tiling, which is differentiated as its twin is."""

    def run(*arguments: Any) -> Any:
        *operands, tiling = arguments
        compute: Any = jax.custom_jvp(lambda *operands: function(*operands, tiling))

        @compute.defjvp
        def derivative(primals: tuple, tangents: tuple) -> tuple:
            made = compute(*primals)  # with a derivative of its own
            _, slopes = jax.jvp(lambda *operands: twin(*operands, tiling), primals, tangents)
            return made, jax.tree.map(lambda slope, x: slope.astype(x.dtype), slopes, made)

        return compute(*operands)

    return run
