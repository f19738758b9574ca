"""Biases of the token index: each is the logarithm of a positional prior, up to its normalisation."""

import dataclasses
import itertools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bam_jax.biases.base import Bias, Coordinate, Monotone, Relative, bias, difference, shared, static, sum_to

CAP = 9.0
"""Largest exponent of a power: a bias is never below -exp(CAP) = -8103 nats.

Without a cap, eps = 1e-5 to a power below about -7.5 overflows float32, and the first row, whose only key is the query itself,
becomes NaN. The cap is inside the exponential; outside, the gradient would still be inf * 0.
"""

_BITS = 1 / math.log(2)  # in a nat


@jax.custom_jvp
def smooth_distance(offset: Array) -> Array:
    """abs, with the gradient 0 at 0, where that of JAX is 1."""
    return jnp.abs(offset)


smooth_distance.defjvps(lambda d_offset, distance, offset: d_offset * jnp.sign(offset))


def capped_power(log_scale: Any, shape: Any, distance: Array) -> Array:
    """exp(log_scale) * distance ** shape, capped; distance > 0.

    `pow` costs twice as much on a TPU, and has no cap.
    """
    return jnp.exp2(jnp.minimum(_exponent(log_scale, shape, distance), CAP * _BITS))


def _exponent(log_scale: Any, shape: Any, distance: Array) -> Array:
    """log_scale + shape * log(distance) in bits, because hardware computes powers of 2."""
    return log_scale * _BITS + shape * jnp.log2(distance)


@bias
class Uniform(Monotone):
    """NoPE: the uniform prior over visible positions.

        b(i, j) = 0

    Source: BAM Lemma 1; Kazemnejad et al. 2023.
    """

    def __call__(self, i: Array, j: Array) -> Array:
        return jnp.zeros(jnp.broadcast_shapes(jnp.shape(i), jnp.shape(j)), jnp.result_type(i, j))


@bias
class ALiBi(Monotone):
    """ALiBi: a Laplace prior, whose scale is 1 / slope tokens. The symmetric form serves encoders.

        b(i, j) = -slope * abs(i - j)

    Args:
        slope: [H], in nats per token; `alibi_slopes` gives the published ones.

    Source: Press et al. 2022, section 3; BAM Lemma 2.
    """

    slope: Float[Array, "*H"]

    def __call__(self, i: Array, j: Array) -> Array:
        return -self.slope * jnp.abs(i - j)


def alibi_slopes(heads: int) -> np.ndarray:
    """Slopes of ALiBi for any number of heads, in nats per token, [H].

        slope_h = 2 ** (-8 h / H),  h = 1 ... H,  when H is a power of two;

    otherwise those of the next lower power of two, then every other one of the next higher.

    Args:
        heads: number of heads, at least 1.

    Source: Press et al. 2022, section 3, and the authors' code for other head counts.

    >>> alibi_slopes(3)
    array([0.0625    , 0.00390625, 0.25      ])
    """
    if heads < 1:
        raise ValueError(f"ALiBi needs at least one head, got heads={heads}")
    lower = 2 ** math.floor(math.log2(heads))
    ladder = lambda n: 2.0 ** (-8.0 * np.arange(1, n + 1) / n)
    return np.concatenate([ladder(lower), ladder(2 * lower)[::2][: heads - lower]])


