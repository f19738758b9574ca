"""Derivatives beyond the gradient, on every backend, against those that JAX takes of the reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import Mask, Scoring, Tokens, attention
from bam_jax.attention.cpu import blocks
from bam_jax.attention.pallas import gpu, tpu_grid

B, T, H, K, D = 1, 7, 2, 1, 4


def operands(rng):
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return draw(B, T, H, D), draw(B, T, K, D), draw(B, T, K, D), draw(3, H), draw(B, H, T), draw(1, 1, T)


def loss(backend, q, k, v, prior, heat, shift):
    """A number that depends on both results, and on all that a scoring learns."""
    at = jnp.arange(T)[None]
    own = at[:, None] + shift
    queries, keys = Tokens(at, coordinate=own + 0.3), Tokens(at, coordinate=own)
    scoring = Scoring(biases.GeneralisedGaussian(*prior), queries, keys, jnp.exp(heat), Mask(window=5))
    out, lse = attention(q, k, v, scoring, backend=backend, return_lse=True)
    return jnp.sin(out).sum() + jnp.square(lse).sum()


def forward_over_reverse(of, x, direction):
    return jax.jvp(jax.grad(of, tuple(range(len(x)))), x, direction)[1]


def reverse_over_reverse(of, x, direction):
    along = lambda *x: sum(
        (g * d).sum() for g, d in zip(jax.grad(of, tuple(range(len(x))))(*x), direction, strict=True)
    )
    return jax.grad(along, tuple(range(len(x))))(*x)


def of_mapped_rows(of, x, direction):
    """The same in a map and in a checkpoint."""
    mapped = lambda *x: jax.vmap(jax.checkpoint(of))(*(y[None] for y in x)).sum()
    return forward_over_reverse(mapped, x, direction)


@pytest.mark.parametrize(
    ("backend", "product"),
    [
        ("chunked", forward_over_reverse),
        *(
            pytest.param(backend, product, marks=pytest.mark.full)
            for backend in ("chunked", "rows", "pallas_tpu")
            for product in (forward_over_reverse, reverse_over_reverse, of_mapped_rows)
            if (backend, product) != ("chunked", forward_over_reverse)
        ),
        pytest.param("pallas_gpu", reverse_over_reverse, marks=pytest.mark.hopper),
    ],
)
def test_a_hessian_times_a_vector_is_that_of_the_reference(backend, product, rng, monkeypatch):
    monkeypatch.setattr(gpu, "_DTYPES", (*gpu._DTYPES, "float32"))
    for module in (blocks, tpu_grid):
        monkeypatch.setattr(module, "_block_sizes", lambda q, k: (4, 4))
    x = operands(rng)
    direction = tuple(jnp.asarray(rng.normal(size=y.shape), y.dtype) for y in x)
    expected = jax.jit(functools.partial(forward_over_reverse, functools.partial(loss, "reference")))(x, direction)
    made = jax.jit(functools.partial(product, functools.partial(loss, backend)))(x, direction)
    for a, b in zip(made, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * max(1, float(jnp.abs(b).max())))


@pytest.mark.full
def test_the_reference_has_forward_mode_and_every_derivative(rng, x64):
    x = tuple(y.astype(float) for y in operands(rng))
    direction = tuple(jnp.asarray(rng.normal(size=y.shape)) for y in x)
    of = jax.jit(functools.partial(loss, "reference"))
    moved = lambda step: of(*(y + step * d for y, d in zip(x, direction, strict=True)))
    slopes = jax.jvp(of, x, direction)[1]
    np.testing.assert_allclose(slopes, (moved(1e-4) - moved(-1e-4)) / 2e-4, rtol=1e-5)
    curvature = sum((h * d).sum() for h, d in zip(forward_over_reverse(of, x, direction), direction, strict=True))
    np.testing.assert_allclose(curvature, (moved(1e-3) - 2 * moved(0) + moved(-1e-3)) / 1e-6, rtol=1e-3)
