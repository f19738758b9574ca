"""Encodings whose logits depend on every token between the key and the query: GRAPE's path integral, PaTH.

They run on the attention backends "reference" and "rows", which "auto" selects for them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from bam_jax import biases
from bam_jax.encodings.angles import angles, turns
from bam_jax.encodings.base import TOKENS, Dims, Encoding, Placed, linear, wide, within
from bam_jax.encodings.rotary import by_pairs
from bam_jax.encodings.turning import short_convolution
from bam_jax.system.errors import UserError


class GRAPEPathIntegral(Encoding):
    """GRAPE-AP: each token after the key, up to and including the query, adds a penalty that depends on the query.

        logits = s + slope_h * sum_{l = j+1..i} log sigmoid(p_i . r_l / P), s_ij = q_i . k_j / sqrt(D)
        p = x W, r_l = p_l / rms(p_l), each pair (n, n + P/2) rotated by l radians

    x is the layer's normalised input. W [E, H P] is initially normal with a standard deviation of 0.02. slope is ALiBi's. Only r
    is rotated, so logits depend on absolute positions: shifting a text changes them. Under grouped-query attention, each key
    head has the r of the first query head in its group. Decoders only.

    Options: width, P, even (8).

    Source: Zhang et al. 2025 (arXiv 2512.07805), section 5. The width follows the authors' code, as does leaving p unnormalised;
    the paper normalises both p and r.
    """

    extrapolates = "untested"

    def __init__(self, dims: Dims, *, width: int = 8, rngs: nnx.Rngs):
        if not dims.causal:
            raise UserError("config.encoding=grape_ap counts tokens from the key to the query; it is for decoders")
        self.width = within("width", width, 2, 1024)
        if width % 2:
            raise UserError(f"GRAPE-AP turns its vectors in pairs: encoding_options.width={width} must be even")
        self.positional = linear(dims.width, dims.heads * width, rngs)

    def turn(self, q: Array, k: Array, x: Array, tokens: Placed, before: None) -> tuple[Array, Array, None]:
        batch, length, heads, _ = q.shape
        p = wide(self.positional(x)).reshape(batch, length, heads, -1)
        of_keys = p[:, :, :: heads // k.shape[2]]
        unit = of_keys * jax.lax.rsqrt(jnp.square(of_keys).mean(-1, keepdims=True) + 1e-6)
        angle = jnp.repeat(angles(tokens.position, jnp.asarray(turns(np.ones(1)))), self.width // 2, axis=-1)
        r = by_pairs(unit, angle[:, :, None])
        factor = jnp.ones((batch, length, heads, 1))
        slope = jnp.broadcast_to(biases.alibi_slopes(heads)[:, None], factor.shape)
        none = lambda side, width: jnp.zeros((*side.shape[:3], width))
        joined = lambda side, *parts: jnp.concatenate([side, *(part.astype(side.dtype) for part in parts)], axis=-1)
        q = joined(q, p, factor, slope, none(q, self.width))
        return q, joined(k, none(k, self.width + 2), r), before

    def rowwise(self) -> biases.Rowwise:
        return biases.PathIntegral(self.width)


class PaTH(Encoding):
    """PaTH: each token after the key, up to and including the query, partially reflects the query along a direction of its own.

        logits = q_i^T A_i A_{i-1} ... A_{j+1} k_j / sqrt(D), A_t = I - beta_t w_t w_t^T
        w = silu(conv(x W1 W2)), normalised to unit length in each head, beta = 2 sigmoid(x u + b)

    x is the layer's normalised input; W1 is [E, rank], W2 [rank, H D], u [E, H]. conv is causal and depthwise, 3 tokens wide, and
    does not reach into another document. Initially, weights are normal with a standard deviation of 0.02, those of conv are
    uniform from -1 / sqrt(3) to 1 / sqrt(3), and b is 0. Under grouped-query attention, each key head has the w and beta of the
    first query head in its group. Decoders only.

    Options: rank (32).

    Source: Yang et al. 2025 (arXiv 2505.16381). The rank and the width of conv follow the authors' code
    (flash-linear-attention).
    """

    extrapolates = "in part"
    TAPS = 3

    def __init__(self, dims: Dims, *, rank: int = 32, rngs: nnx.Rngs):
        if not dims.causal:
            raise UserError("config.encoding=path follows the text from the key to the query; it is for decoders")
        self.heads, self.head_width = dims.heads, dims.head_width
        number, rank = self.heads * self.head_width, within("rank", rank, 1, 2**14)
        self.down, self.up = linear(dims.width, rank, rngs), linear(rank, number, rngs)
        self.beta = linear(dims.width, self.heads, rngs, bias=0.0)
        limit = self.TAPS**-0.5
        self.taps = nnx.Param(jax.random.uniform(rngs.params(), (self.TAPS, number), minval=-limit, maxval=limit))

    def initial_state(self, batch: int) -> Float[Array, "B 2 N"]:
        """The last inputs of the convolution."""
        return jnp.zeros((batch, self.TAPS - 1, self.heads * self.head_width))

    def turn(self, q: Array, k: Array, x: Array, tokens: Placed, before: Any) -> tuple[Array, Array, Any]:
        x = wide(x)
        filled = (tokens.position < TOKENS)[..., None]
        made, state = short_convolution(self.taps[...], jnp.where(filled, self.up(self.down(x)), 0), before, tokens)
        w = jax.nn.silu(made).reshape(*x.shape[:2], self.heads, self.head_width)
        w = w * jax.lax.rsqrt(jnp.square(w).sum(-1, keepdims=True) + 1e-6)
        beta = jnp.where(filled, 2 * jax.nn.sigmoid(self.beta(x)), 0)[..., None]
        of_keys = jnp.concatenate([w, beta], axis=-1)[:, :, :: self.heads // k.shape[2]]
        q = jnp.pad(q, ((0, 0), (0, 0), (0, 0), (0, of_keys.shape[-1])))
        return q, jnp.concatenate([k, of_keys.astype(k.dtype)], axis=-1), state

    def rowwise(self) -> biases.Rowwise:
        return biases.PaTH()
