"""A bias of each kind, gradients of everything that has one, and comparisons."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import BACKENDS, EMPTY

H = 4
C = 3  # profiles of a mixture

BIASES = {
    "uniform": lambda draw: biases.Uniform(),
    "alibi": lambda draw: biases.ALiBi(draw(0.1, 1, H)),
    "ggd": lambda draw: biases.GeneralisedGaussian(draw(-0.7, 1.5, H), draw(-1, 1, H), draw(-0.6, 0.6, H)),
    "kerple_log": lambda draw: biases.KerpleLog(draw(0.1, 2, H), draw(0.1, 1, H)),
    "kerple_power": lambda draw: biases.KerplePower(draw(0.1, 1, H), draw(0.2, 1.9, H)),
    "sandwich": lambda draw: biases.Sandwich(draw(0.5, 2, H), width=6, base=50.0),
    "additive_decay": lambda draw: biases.AdditiveDecay(draw(0, 1, H), draw(0, 1, H), draw(0, 1, H)),
    "gaussian": lambda draw: biases.Gaussian(draw(0, 2, H)),
    "student_t": lambda draw: biases.StudentT(draw(0, 2, H), draw(-1, 1, H)),
    "fire": lambda draw: biases.FIRE(
        w1=draw(-1, 2, 3),
        b1=draw(-1, 1, 3),
        w2=draw(-1, 1, H, 3),
        b2=draw(-1, 1, H),
        c=draw(0.1, 1),
        length=draw(5, 9),
    ),
    "t5": lambda draw: biases.T5(draw(-1, 1, H, 4), starts=biases.t5_starts(4, 9)),
    "t5_bidirectional": lambda draw: biases.T5(draw(-1, 1, H, 8), starts=biases.t5_starts(4, 9), bidirectional=True),
    "t5_distance": lambda draw: biases.T5Distance(draw(-1, 1, H, 6)),
    "band": lambda draw: biases.Band(draw(-1, 1, H, 6)),
    "difference": lambda draw: biases.Difference(),
    "distance": lambda draw: biases.Difference(symmetric=True),
    "cable": lambda draw: biases.CABLE(),
    "k_cable": lambda draw: biases.KCABLE(),
    "gated": lambda draw: biases.GatedDistance(),
    "contextual": lambda draw: biases.ContextualGaussian(draw(-0.7, 1.5, H), draw(-1, 1, H)),
    "mixture": lambda draw: biases.Mixture(
        biases.GeneralisedGaussian(draw(-0.7, 1.5, C), draw(-1, 1, C), draw(-0.6, 0.6, C))
    ),
    "mixed_band": lambda draw: biases.Mixture(biases.Band(draw(-1, 1, C, 6))),
}
SUMS = ("difference", "distance", "cable", "k_cable", "gated", "contextual")
GATED = ("cable", "k_cable", "gated")  # whose query brings a number besides
MIXTURES = ("mixture", "mixed_band")  # which come in strips on TPUs, and nowhere else in a kernel


def drawn(name, seed=0):
    """A bias with random parameters of float32."""
    rng = np.random.default_rng(seed)
    return BIASES[name](lambda low, high, *shape: jnp.asarray(rng.uniform(low, high, shape), jnp.float32))


@biases.bias
class Cauchy(biases.Bias):
    """A formula of a user's own that kernels can compute."""

    scale: jax.Array

    def __call__(self, i, j):
        distance = (i - j) / self.scale
        return -jnp.log(1 + distance * distance)


@biases.bias
class Odd(biases.Bias):
    """A formula that the kernels' compilers do not know."""

    scale: jax.Array

    def __call__(self, i, j):
        return -self.scale * jnp.sinh(i - j)


@biases.bias
class Lying(biases.Relative):
    """A lookup that says it is relative, and looks at the query's position."""

    table: jax.Array

    def __call__(self, i, j):
        return self.table[jnp.abs(i - j).astype(jnp.int32)] - i * jnp.sin(j - i)


EACH = [pytest.param(name, marks=pytest.mark.hopper) if name == "pallas_gpu" else name for name in BACKENDS]


def normals(rng, *shapes):
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


def wave(x):
    """Weights, each another one, which vary over the devices of a mesh where x does."""
    # In bfloat16 `arange` counts no further than 256.
    return jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).astype(x.dtype).reshape(x.shape) + jnp.zeros_like(x)


def slopes(function, *operands, d_results=None):
    """Results, and gradients of all floats in the operands; without `d_results` of a loss that weighs each number otherwise."""
    results, vjp = jax.vjp(function, *operands)
    gradients = vjp(jax.tree.map(wave, results) if d_results is None else d_results)
    return results, *(x for x in jax.tree.leaves(gradients) if x.dtype != jax.dtypes.float0)


def close(made, expected, tolerance=1e-5, what=""):
    """Errors are relative to an array's largest number, or 1: what cancels to zero is a sum of terms of order one."""
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape, what
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(initial=1), err_msg=what)


def visible_by_definition(queries, keys, mask):
    """Which keys each query sees, [B, T, S]."""
    column = lambda x: None if x is None else np.asarray(x, np.int64)[:, :, None]
    row = lambda x: np.asarray(x, np.int64)[:, None]
    i, j, first, last = column(queries.position), row(keys.position), column(queries.sees_from), column(queries.sees_to)
    near = (i - j if mask.causal else abs(i - j)) < (mask.window or np.inf)
    near = near & (True if first is None else j >= first)
    seen = (i != EMPTY) & (j != EMPTY) & (near | (j < mask.sink_tokens))
    if last is not None:
        seen = seen & (j <= last)
    elif mask.causal:
        seen = seen & (j <= i)
    if queries.segment is not None:
        own, other = column(queries.segment), row(keys.segment)
        seen = seen & (own == other) & (own > 0)
    return seen


def kept_by_definition(rate, seed, *words, key):
    """Whether the weight of a key at a position is kept: the hash in integers of Python, of which 32 bits are left."""
    multiply = lambda a, b: a * b % 2**32

    def hashed(x):
        x = multiply(x ^ x >> 16, 0x7FEB352D)
        x = multiply(x ^ x >> 15, 0x846CA68B)
        return x ^ x >> 16

    code, step = seed, 0x9E3779B9
    for word in words:
        code = hashed(((code ^ int(word)) + step) % 2**32)
    return hashed(code ^ hashed((int(key) + step) % 2**32)) / 2**32 >= rate
