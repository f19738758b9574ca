"""No parameter and no distance makes a bias or its gradient infinite or NaN, in float32."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bam_jax import biases

POSITION = st.integers(0, 10**6)


def number(low, high):
    return st.floats(low, high, width=32)


@functools.cache
def value_and_gradients(formula, static):
    """One compiled function for each class: value and gradients of all parameters and coordinates."""

    def value(parameters, i, j):
        return formula(**parameters, **dict(static))(i, j)

    return jax.jit(jax.value_and_grad(value, (0, 1, 2)))


def check(formula, parameters, i, j, **static):
    value, gradients = value_and_gradients(formula, tuple(static.items()))(
        {name: np.asarray(x, np.float32) for name, x in parameters.items()},
        jax.tree.map(np.float32, i),
        jax.tree.map(np.float32, j),
    )
    assert value.dtype == jnp.float32
    assert jnp.isfinite(value), value
    for gradient in jax.tree.leaves(gradients):
        assert jnp.isfinite(gradient).all(), gradients
    return float(value)


@settings(max_examples=400)
@given(number(-20, 20), number(-10, 10), number(-5, 5), POSITION, POSITION)
@example(-20, 10, 0, 0, 0)
@example(20, 10, 0, 0, 10**6)
@example(-20, 0, 0, 10**6, 10**6)
@example(-0.8125, 0, 0, 5, 5)
@example(0, 9, 0, 0, 3)
def test_generalised_gaussian_is_the_formula_up_to_its_cap(shape, log_scale, loc, i, j):
    made = check(biases.GeneralisedGaussian, {"shape": shape, "log_scale": log_scale, "loc": loc}, i, j)
    mu = np.float32(math.exp(loc)) - np.float32(math.exp(-loc))
    distance = abs(float(np.float32(j - i) - mu)) + 1e-5
    exponent = log_scale + shape * math.log(distance)
    if exponent < biases.CAP - 1e-3:
        # Where j - i nearly equals mu, the distance itself is known only to the rounding of mu.
        unsure = 1e-6 * (abs(mu) / distance + 20)
        expected = -math.exp(log_scale) * distance**shape
        np.testing.assert_allclose(made, expected, rtol=1e-4 + abs(shape) * unsure, atol=1e-30)
    else:
        assert -math.exp(biases.CAP) * (1 + 1e-5) <= made <= -math.exp(biases.CAP - 2e-3)


def test_no_corner_of_the_prior_is_infinite():
    """The whole grid at once, denser where eps rules."""
    shape = np.linspace(-20, 20, 81, dtype=np.float32)[:, None, None]
    log_scale = np.linspace(-10, 10, 21, dtype=np.float32)[:, None]
    distance = np.array([0, 1, 2, 3, 7, 100, 4096, 1e5, 1e6], np.float32)
    of = lambda *x: biases.GeneralisedGaussian(*x[:3])(0.0, x[3]).sum()
    arrays = np.broadcast_arrays(shape, log_scale, np.float32(0), distance)
    value, gradients = jax.value_and_grad(of, (0, 1, 2, 3))(*arrays)
    for x in (value, *gradients):
        assert jnp.isfinite(x).all()


@given(number(0, 10), POSITION, POSITION)
def test_alibi(slope, i, j):
    check(biases.ALiBi, {"slope": slope}, i, j)


@given(number(0.0009765625, 10), number(0, 10), POSITION, POSITION)
@example(1, 0, 0, 0)
def test_kerple_log(r1, r2, i, j):
    check(biases.KerpleLog, {"r1": r1, "r2": r2}, i, j)


@given(number(0.0009765625, 10), number(0, 2), POSITION, POSITION)
@example(1, 0.25, 4, 4)
@example(10, 2, 0, 10**6)
def test_kerple_power(r1, r2, i, j):
    check(biases.KerplePower, {"r1": r1, "r2": r2}, i, j)


@given(number(0.125, 8), POSITION, POSITION)
@example(0.125, 10**6, 0)
def test_sandwich(compression, i, j):
    check(biases.Sandwich, {"compression": compression}, i, j, width=8, base=10_000.0)


@given(number(0, 10), number(0, 10), number(0, 10), POSITION, POSITION)
@example(1, 1, 1, 4, 4)
def test_additive_decay(linear, logarithmic, root, i, j):
    check(biases.AdditiveDecay, {"linear": linear, "logarithmic": logarithmic, "root": root}, i, j)


@given(number(-5, 20), number(-5, 10), POSITION, POSITION)
@example(-5, -5, 0, 10**6)
def test_gaussian_and_student_t(log_width, log_freedom, i, j):
    check(biases.Gaussian, {"log_width": log_width}, i, j)
    check(biases.StudentT, {"log_width": log_width, "log_freedom": log_freedom}, i, j)


@given(number(0.0009765625, 10), number(0.125, 10_000), st.integers(0, 99), POSITION, POSITION)
@example(0.125, 0.125, 0, 0, 0)
def test_fire(c, length, seed, i, j):
    w1, b1, w2 = np.random.default_rng(seed).normal(size=(3, 4))
    check(biases.FIRE, {"w1": w1, "b1": b1, "w2": w2, "b2": 0.5, "c": c, "length": length}, i, j)


@given(st.booleans(), POSITION, POSITION)
def test_t5(bidirectional, i, j):
    check(
        biases.T5,
        {"table": np.arange(16.0 if bidirectional else 8.0)},
        i,
        j,
        starts=biases.t5_starts(8, 40),
        bidirectional=bidirectional,
    )


@given(POSITION, POSITION)
def test_t5_distance(i, j):
    check(biases.T5Distance, {"table": np.arange(16.0)}, i, j)


@pytest.mark.parametrize("formula", [biases.CABLE, biases.KCABLE])
@given(number(0, 20), number(0, 10**6), number(0, 10**6), number(-0.03125, 0.03125))
@example(1, 5, 5, 0)
def test_cable(formula, weight, i, j, low):
    check(formula, {}, (weight, (i, low)), (j, 0.0))


@pytest.mark.parametrize("symmetric", [False, True])
@given(number(-(10**6), 0), number(-(10**6), 0), number(-0.03125, 0.03125))
def test_difference(symmetric, i, j, low):
    check(biases.Difference, {}, (i, low), (j, 0.0), symmetric=symmetric)


@given(number(-8, 8), number(-4, 4), number(0, 10**6), number(0, 10**6), number(-0.03125, 0.03125))
@example(-2, 0, 5, 5, 0)
def test_contextual_gaussian(shape, log_scale, i, j, low):
    check(biases.ContextualGaussian, {"shape": shape, "log_scale": log_scale}, (i, low), (j, 0.0))


def test_uniform():
    check(biases.Uniform, {}, 3, 5)
