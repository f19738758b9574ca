"""Encodings that change queries and keys by more than a rotation by position: PoPE, xPos, Selective RoPE."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, UInt32

from bam_jax.encodings.angles import angle_sum, angles, turns
from bam_jax.encodings.base import TOKENS, Dims, Encoding, Placed, linear, positive, wide, within
from bam_jax.encodings.rotary import RoPE, by_pairs
from bam_jax.system.errors import UserError


class PoPE(Encoding):
    """PoPE: content gives each component of a query or key its magnitude, and the position gives it its phase.

        s_ij = sum_c softplus(q_ic) softplus(k_jc) cos((j - i) * rate_c + delta_c) / sqrt(D)
        rate_c = base ** (-c / D), c = 0 ... D - 1, -2 pi <= delta_c <= 0

    Keys become 2 D wide, a real and an imaginary part for each component, and values stay D wide. delta is trained for each
    head and starts at 0, which the paper finds important for longer texts. A parameter beyond the limits is clipped, and moves
    only back towards them (ours).

    Options: base.

    Source: Gopalakrishnan et al. 2025 (arXiv 2509.10534), section 3, equations 3 to 8. The paper prints rates without the
    minus and does not give the scale; both follow public implementations. We apply delta to queries, so each head has its own
    even under grouped-query attention.
    """

    extrapolates = "yes"

    def __init__(self, dims: Dims, *, base: float = 10_000.0, rngs: nnx.Rngs):
        self.base = positive("base", base)
        self.delta = nnx.Param(jnp.zeros((dims.heads, dims.head_width)))

    def turn(self, q: Array, k: Array, x: Array, tokens: Placed, before: None) -> tuple[Array, Array, None]:
        width = q.shape[-1]
        rates = self.base ** (-np.arange(width) / width)
        angle = angles(tokens.position, jnp.asarray(turns(rates)))[:, :, None]

        def polar(side: Array, angle: Array) -> Array:
            magnitude = jax.nn.softplus(wide(side))
            return jnp.concatenate([magnitude * jnp.cos(angle), magnitude * jnp.sin(angle)], -1).astype(side.dtype)

        delta = _held(self.delta[...], -2 * math.pi, 0.0)
        return polar(q, angle - delta), polar(k, angle), before


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _held(x: Array, low: float, high: float) -> Array:
    """x within limits. Beyond a limit, a gradient that leads back in passes: else a parameter that starts there could be lost."""
    return jnp.clip(x, low, high)


def _held_forward(x: Array, low: float, high: float) -> tuple[Array, Array]:
    return _held(x, low, high), x


def _held_backward(low: float, high: float, x: Array, gradient: Array) -> tuple[Array]:
    lost = (x > high) & (gradient < 0) | (x < low) & (gradient > 0)
    return (jnp.where(lost, 0, gradient),)


_held.defvjp(_held_forward, _held_backward)


class XPos(RoPE):
    """xPos: RoPE whose pairs decay with the distance, the fast ones most.

        (x_n, x_{n + D/2}) turned by t * rate_n, rate_n = base ** (-2 n / D)
        q_n times zeta_n ** (t / scale_base), k_n divided by it, zeta_n = (2 n / D + 0.4) / 1.4

    The product of a query and a key decays by zeta_n to the power of their distance over scale_base. In the exponents, t is
    relative to the middle of the training context and clipped to +-16,384 to avoid float32 overflow. If both tokens lie beyond
    the same limit, their product does not decay. For decoders.

    Options: scale_base in tokens (512); base as in RoPE.

    Source: Sun et al. 2023 (arXiv 2212.10554), algorithm 1; scale_base and the middle are those of the authors' code
    (torchscale), where the middle moves with the length of the text.
    """

    extrapolates = "in part"
    FARTHEST = 16_384

    def __init__(self, dims: Dims, *, scale_base: float = 512.0, base: float = 10_000.0, rngs: nnx.Rngs):
        if not dims.causal:
            raise UserError("config.encoding=xpos grows with the distance after the query; it is for decoders")
        super().__init__(dims, base=base, rngs=rngs)
        self.scale_base = within("scale_base", scale_base, 512.0, 1e9)
        self.middle = dims.context // 2

    def turn(self, q: Array, k: Array, x: Array, tokens: Placed, before: None) -> tuple[Array, Array, None]:
        half = q.shape[-1] // 2
        log_zeta = np.log((2 * np.arange(half) / q.shape[-1] + 0.4) / 1.4)
        far = jnp.clip(tokens.position - self.middle, -self.FARTHEST, self.FARTHEST)
        power = (far / self.scale_base)[..., None, None] * log_zeta
        rates = jnp.asarray(turns(self.rates(half)))
        angle = angles(tokens.position, rates)[:, :, None]
        return by_pairs(q, angle, jnp.exp(power)), by_pairs(k, angle, jnp.exp(-power)), before


class SelectiveRoPE(Encoding):
    """Selective RoPE: each pair rotates by an angle that depends on the text and is summed along it.

        (x_n, x_{n + D/2}) turned by sum_{u <= t} rate_n * g_u * phi_un, rate_n = base ** (-2 n / D)
        phi = conv(x' W1 W2), g = sigmoid(x' w + b), x' = x, split into heads, each part normalised to unit length

    conv is causal and depthwise, 4 tokens wide, and does not reach into another document. W1 has `rank` outputs. All weights
    are initially normal with a standard deviation of 0.02, so at first hardly anything rotates, as in NoPE.

    Options: rank (16); base.

    Source: Movahedi et al. 2025 (arXiv 2511.17388), figure 4, and the authors' code, which computes angles from the layer's
    input instead of queries, has one gate for each head, and sets base to 500,000.
    """

    extrapolates = "untested"
    TAPS = 4

    def __init__(self, dims: Dims, *, rank: int = 16, base: float = 500_000.0, rngs: nnx.Rngs):
        if dims.head_width % 2 or dims.width % dims.heads:
            raise UserError(
                f"Selective RoPE turns a head's dimensions in pairs, by the head's part of the input: {dims.heads} heads of "
                f"{dims.head_width} do not fit a width of {dims.width}"
            )
        self.heads, self.half, self.base = dims.heads, dims.head_width // 2, positive("base", base)
        rank = within("rank", rank, 1, 2**14)
        self.down, self.up = linear(dims.width, rank, rngs), linear(rank, self.heads * self.half, rngs)
        self.gate = linear(dims.width, self.heads, rngs, bias=0.0)
        self.taps = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), (self.TAPS, self.heads * self.half)))

    def initial_state(self, batch: int) -> tuple[Float[Array, "B 3 N"], UInt32[Array, "B N"]]:
        """The last inputs of the convolution, and the sum of the angles so far, in turns."""
        number = self.heads * self.half
        return jnp.zeros((batch, self.TAPS - 1, number)), jnp.zeros((batch, number), jnp.uint32)

    def turn(self, q: Array, k: Array, x: Array, tokens: Placed, before: Any) -> tuple[Array, Array, Any]:
        seen, total = before
        batch, length, width = x.shape
        parts = wide(x).reshape(batch, length, self.heads, -1)
        parts = parts * jax.lax.rsqrt(jnp.maximum(jnp.square(parts).sum(-1, keepdims=True), 1e-12))
        unit = parts.reshape(batch, length, width)
        filled = (tokens.position < TOKENS)[..., None]

        made = jnp.where(filled, self.up(self.down(unit)), 0)
        phi, seen = short_convolution(self.taps[...], made, seen, tokens)
        rates = self.base ** (-np.arange(self.half) / self.half) / (2 * math.pi)  # in turns
        gate = jax.nn.sigmoid(self.gate(unit))[..., None]
        step = phi.reshape(batch, length, self.heads, self.half) * gate * rates
        step = jnp.where(filled, step.reshape(batch, length, -1), 0)

        angle, total = angle_sum(step, total)
        group = self.heads // k.shape[2]  # query heads that share a key head use the angles of the first of them
        of_keys = angle.reshape(batch, length, self.heads, self.half)[:, :, ::group]
        return by_pairs(q, jnp.repeat(of_keys, group, axis=2)), by_pairs(k, of_keys), (seen, total)


def short_convolution(
    taps: Float[Array, "N W"], x: Float[Array, "B T W"], before: Float[Array, "B N-1 W"], tokens: Placed
) -> tuple[Float[Array, "B T W"], Float[Array, "B N-1 W"]]:
    """A causal depthwise convolution within documents, and its last input rows, for the tokens to come.

    y_t = sum_n taps_n x_{t - n}
    """
    row = jnp.concatenate([before, x], axis=1)
    made, number = jnp.zeros_like(x), len(taps)
    for lag in range(number):  # the state does not cross documents: with documents there is no cache
        earlier = row[:, number - 1 - lag : row.shape[1] - lag]
        made += taps[lag] * jnp.where(_same_document(tokens, lag), earlier, 0)
    return made, row[:, x.shape[1] :]


def _same_document(tokens: Placed, lag: int) -> Bool[Array, "#B T 1"] | bool:
    """Whether the token `lag` places before is in the same document."""
    if tokens.segment is None:
        return True
    earlier = jnp.pad(tokens.segment, ((0, 0), (lag, 0)))[:, : tokens.segment.shape[1]]
    return (earlier == tokens.segment)[..., None]
