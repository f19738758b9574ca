"""A float32 array in two arrays of two bytes: the first is a result as it is wanted, both together have the digits left out."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Halves:
    """An array of higher precision as the sum of two of a lower one.

    A kernel that stores both writes as many bytes as one that stores float32, and nobody has to round its result in a second
    pass. Two of bfloat16 have 16 significant bits, two of float16 have 22. The rest of what is not finite is 0.

    >>> pi = Halves.of(jnp.float32(3.14159265), jnp.bfloat16)
    >>> float(pi.astype(jnp.bfloat16)), float(pi.astype(jnp.float32))
    (3.140625, 3.1415939331054688)
    """

    result: Array
    rest: Array

    @classmethod
    def of(cls, x: Array, dtype: jnp.dtype) -> "Halves":
        """Cut an array into two of a type."""
        # Without the barrier XLA may leave out a rounding that is undone at once.
        result = jax.lax.optimization_barrier(x.astype(dtype))
        rest = x - result.astype(x.dtype)
        return cls(result, jnp.where(jnp.isfinite(rest), rest, 0).astype(dtype))

    def astype(self, dtype: jnp.dtype) -> Array:
        """The array in its own type, which costs nothing, or in a wider one."""
        if dtype == self.result.dtype:
            return self.result
        return self.result.astype(dtype) + self.rest.astype(dtype)