@bias
class GeneralisedGaussian(Monotone):
    """BAM: a generalised Gaussian prior over relative positions; shape 1 is ALiBi, shape 0 is uniform, shape < 0 is long-range.

        b(i, j) = -exp(log_scale) * (abs(j - i - mu) + eps) ** shape,   mu = exp(loc) - exp(-loc),   eps = 1e-5

    It is capped at -exp(CAP); above that it is the paper's formula.

    Args:
        shape: [H], theta_beta, the exponent beta.
        log_scale: [H], theta_alpha; alpha = exp(-theta_alpha / theta_beta) tokens.
        loc: [H], theta_mu; the mode is mu tokens after the query.

    Source: BAM section 2.3 and appendix C (training code; their plain inference file has another prior).
    """

    shape: Float[Array, "*H"]
    log_scale: Float[Array, "*H"]
    loc: Float[Array, "*H"]
    eps: float = static(1e-5)

    def centre(self) -> Array:
        """mu, in tokens."""
        return jnp.exp(self.loc) - jnp.exp(-self.loc)

    def __call__(self, i: Array, j: Array) -> Array:
        return -capped_power(self.log_scale, self.shape, smooth_distance(j - i - self.centre()) + self.eps)

    def cotangents(self, i: Array, j: Array, d_bias: Array) -> tuple["GeneralisedGaussian", Array, Array]:
        """In closed form, with z = abs(j - i - mu) + eps; all are zero where the cap applies.

        db/dlog_scale = b,   db/dshape = b log z,   db/dj = -db/di = -db/dmu = b shape sign(j - i - mu) / z
        """
        offset = j - i - self.centre()
        distance = smooth_distance(offset) + self.eps
        capped = _exponent(self.log_scale, self.shape, distance) >= CAP * _BITS  # false for NaN, which stays
        fall = jnp.where(
            capped, 0.0, d_bias * capped_power(self.log_scale, self.shape, distance)
        )  # minus the cotangent of log_scale
        d_scale, d_shape = -sum_to(fall, self.log_scale), -sum_to(fall * jnp.log2(distance), self.shape) / _BITS
        d_offset = -fall * self.shape * jnp.sign(offset) / distance
        d_loc = -sum_to(d_offset, self.loc) * (jnp.exp(self.loc) + jnp.exp(-self.loc))
        d_self = dataclasses.replace(self, shape=d_shape, log_scale=d_scale, loc=d_loc)
        return d_self, sum_to(-d_offset, i), sum_to(d_offset, j)


@bias
class KerpleLog(Monotone):
    """Kerple, logarithmic form: a power-law prior.

        b(i, j) = -r1 * log(1 + r2 * abs(i - j))

    Args:
        r1, r2: [H], positive.

    Source: Chi et al. 2022, equation 5; CABLE section 2.
    """

    r1: Float[Array, "*H"]
    r2: Float[Array, "*H"]

    def __call__(self, i: Array, j: Array) -> Array:
        return -self.r1 * jnp.log(1 + self.r2 * jnp.abs(i - j))


@bias
class KerplePower(Monotone):
    """Kerple, power form: BAM's prior without eps, its exponent in (0, 2].

        b(i, j) = -r1 * abs(i - j) ** r2

    Args:
        r1: [H], positive.
        r2: [H], in (0, 2].

    Source: Chi et al. 2022, equation 5; CABLE section 2.
    """

    r1: Float[Array, "*H"]
    r2: Float[Array, "*H"]

    def __call__(self, i: Array, j: Array) -> Array:
        distance = jnp.abs(i - j)
        apart = distance > 0  # log(0) must not reach the gradient
        return jnp.where(apart, -capped_power(jnp.log(self.r1), self.r2, jnp.where(apart, distance, 1.0)), 0.0)


@bias
class FIRE(Bias):
    """FIRE: a small network of the distance relative to the query's context, so that all lengths look alike.

        b(i, j) = f(psi(abs(i - j)) / psi(max(L, i, j))),   psi(x) = log(c x + 1),   f(x) = w2 . relu(w1 x + b1) + b2

    For j <= i it is the paper's formula, which divides by psi(max(L, i)); max(i, j) in place of i is the form for encoders.

    Args:
        w1, b1: [n], the hidden layer, shared by all heads (n = 32 in the paper).
        w2: [H, n]; b2: [H].
        c: [], positive, shared; length: [], L in tokens, positive, shared.

    Source: Li et al. 2023, equation 4 and section 3.3; CABLE section 2.
    """

    w2: Float[Array, "*H n"]
    b2: Float[Array, "*H"]
    w1: Float[Array, " n"] = shared()
    b1: Float[Array, " n"] = shared()
    c: Float[Array, ""] = shared()
    length: Float[Array, ""] = shared()
    splits_positions: ClassVar[bool] = True

    def __call__(self, i: Coordinate, j: Coordinate) -> Array:
        offset = difference(i, j) if isinstance(i, tuple) else i - j
        i, j = (x[0] + x[1] if isinstance(x, tuple) else x for x in (i, j))
        psi = lambda x: jnp.log(self.c * x + 1)
        progress = psi(jnp.abs(offset)) / psi(jnp.maximum(self.length, jnp.maximum(i, j)))
        total = self.b2 + jnp.zeros_like(progress)
        for n in range(self.w1.shape[-1]):
            total = total + self.w2[n] * jnp.maximum(self.w1[n] * progress + self.b1[n], 0)
        return total


