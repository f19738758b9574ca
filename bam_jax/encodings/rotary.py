"""Rotary encodings, which rotate queries and keys by their positions, and ways to rescale a trained one for longer texts."""

import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32

from bam_jax.encodings.angles import angles, turns
from bam_jax.encodings.base import TOKENS, Dims, Encoding, Placed, positive, wide, within
from bam_jax.system.errors import UserError


def turned(
    x: Float[Array, "B T N D"], position: Int[Array, "#B T"], turns: UInt32[Array, "half 2"], magnitude: float | Array
) -> Float[Array, "B T N D"]:
    """Vectors with pairs (x_n, x_{n + D/2}) rotated by position * rate_n, times the magnitude; rates from `angles.turns`."""
    return by_pairs(x, angles(position, turns)[:, :, None], magnitude)


def by_pairs(
    x: Float[Array, "B T N D"], angle: Float[Array, "#B T #N half"], magnitude: float | Array = 1.0
) -> Float[Array, "B T N D"]:
    """Vectors with pairs (x_n, x_{n + D/2}) rotated by angles in radians, times the magnitude."""
    cos, sin = magnitude * jnp.cos(angle), magnitude * jnp.sin(angle)
    a, b = jnp.split(wide(x), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


class Turning(Encoding):
    """A layer's rotation with rates in arrays, because the layers of a pattern read them from a table."""

    def __init__(self, turns: UInt32[Array, "half 2"], magnitude: Float[Array, ""]):
        self.turns, self.magnitude = turns, magnitude

    def turn(self, q: Array, k: Array, x: Array, tokens: Placed, before: None) -> tuple[Array, Array, None]:
        q, k = (turned(side, tokens.position, self.turns, self.magnitude) for side in (q, k))
        return q, k, before


class RoPE(Encoding):
    """RoPE: each pair of a head's dimensions rotates by an angle proportional to the position.

        (x_n, x_{n + D/2}) turned by t * rate_n,   rate_n = (base * base_scale) ** (-2 n / D),   n = 0 ... D/2 - 1

    Options:
      base: 10,000 (Su et al., CABLE); BAM's models use 500,000.
      base_scale: multiplies the base at evaluation: 50 in Nakanishi 2025, 100 in BAM appendix H.3, for RoPE SSMax.
      window: Local RoPE: only keys fewer tokens away than this; BAM sets it to the training context at evaluation.

    Source: Su et al. 2021, section 3.2; BAM appendix D.2.
    """

    extrapolates = "with a window"
    magnitude = 1.0
    """The factor of both queries and keys."""

    def __init__(
        self,
        dims: Dims,
        *,
        base: float = 10_000.0,
        base_scale: float = 1.0,
        window: int | None = None,
        rngs: nnx.Rngs,
    ):
        if dims.head_width % 2:
            raise UserError(
                f"RoPE turns a head's dimensions in pairs: {dims.heads} heads of a width of {dims.width} have "
                f"{dims.head_width} each; choose heads of an even width"
            )
        self.base = positive("base", base) * positive("base_scale", base_scale)
        self.window = None if window is None else within("window", window, 1, TOKENS)

    def rates(self, half: int) -> Float[np.ndarray, " half"]:
        """Radians per token of each pair, for a head of 2 * half dimensions."""
        return self.base ** (-np.arange(half) / half)

    def turn(self, q: Array, k: Array, x: Array, tokens: Placed, before: None) -> tuple[Array, Array, None]:
        rates = jnp.asarray(turns(self.rates(q.shape[-1] // 2)))
        q, k = (turned(side, tokens.position, rates, self.magnitude) for side in (q, k))
        return q, k, before


class PartialRoPE(RoPE):
    """p-RoPE: the fastest pairs rotate as in RoPE; the slowest, which would only drift in a long text, do not rotate.

        rate_n = (base * base_scale) ** (-2 n / D) where n < floor(share D / 2), and 0 for slower pairs

    Options: share of the pairs that rotate (1 is RoPE, 0 is NoPE); base, base_scale and window as in RoPE.

    Source: Barbero et al. 2024 (arXiv 2410.06205), section 6.1, who keep 0.75. Global layers of Gemma 4 keep 0.25, the
    default here. As there, the exponents run over all D, so the pairs that rotate are RoPE's fastest.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        share: float = 0.25,
        base: float = 10_000.0,
        base_scale: float = 1.0,
        window: int | None = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(dims, base=base, base_scale=base_scale, window=window, rngs=rngs)
        self.share = within("share", share, 0.0, 1.0)

    def rates(self, half: int) -> Float[np.ndarray, " half"]:
        return np.where(np.arange(half) < math.floor(self.share * half), super().rates(half), 0.0)


class PositionInterpolation(RoPE):
    """RoPE with position interpolation: positions are scaled down to fit the training context.

        rate_n = base ** (-2 n / D) / factor

    Options: factor, the desired length divided by the training context; base and window as in RoPE. For a model trained with
    RoPE, at evaluation or for further training.

    Source: Chen et al. 2023 (arXiv 2306.15595), equation 3.
    """

    extrapolates = "by its factor"

    def __init__(
        self, dims: Dims, *, factor: float = 1.0, base: float = 10_000.0, window: int | None = None, rngs: nnx.Rngs
    ):
        super().__init__(dims, base=base, window=window, rngs=rngs)
        self.factor = positive("factor", factor)

    def rates(self, half: int) -> Float[np.ndarray, " half"]:
        return super().rates(half) / self.factor


class NTK(PositionInterpolation):
    """NTK-aware RoPE: the slowest pair is interpolated by the whole factor, the fastest not at all.

        rate_n = (base * factor ** (D / (D - 2))) ** (-2 n / D)

    Options: factor, base and window, as in position interpolation (`rope_pi`).

    Source: Peng et al. 2023 (arXiv 2309.00071), section 3.1, after bloc97's post.
    """

    def rates(self, half: int) -> Float[np.ndarray, " half"]:
        if half < 2:
            raise UserError("NTK-aware RoPE needs heads of 4 dimensions or more: choose fewer heads or more width")
        return (self.base * self.factor ** (half / (half - 1))) ** (-np.arange(half) / half)


class YaRN(PositionInterpolation):
    """YaRN: pairs with many turns within the training context are unchanged; pairs with less than one are interpolated.

        rate_n = r_n * ((1 - g(r_n)) / factor + g(r_n)),   r_n = base ** (-2 n / D)
        g(r) = clip((L r / (2 pi) - slow) / (fast - slow), 0, 1);   q and k times 0.1 log(factor) + 1

    Options: factor, base and window as in position interpolation; slow (1) and fast (32), alpha and beta of the paper, in
    turns; context, L in tokens, the training context by default.

    Source: Peng et al. 2023 (arXiv 2309.00071), sections 3.2 and 3.4. The ramp is linear in the turns, as in the paper; in
    the authors' code it is linear in n, between the two n with these numbers of turns.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        factor: float = 1.0,
        slow: float = 1.0,
        fast: float = 32.0,
        context: int | None = None,
        base: float = 10_000.0,
        window: int | None = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(dims, factor=factor, base=base, window=window, rngs=rngs)
        if not slow < fast:
            raise UserError(
                f"{type(self).__name__} interpolates between slow and fast turns: encoding_options.slow={slow} must be below "
                f"encoding_options.fast={fast}"
            )
        self.slow, self.fast = slow, fast
        self.context = within("context", dims.context if context is None else context, 1, TOKENS)
        self.magnitude = 0.1 * math.log(max(self.factor, 1.0)) + 1

    def rates(self, half: int) -> Float[np.ndarray, " half"]:
        rate = RoPE.rates(self, half)
        turns = self.context * rate / (2 * math.pi)
        kept = np.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
        return rate * ((1 - kept) / self.factor + kept)


class Llama3(YaRN):
    """RoPE as rescaled by Llama 3.1 and later: YaRN's ramp from 1 to 4 turns, with queries and keys not scaled.

        rate_n = r_n * ((1 - g(r_n)) / factor + g(r_n)),   r_n = base ** (-2 n / D)
        g(r) = clip((L r / (2 pi) - slow) / (fast - slow), 0, 1)

    Options: factor, base and window as in position interpolation; slow (1) and fast (4), in turns, called low_freq_factor and
    high_freq_factor in a config.json; context, L in tokens, called original_max_position_embeddings there, the training context
    by default.

    Source: Grattafiori et al. 2024 (arXiv 2407.21783), section 3.4, and the public code of Llama 3.1.
    """

    def __init__(
        self,
        dims: Dims,
        *,
        factor: float = 1.0,
        slow: float = 1.0,
        fast: float = 4.0,
        context: int | None = None,
        base: float = 10_000.0,
        window: int | None = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            dims, factor=factor, slow=slow, fast=fast, context=context, base=base, window=window, rngs=rngs
        )
        self.magnitude = 1.0
