"""Profiles that the query mixes: Inkling's and BAM's by their equations in NumPy, and gradients on every backend."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import biases
from bam_jax.attention import Scoring, Tiling, Tokens, attention
from bam_jax.encodings import Dims, spec
from tests.attention.common import H, close, normals, slopes

B, T, E, C = 2, 11, 6, 3
DIMS = Dims(heads=H, width=E, context=8)


def softmax(x):
    weights = np.exp(x)
    return weights / weights.sum(-1, keepdims=True)


def inkling(encoding, x):
    """r = x W, and profiles that end at the extent."""
    profiles = np.asarray(encoding.profiles[...])
    extent = profiles.shape[1]
    f = lambda c, d: profiles[c, abs(d)] if abs(d) < extent else 0.0
    return (x @ np.asarray(encoding.weights.kernel[...])).reshape(B, T, H, C), f


def bam_mixture(encoding, x):
    """r = softmax(x W + w), and generalised Gaussians."""
    linear, prior = encoding.weights, encoding.profiles
    shape, log_scale, loc = (np.asarray(p[...]) for p in (prior.shape, prior.log_scale, prior.loc))
    mu = np.exp(loc) - np.exp(-loc)
    f = lambda c, d: -np.exp(log_scale[c]) * (abs(d - mu[c]) + 1e-5) ** shape[c]
    return softmax((x @ np.asarray(linear.kernel[...]) + np.asarray(linear.bias[...])).reshape(B, T, H, C)), f


EQUATIONS = {"inkling": ({"profiles": C, "extent": 4}, inkling), "bam_mixture": ({"profiles": C}, bam_mixture)}


@pytest.fixture
def moved(rng):
    """An encoding of a name in float64, every parameter away from its start."""

    def make(name):
        graph, state = nnx.split(spec(name, EQUATIONS[name][0]).build(DIMS, nnx.Rngs(0)))
        return nnx.merge(graph, jax.tree.map(lambda x: jnp.asarray(x + rng.normal(0, 0.3, x.shape)), state))

    return make


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_bias_is_its_equation(name, moved, rng, x64):
    encoding, x, at = moved(name), rng.normal(size=(B, T, E)), jnp.arange(float(T))[None, None]
    r, f = EQUATIONS[name][1](encoding, x)
    i, j = encoding.coordinate(jnp.asarray(x), jnp.ones((1, T), bool), None)
    made = np.asarray(biases.table(encoding.bias(), (at, i), at))
    assert j is None and made.shape == (B, H, T, T)
    for b, h, t, s in np.ndindex(made.shape):
        np.testing.assert_allclose(
            made[b, h, t, s], sum(r[b, t, h, c] * f(c, s - t) for c in range(C)), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("backend", ["chunked", "rows"])
@pytest.mark.parametrize("name", EQUATIONS)
def test_weights_and_profiles_have_their_gradients(name, backend, moved, rng, x64):
    """Tiles on the diagonal and off it, in a row without gaps, and in one that leaps within a tile."""
    graph, state = nnx.split(moved(name))
    x, *qkv = (jnp.asarray(rng.normal(size=shape)) for shape in ((B, T, E), *[(B, T, H, 4)] * 3))

    def attend(backend, position, state, x):
        encoding, at = nnx.merge(graph, state), Tokens(position)
        i, _ = encoding.coordinate(x, position >= 0, None)
        scoring = Scoring(encoding.bias(), dataclasses.replace(at, coordinate=i), at)
        return attention(*qkv, scoring, backend=backend, tiling=Tiling(block_q=4, block_k=4))

    of = {n: jax.jit(lambda at, *y, n=n: slopes(functools.partial(attend, n, at), *y)) for n in (backend, "reference")}
    for position in (np.arange(T), np.arange(T) + 4 * (np.arange(T) > 5)):
        made, expected = (of[n](jnp.asarray(position)[None], state, x) for n in (backend, "reference"))
        assert all(jnp.abs(x).max() > 1e-3 for x in expected)
        close(made, expected, 1e-10)


def test_the_start_is_near_no_bias_or_near_the_mean_of_alibis(rng):
    x, filled = normals(rng, (1, T, 64))[0], jnp.ones((1, T), bool)
    at, apart = jnp.arange(float(T))[None, None], np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
    for name, slope in (("inkling", 0), ("bam_mixture", biases.alibi_slopes(8).mean())):
        made = spec(name).build(Dims(H, 64, 8), nnx.Rngs(0))
        i, _ = made.coordinate(x, filled, None)
        table = biases.table(made.bias(), (at, i), at)
        np.testing.assert_allclose(table, np.broadcast_to(-slope * apart, table.shape), atol=0.25 * slope * T + 0.05)
        assert np.ptp(np.asarray(table), axis=1).max() > 1e-3  # heads differ


def test_options_say_how_many_profiles_and_how_far():
    inkling, table = spec("inkling").build(DIMS, nnx.Rngs(0)), lambda made: made.bias().profiles.table
    assert table(inkling).shape == (16, 1024)
    assert table(spec("inkling", {"profiles": 2, "extent": 5}).build(DIMS, nnx.Rngs(0))).shape == (2, 5)
    uniform = spec("bam_mixture", {"profiles": 5, "init": "uniform"}).build(DIMS, nnx.Rngs(0))
    assert uniform.bias().profiles.shape.shape == (5,) and not uniform.bias().profiles.shape.any()


@pytest.mark.parametrize(
    ("profiles", "weights", "says"),
    [
        (biases.ALiBi(jnp.ones(3)), None, "a tuple of 3 arrays as its coordinate"),
        (biases.ALiBi(jnp.ones(3)), 2, "to mix 3 profiles a query has a tuple of 3 arrays"),
        (biases.CABLE(), 3, "the profiles of a Mixture are a Relative bias, not CABLE"),
    ],
)
def test_weights_that_do_not_fit_the_profiles_are_refused(profiles, weights, says):
    x, at = jnp.ones((1, T, H, 4)), Tokens(jnp.arange(T)[None])
    own = None if weights is None else (jnp.ones((1, H, T)),) * weights
    scoring = Scoring(biases.Mixture(profiles), dataclasses.replace(at, coordinate=own), at)
    with pytest.raises(ValueError, match=says):
        attention(x, x, x, scoring)


def test_a_gpu_refuses_more_profiles_than_its_memory_holds():
    x, at = jnp.ones((1, T, H, 4), jnp.bfloat16), Tokens(jnp.arange(T)[None])
    own = dataclasses.replace(at, coordinate=(jnp.ones((1, H, T)),) * 33)
    with pytest.raises(ValueError, match="'pallas_gpu' cannot do this: 33 profiles, above 32"):
        attention(x, x, x, Scoring(biases.Mixture(biases.ALiBi(jnp.ones(33))), own, at), backend="pallas_gpu")