def t5_starts(buckets: int = 32, max_distance: int = 128) -> tuple[int, ...]:
    """Smallest distance, in tokens, of each of T5's buckets: half of them exact, the rest logarithmic up to `max_distance`.

        bucket(d) = d                                                          for d < n / 2
                  = n/2 + floor(log(d / (n/2)) / log(max_distance / (n/2)) * n/2)   beyond, at most n - 1

    Source: Raffel et al. 2020, section 2.1, and the authors' code.

    >>> t5_starts(8, 16)
    (0, 1, 2, 3, 4, 6, 8, 12)
    """
    exact = buckets // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError(f"T5 needs buckets >= 2 and max_distance > buckets / 2, got {buckets} and {max_distance}")
    distance = np.arange(exact, max_distance + 1)
    log_bucket = exact + np.floor(
        np.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact) + 1e-9
    ).astype(int)
    return (*range(exact), *(int(distance[np.argmax(log_bucket >= n)]) for n in range(exact, buckets)))


@bias
class T5(Relative):
    """T5's buckets: one learned value for each range of distances, an empirical prior.

        b(i, j) = table[bucket(i - j)],   bucket(d) = the last one with starts[bucket] <= d

    Args:
        table: [H, n], or [H, 2 n] for the bidirectional form, whose second half serves keys after the query.
        starts: smallest distance of each bucket, in tokens, ascending from 0, n of them; see `t5_starts`.
        bidirectional: whether keys after the query have values of their own; else they share bucket 0.

    Source: Raffel et al. 2020, section 2.1.
    """

    table: Float[Array, "*H n"]
    starts: tuple[int, ...] = static()
    bidirectional: bool = static(False)

    def __call__(self, i: Array, j: Array) -> Array:
        values, wanted = self.table.shape[-1], len(self.starts) * (1 + self.bidirectional)
        if values != wanted:
            raise ValueError(f"T5 holds a table of {values} values, and its starts ask for {wanted}")
        if self.starts[:1] != (0,) or any(later <= start for start, later in itertools.pairwise(self.starts)):
            raise ValueError(f"T5's starts ascend from 0, got {self.starts!r:.100}; see biases.t5_starts")

        def side(distance: Array, offset: int) -> Array:
            value = self.table[offset] + jnp.zeros_like(distance)
            for n, start in enumerate(self.starts[1:], 1):
                value = jnp.where(distance >= start, self.table[offset + n], value)
            return value

        if not self.bidirectional:
            return side(i - j, 0)
        return jnp.where(j > i, side(j - i, len(self.starts)), side(i - j, 0))


@bias
class T5Distance(Relative):
    """T5 bias as in the CABLE paper: one learned value per distance, clipped, without logarithmic buckets.

        b(i, j) = table[min(abs(i - j), K)]

    Kernels do not evaluate this lookup, but read the values in strips.

    Args:
        table: [H, K + 1].

    Source: CABLE section 2.
    """

    table: Float[Array, "*H n"]

    def __call__(self, i: Array, j: Array) -> Array:
        clip = self.table.shape[-1] - 1
        return self.table[jnp.minimum(jnp.abs(i - j), clip).astype(jnp.int32)]


@bias
class Band(Relative):
    """One learned value for each distance within a band, and 0 beyond it.

        b(i, j) = table[abs(i - j)] for abs(i - j) < K, else 0

    Kernels read the values in strips. Those for TPUs compute no bias for a tile that lies entirely beyond the band.

    Args:
        table: [H, K].

    Source: the profiles of Inkling; see `encodings.Inkling`.
    """

    table: Float[Array, "*H n"]

    @property
    def zero_from(self) -> int:
        """K"""
        return self.table.shape[-1]

    def __call__(self, i: Array, j: Array) -> Array:
        distance = jnp.abs(i - j)
        value = self.table[jnp.minimum(distance, self.zero_from - 1).astype(jnp.int32)]
        return jnp.where(distance < self.zero_from, value, 0)
