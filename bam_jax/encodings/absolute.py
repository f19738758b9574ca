"""Encodings that add a vector per position to the token embeddings."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from bam_jax.encodings.angles import angles, turns
from bam_jax.encodings.base import ROWS, Dims, Encoding, positive, within


class SinusoidalTable(nnx.Module):
    """Sines and cosines of the position, in geometric steps of wavelength.

        x_t[2 n] += sin(t / base ** (2 n / E)),   x_t[2 n + 1] += cos(t / base ** (2 n / E))

    With odd_cosines the cosine has the exponent (2 n + 1) / E. Vaswani et al. first multiply the token embeddings by sqrt(E)
    (section 3.4), which is not done here: if embeddings start at a scale of 0.02, the waves are 35 times as large.

    Source: Vaswani et al. 2017, section 3.5; odd_cosines: the code of BAM's authors.
    """

    limit = None

    def __init__(self, dims: Dims, *, base: float = 10_000.0, odd_cosines: bool = False, rngs: nnx.Rngs):
        self.base, self.odd_cosines = positive("base", base), odd_cosines

    def __call__(self, x: Float[Array, "B T E"], position: Int[Array, "#B T"]) -> Float[Array, "B T E"]:
        width = x.shape[-1]
        even = np.arange(0, width, 2)
        angle = lambda n: angles(position, jnp.asarray(turns(self.base ** (-n / width))))
        waves = [jnp.sin(angle(even)), jnp.cos(angle(even + 1 if self.odd_cosines else even))]
        table = jnp.stack(waves, -1).reshape(*position.shape, -1)
        return x + table[..., :width].astype(x.dtype)


class Sinusoidal(Encoding):
    """Sinusoidal absolute encoding. Source: Vaswani et al. 2017, section 3.5.

    Options: base, 10,000 in both papers; odd_cosines, as in the code of BAM's authors (see `SinusoidalTable`).
    """

    extrapolates = "no"
    embedding = SinusoidalTable

    def __init__(self, dims: Dims, *, base: float = 10_000.0, odd_cosines: bool = False, rngs: nnx.Rngs):
        pass


class LearnedTable(nnx.Module):
    """A trained vector for each position of the training context; there is none beyond it.

        x_t += e_t

    Source: Gehring et al. 2017, section 3.1.
    """

    def __init__(self, dims: Dims, *, length: int | None = None, rngs: nnx.Rngs):
        self.limit = within("length", dims.context if length is None else length, 1, ROWS)
        self.embedding = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), (self.limit, dims.width)))

    def __call__(self, x: Float[Array, "B T E"], position: Int[Array, "#B T"]) -> Float[Array, "B T E"]:
        rows = self.embedding[...].at[position].get(mode="clip")
        # Added before narrowing: many rows share the gradient of a position, which is then summed in the table's dtype.
        return (x.astype(jnp.promote_types(x.dtype, rows.dtype)) + rows).astype(x.dtype)


class Learned(Encoding):
    """Learned absolute encoding. Options: length of the table in tokens, the training context by default.

    A longer text is an error. Source: Gehring et al. 2017; CABLE section 4.3.
    """

    extrapolates = "no"
    embedding = LearnedTable

    def __init__(self, dims: Dims, *, length: int | None = None, rngs: nnx.Rngs):
        pass
