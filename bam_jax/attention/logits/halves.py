"""A float32 array as two arrays of two-byte numbers: the rounded result, and the digits that rounding loses."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Halves:
    """An array of higher precision as the sum of two arrays of lower precision.

    A kernel that stores both writes as many bytes as one that stores float32, and no second pass has to round the result. Two
    bfloat16 numbers have 16 significant bits, two float16 numbers have 22. `rest` is 0 for numbers that are not finite.

    >>> pi = Halves.of(jnp.float32(3.14159265), jnp.bfloat16)
    >>> float(pi.astype(jnp.bfloat16)), float(pi.astype(jnp.float32))
    (3.140625, 3.1415939331054688)
    """

    result: Array
    rest: Array

    @classmethod
    def of(cls, x: Array, dtype: jnp.dtype) -> "Halves":
        """Split an array into two of the given dtype."""
        # Without the barrier, XLA may remove the rounding, because it is undone at once.
        result = jax.lax.optimization_barrier(x.astype(dtype))
        rest = x - result.astype(x.dtype)
        return cls(result, jnp.where(jnp.isfinite(rest), rest, 0).astype(dtype))

    def astype(self, dtype: jnp.dtype) -> Array:
        """The array in the dtype of `result`, which costs nothing, or in a wider one."""
        if dtype == self.result.dtype:
            return self.result
        return self.result.astype(dtype) + self.rest.astype(dtype)
