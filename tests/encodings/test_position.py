"""Encodings that turn vectors or add to them: RoPE, sinusoidal, learned."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax.encodings import Dims, RoPE, SSMax, spec

DIMS = Dims(heads=2, width=12, context=16)
T, D = 9, 6


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.normal(size=(1, T, 2, D)), jnp.float32)


def rope(**options):
    return RoPE(DIMS, rngs=nnx.Rngs(0), **options)


def test_rope_turns_pairs_in_the_complex_plane(x):
    position = jnp.arange(T)[None] * 3
    turned = rope(base=100.0).rotate(x, position)
    pairs = np.asarray(x[..., :3]) + 1j * np.asarray(x[..., 3:])
    rate = 100.0 ** (-np.arange(3) / 3)
    expected = pairs * np.exp(1j * np.asarray(position)[0, :, None, None] * rate)
    np.testing.assert_allclose(turned[..., :3], expected.real, atol=1e-5)
    np.testing.assert_allclose(turned[..., 3:], expected.imag, atol=1e-5)


def test_rope_compares_positions_by_their_difference(x):
    q, k = x[:, :1], x[:, 1:2]
    score = lambda i, j: (rope().rotate(q, jnp.array([[i]])) * rope().rotate(k, jnp.array([[j]]))).sum()
    np.testing.assert_allclose(score(5, 2), score(1005, 1002), rtol=1e-4)
    np.testing.assert_allclose(score(0, 0), (q * k).sum(), rtol=1e-6)
    assert abs(score(5, 2) - score(5, 3)) > 1e-2


def test_base_scale_multiplies_the_base(x):
    position = jnp.arange(T)[None]
    scaled = rope(base=200.0, base_scale=50.0).rotate(x, position)
    np.testing.assert_array_equal(scaled, rope(base=10_000.0).rotate(x, position))
    assert (scaled != rope(base=200.0).rotate(x, position))[:, 1:].any()


def test_rope_keeps_the_type_and_its_window(x):
    assert rope().rotate(x.astype(jnp.bfloat16), jnp.arange(T)[None]).dtype == jnp.bfloat16
    assert rope().window is None
    assert rope(window=5).window == 5


@pytest.mark.parametrize("width", [8, 7])
def test_sinusoidal(width):
    table = spec("sinusoidal", {"base": 50.0}).build_embedding(Dims(1, width, 16), nnx.Rngs(0))
    position = np.array([[0, 1, 5, 1000]])
    made = table(jnp.ones((1, 4, width)), jnp.asarray(position))
    for t, n in np.ndindex(4, width):
        angle = position[0, t] / 50.0 ** (2 * (n // 2) / width)
        np.testing.assert_allclose(made[0, t, n] - 1, (np.sin, np.cos)[n % 2](angle), atol=2e-4)


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
    factor = ssmax(jnp.array([[1, 2, 10]]))
    np.testing.assert_allclose(factor, [[np.log([1, 2, 10]), 0.5 * np.log([1, 2, 10])]], rtol=1e-6)
