"""Encodings that turn vectors or add to them: RoPE, sinusoidal, learned."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import biases
from bam_jax.attention import Tokens
from bam_jax.encodings import Dims, EffectiveSSMax, RoPE, SSMax, spec
from bam_jax.system.errors import UserError

DIMS = Dims(heads=2, width=12, context=16)
T, D = 9, 6


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.normal(size=(1, T, 2, D)), jnp.float32)


def rope(**options):
    return RoPE(DIMS, rngs=nnx.Rngs(0), **options)


def test_rope_needs_pairs():
    with pytest.raises(UserError, match="2 heads of a width of 14 have 7 each; choose heads of an even width"):
        spec("rope_ntk").build(Dims(heads=2, width=14, context=16), nnx.Rngs(0))


def turned(encoding, x, position):
    """Vectors as queries, which are turned as keys are."""
    q, k, _ = encoding.turn(x, x, None, Tokens(position), None)
    np.testing.assert_array_equal(q, k)
    return q


def scaled(name, half, **options):
    """Radians per token of each pair: angles turned by from 0 to 1, and the magnitude."""
    encoding = spec(name, options).build(DIMS, nnx.Rngs(0))
    one = jnp.concatenate([jnp.ones((1, 1, 1, half)), jnp.zeros((1, 1, 1, half))], -1)
    made = np.asarray(turned(encoding, one, jnp.array([[1]])), np.float64)[0, 0, 0]
    return np.arctan2(made[half:], made[:half]), np.hypot(made[half:], made[:half])


def test_interpolated_rates():
    """NTK keeps the fastest rate and interpolates the slowest."""
    base = 100.0 * 8.0 ** (10 / 8)
    n = np.arange(5)
    for name, expected in (("rope_pi", 100.0 ** (-n / 5) / 8), ("rope_ntk", base ** (-2 * n / 10))):
        rates, magnitude = scaled(name, 5, factor=8.0, base=100.0)
        np.testing.assert_allclose(rates, expected, rtol=1e-5)
        np.testing.assert_allclose(magnitude, 1, rtol=1e-6)
        np.testing.assert_allclose(rates[4], 100.0 ** (-4 / 5) / 8, rtol=1e-5)


def test_yarn_by_a_loop():
    """L = 200 tokens: the pairs turn 32, 6.5, 1.3, .26 and .05 times."""
    options = {"factor": 8.0, "base": 3000.0, "slow": 1.0, "fast": 20.0, "context": 200}
    rates, magnitude = scaled("rope_yarn", 5, **options)
    expected = []
    for n in range(5):
        rate = 3000.0 ** (-2 * n / 10)
        wavelength = 2 * np.pi / rate
        turns = 200 / wavelength
        kept = 0.0 if turns < 1 else 1.0 if turns > 20 else (turns - 1) / 19
        expected.append((1 - kept) * rate / 8 + kept * rate)
    assert expected[0] == 1 and 1 / 8 < expected[1] / 3000 ** (-2 / 10) < 1 and expected[3] == 3000 ** (-6 / 10) / 8
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    np.testing.assert_allclose(magnitude, 0.1 * np.log(8) + 1, rtol=1e-6)
    llama, magnitude = scaled("rope_llama3", 5, **options)  # the same ramp, and no factor of queries and keys
    np.testing.assert_allclose(llama, rates, rtol=1e-6)
    np.testing.assert_allclose(magnitude, 1, rtol=1e-6)


def test_no_scaling_is_rope(x):
    position = jnp.arange(T)[None]
    whole = turned(rope(), x, position)
    for name in ("rope_pi", "rope_ntk", "rope_yarn", "rope_llama3"):
        np.testing.assert_allclose(turned(spec(name).build(DIMS, nnx.Rngs(0)), x, position), whole, atol=1e-6)
    np.testing.assert_array_equal(turned(rope(base=200.0, base_scale=50.0), x, position), whole)
    assert (whole != turned(rope(base=200.0), x, position))[:, 1:].any()
    assert turned(rope(), x.astype(jnp.bfloat16), position).dtype == jnp.bfloat16
    assert (rope().window, rope(window=5).window) == (None, 5)
    assert spec("rope_yarn").build(Dims(2, 12, 777), nnx.Rngs(0)).context == 777


def test_learned_table():
    table = spec("learned").build_embedding(DIMS, nnx.Rngs(0))
    assert table.limit == DIMS.context
    x = jnp.ones((2, 3, DIMS.width))
    made = table(x, jnp.array([[0, 4, 15]]))
    np.testing.assert_allclose(
        made - x, np.broadcast_to(table.embedding[...][np.array([0, 4, 15])], x.shape), atol=1e-6
    )
    assert spec("learned", {"length": 3}).build_embedding(DIMS, nnx.Rngs(0)).limit == 3
    assert spec("bam").build_embedding(DIMS, nnx.Rngs(0)) is None


def test_ssmax_is_the_logarithm_of_the_count():
    ssmax = SSMax(2, rngs=nnx.Rngs(0))
    ssmax.scale[...] = jnp.array([1.0, 0.5])
    factor = ssmax(jnp.array([[1, 2, 10]]), biases.ALiBi(jnp.array([0.1, 1.0])))
    np.testing.assert_allclose(factor, [[np.log([1, 2, 10]), 0.5 * np.log([1, 2, 10])]], rtol=1e-6)


def test_effective_ssmax_counts_what_the_prior_leaves_beyond_the_training_context():
    ssmax = EffectiveSSMax(2, 16, rngs=nnx.Rngs(0))
    ssmax.scale[...] = jnp.array([1.0, 0.5])
    count = jnp.array([[1, 16, 100_000]])
    everywhere = ssmax(count, biases.Uniform())
    np.testing.assert_allclose(everywhere[0, 0], np.log([17, 32, 100_016]) / np.log(16), rtol=1e-4)
    np.testing.assert_allclose(everywhere[0, 1], everywhere[0, 0] / 2)
    near = ssmax(count, biases.ALiBi(jnp.array([5.0, 5.0])))[0, 0]  # one key but for exp(-5)
    np.testing.assert_allclose(near, np.log(17) / np.log(16), rtol=1e-3)


FAR = np.array([0, 1, 2**20 + 1, 2**24 + 1, 2**26 + 3, 2**30 + 5, 2**31 - 2])


def test_rope_turns_pairs_in_the_complex_plane_by_exact_angles(rng):
    x = jnp.asarray(rng.normal(size=(1, len(FAR), 2, D)), jnp.float32)
    made = turned(rope(base=500_000.0), x, jnp.asarray(FAR, jnp.int32)[None])
    pairs = np.asarray(x[..., :3], complex) + 1j * np.asarray(x[..., 3:])
    expected = pairs * np.exp(1j * (FAR[:, None, None] * 500_000.0 ** (-np.arange(3) / 3)))
    np.testing.assert_allclose(made[..., :3], expected.real, atol=1e-4)
    np.testing.assert_allclose(made[..., 3:], expected.imag, atol=1e-4)


@pytest.mark.parametrize(("odd_cosines", "width", "base"), [(True, 5, 10_000.0), (False, 8, 50.0)])
def test_sinusoids_are_exact(odd_cosines, width, base):
    options = {"odd_cosines": odd_cosines, "base": base}
    table = spec("sinusoidal", options).build_embedding(Dims(1, width, 16), nnx.Rngs(0))
    made = np.asarray(table(jnp.ones((1, len(FAR), width)), jnp.asarray(FAR, jnp.int32)[None]))[0]
    for n in range(width):
        exponent = n if odd_cosines else n // 2 * 2
        wave = (np.cos if n % 2 else np.sin)(FAR * base ** (-exponent / width))
        np.testing.assert_allclose(made[:, n] - 1, wave, atol=1e-4)
