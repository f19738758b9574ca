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


LOW, SUM = number(-0.03125, 0.03125), number(0, 10**6)
SMALL = number(0.0009765625, 10)
WIDTHS = {
    name: st.integers(0, 99).map(lambda seed: np.random.default_rng(seed).normal(size=4)) for name in ("w1", "b1", "w2")
}
AT = {"i": POSITION, "j": POSITION}
SUMS = {"i": st.tuples(SUM, LOW), "j": st.tuples(SUM, st.just(0.0))}
WEIGHTED = SUMS | {"i": st.tuples(number(0, 20), SUMS["i"])}
BELOW = {name: st.tuples(number(-(10**6), 0), part) for name, part in (("i", LOW), ("j", st.just(0.0)))}
T5 = {"starts": biases.t5_starts(8, 40)}
# Parameters and coordinates, what is static, and corners as well.
CASES = {
    "uniform": (biases.Uniform, {}, AT, {}),
    "alibi": (biases.ALiBi, {"slope": number(0, 10)}, AT, {}),
    "kerple_log": (biases.KerpleLog, {"r1": SMALL, "r2": number(0, 10)}, AT, {}, ((1, 0), 0, 0)),
    "kerple_power": (
        *(biases.KerplePower, {"r1": SMALL, "r2": number(0, 2)}, AT, {}),
        *(((1, 0.25), 4, 4), ((10, 2), 0, 10**6)),
    ),
    "sandwich": (
        biases.Sandwich,
        {"compression": number(0.125, 8)},
        AT,
        {"width": 8, "base": 1e4},
        ((0.125,), 10**6, 0),
    ),
    "additive_decay": (
        *(biases.AdditiveDecay, {name: number(0, 10) for name in ("linear", "logarithmic", "root")}, AT, {}),
        ((1, 1, 1), 4, 4),
    ),
    "gaussian": (biases.Gaussian, {"log_width": number(-5, 20)}, AT, {}, ((-5,), 0, 10**6)),
    "student_t": (
        *(biases.StudentT, {"log_width": number(-5, 20), "log_freedom": number(-5, 10)}, AT, {}),
        ((-5, -5), 0, 10**6),
    ),
    "fire": (
        *(biases.FIRE, {**WIDTHS, "b2": st.just(0.5), "c": SMALL, "length": number(0.125, 10_000)}, AT, {}),
        ((np.ones(4), np.zeros(4), np.ones(4), 0.5, 0.125, 0.125), 0, 0),
    ),
    "t5": (biases.T5, {"table": st.just(np.arange(8.0))}, AT, T5),
    "t5_bidirectional": (biases.T5, {"table": st.just(np.arange(16.0))}, AT, T5 | {"bidirectional": True}),
    "t5_distance": (biases.T5Distance, {"table": st.just(np.arange(16.0))}, AT, {}),
    "cable": (biases.CABLE, {}, WEIGHTED, {}, ((), (1, (5, 0)), (5, 0.0))),
    "k_cable": (biases.KCABLE, {}, WEIGHTED, {}, ((), (1, (5, 0)), (5, 0.0))),
    "difference": (biases.Difference, {}, BELOW, {}),
    "distance": (biases.Difference, {}, BELOW, {"symmetric": True}),
    "contextual": (
        *(biases.ContextualGaussian, {"shape": number(-8, 8), "log_scale": number(-4, 4)}, SUMS, {}),
        ((-2, 0), (5, 0), (5, 0.0)),
    ),
}


@pytest.mark.parametrize("name", CASES)
@given(st.data())
def test_every_bias_and_its_gradient_are_finite(name, data):
    formula, parameters, coordinates, static, *corners = CASES[name]
    for numbers, i, j in corners:
        check(formula, dict(zip(parameters, numbers, strict=True)), i, j, **static)
    drawn = data.draw(st.fixed_dictionaries(parameters | coordinates))
    check(formula, {name: drawn[name] for name in parameters}, drawn["i"], drawn["j"], **static)
