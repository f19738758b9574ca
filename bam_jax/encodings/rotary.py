"""Rotary encodings: queries and keys turned by their positions."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bam_jax.encodings.base import Dims, Encoding


class RoPE(Encoding):
    """RoPE: each pair of a head's dimensions turns by an angle proportional to the position.

        (x_n, x_{n + D/2}) turned by t / (base * base_scale) ** (2 n / D),   n = 0 ... D/2 - 1

    Options:
      base: 10,000 (Su et al., CABLE); BAM's models use 500,000.
      base_scale: multiplies the base at evaluation: 50 in Nakanishi 2025, 100 in BAM appendix H.3, for RoPE SSMax.
      window: Local RoPE: keys fewer tokens away than this; BAM sets it to the training context at evaluation.

    Source: Su et al. 2021, section 3.2; BAM appendix D.2.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        base: float = 10_000.0,
        base_scale: float = 1.0,
        window: int | None = None,
        rngs: nnx.Rngs,
    ):
        self.base = base * base_scale
        self.window = window

    def rotate(self, x: Float[Array, "B T N D"], position: Int[Array, "#B T"]) -> Float[Array, "B T N D"]:
        half = x.shape[-1] // 2
        rate = self.base ** (-jnp.arange(half) / half)
        angle = position[:, :, None, None].astype(jnp.float32) * rate
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)
