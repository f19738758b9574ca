"""No parameter and no distance makes a bias or its gradient infinite or NaN in float32, and its bounds hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases

DRAWS = 2000


def draw(rng, low, high, *shape):
    """Numbers of a range; many are its ends, or 0."""
    shape = (DRAWS, *shape)
    ends = rng.choice([low, high, np.clip(0, low, high)], shape)
    return np.where(rng.random(shape) < 0.4, ends, rng.uniform(low, high, shape)).astype(np.float32)


def positions(rng):
    """Of a query and a key; a third are the same, a third are near."""
    i = np.where(rng.random(DRAWS) < 0.2, 0, rng.integers(0, 10**6, DRAWS))
    offset = rng.choice([np.zeros(DRAWS), rng.integers(-9, 9, DRAWS), rng.integers(-(10**6), 10**6, DRAWS)])
    return np.float32(i), np.float32(np.maximum(i + offset, 0))


def sums(rng, low=0, high=10**6):
    i = draw(rng, low, high)
    j = np.where(rng.random(DRAWS) < 0.3, i, draw(rng, low, high))
    return (i, draw(rng, -0.03125, 0.03125)), (j, np.zeros(DRAWS, np.float32))


def weighted(rng):
    i, j = sums(rng)
    return (draw(rng, -9, 20), i), j


def gated(rng):
    i, j = sums(rng)
    return (draw(rng, -9, 20), i), (draw(rng, -9, 20), j)


def mixed(rng):
    i, j = positions(rng)
    return (i, tuple(draw(rng, -9, 9) for _ in range(3))), j


def mixture(**profiles):
    return biases.Mixture(biases.GeneralisedGaussian(**profiles))


below = lambda rng: sums(rng, -(10**6), 0)
SMALL = 2**-10, 10
T5 = {"starts": biases.t5_starts(8, 40)}
# Ranges of parameters, how coordinates are drawn, and other fields.
CASES = {
    "uniform": (biases.Uniform, {}, positions, {}),
    "alibi": (biases.ALiBi, {"slope": (-1, 10)}, positions, {}),
    "ggd": (biases.GeneralisedGaussian, {"shape": (-20, 20), "log_scale": (-10, 10), "loc": (-5, 5)}, positions, {}),
    "kerple_log": (biases.KerpleLog, {"r1": SMALL, "r2": (0, 10)}, positions, {}),
    "kerple_power": (biases.KerplePower, {"r1": SMALL, "r2": (0, 2)}, positions, {}),
    "sandwich": (biases.Sandwich, {"compression": (0.125, 8)}, positions, {"width": 8, "base": 1e4}),
    "additive_decay": (
        *(biases.AdditiveDecay, dict.fromkeys(("linear", "logarithmic", "root"), (0, 10)), positions, {}),
    ),
    "gaussian": (biases.Gaussian, {"log_width": (-5, 20)}, positions, {}),
    "student_t": (biases.StudentT, {"log_width": (-5, 20), "log_freedom": (-5, 10)}, positions, {}),
    "fire": (
        biases.FIRE,
        {**dict.fromkeys(("w1", "b1", "w2"), (-2, 2, 4)), "b2": (-1, 1), "c": SMALL, "length": (0.125, 10_000)},
        *(positions, {}),
    ),
    "t5": (biases.T5, {"table": (-1, 1, 8)}, positions, T5),
    "t5_bidirectional": (biases.T5, {"table": (-1, 1, 16)}, positions, T5 | {"bidirectional": True}),
    "t5_distance": (biases.T5Distance, {"table": (-1, 1, 16)}, positions, {}),
    "band": (biases.Band, {"table": (-1, 1, 16)}, positions, {}),
    "cable": (biases.CABLE, {}, weighted, {}),
    "k_cable": (biases.KCABLE, {}, weighted, {}),
    "gated": (biases.GatedDistance, {}, gated, {}),
    "difference": (biases.Difference, {}, below, {}),
    "distance": (biases.Difference, {}, below, {"symmetric": True}),
    "contextual": (biases.ContextualGaussian, {"shape": (-8, 8), "log_scale": (-4, 4)}, sums, {}),
    "mixture": (mixture, {"shape": (-20, 20, 3), "log_scale": (-10, 10, 3), "loc": (-5, 5, 3)}, mixed, {}),
}


def drawn(name, rng):
    formula, ranges, coordinates, fields = CASES[name]
    parameters = {parameter: draw(rng, *numbers) for parameter, numbers in ranges.items()}
    return lambda parameters: formula(**parameters, **fields), parameters, *coordinates(rng)


@pytest.mark.parametrize("name", CASES)
def test_every_bias_and_its_gradient_are_finite(name, rng):
    make, *numbers = drawn(name, rng)
    of = jax.jit(jax.vmap(jax.value_and_grad(lambda parameters, i, j: make(parameters)(i, j), (0, 1, 2))))
    for x in jax.tree.leaves(of(*numbers)):
        assert x.dtype == jnp.float32 and jnp.isfinite(x).all()


def test_the_generalised_gaussian_is_the_formula_up_to_its_cap(rng):
    make, parameters, i, j = drawn("ggd", rng)
    made = np.float64(jax.vmap(lambda parameters, i, j: make(parameters)(i, j))(parameters, i, j))
    shape, log_scale, loc = (np.float64(x) for x in parameters.values())
    mu = np.float32(np.exp(loc)) - np.float32(np.exp(-loc))
    distance = np.abs(np.float64(np.float32(j - i) - mu)) + 1e-5
    exponent = log_scale + shape * np.log(distance)
    below = exponent < biases.CAP - 1e-3
    assert 0.2 < below.mean() < 0.95
    # Where j - i nearly equals mu, the distance itself is known only to the rounding of mu.
    unsure = 1e-4 + np.abs(shape) * 1e-6 * (np.abs(mu) / distance + 20)
    error = np.abs(made + np.exp(np.minimum(exponent, biases.CAP)))
    assert (error <= 1e-30 + unsure * np.exp(exponent))[below].all()
    assert ((-np.exp(biases.CAP) * (1 + 1e-5) <= made) & (made <= -np.exp(biases.CAP - 2e-3)))[~below].all()


WITHOUT_BOUNDS = "sandwich", "fire", "t5", "t5_bidirectional", "t5_distance", "band", "mixture"


@pytest.mark.parametrize("name", CASES)
def test_bounds_hold_between_all_of_two_blocks(name, rng):
    make, parameters, *centres = drawn(name, rng)
    width = rng.integers(1, 60, DRAWS)[:, None]
    i, j = jax.tree.map(lambda x: np.float32(x[:, None] + rng.integers(0, width, (DRAWS, 8))), centres)
    ends = lambda tree: tuple(jax.tree.map(pick, tree) for pick in (jnp.min, jnp.max))

    def check(parameters, i, j):
        bias = make(parameters)
        pairs = bias(jax.tree.map(lambda x: x[:, None], i), j)
        return bias.bounds(ends(i), ends(j)), (pairs.min(), pairs.max())

    bounds, (least, most) = jax.jit(jax.vmap(check))(parameters, i, j)
    assert (bounds is None) == (name in WITHOUT_BOUNDS)
    if bounds is not None:
        slack = 1e-3 * (1 + np.maximum(np.abs(least), np.abs(most)))
        assert (bounds[0] - slack <= least).all() and (most <= bounds[1] + slack).all()
