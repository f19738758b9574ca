"""The bounds of a bias hold wherever the coordinates lie in their ranges."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax import biases

number = lambda low, high: st.floats(low, high, width=32)
POSITION = {
    "uniform": st.builds(biases.Uniform),
    "alibi": st.builds(biases.ALiBi, number(-1, 4)),
    "ggd": st.builds(biases.GeneralisedGaussian, number(-20, 20), number(-5, 5), number(-2, 2)),
    "kerple_log": st.builds(biases.KerpleLog, number(0.125, 4), number(0.125, 4)),
    "kerple_power": st.builds(biases.KerplePower, number(0.125, 4), number(0, 2)),
    "additive_decay": st.builds(biases.AdditiveDecay, number(0, 4), number(0, 4), number(0, 4)),
    "gaussian": st.builds(biases.Gaussian, number(-2, 8)),
    "student_t": st.builds(biases.StudentT, number(-2, 8), number(-3, 5)),
}
SUMS = {
    "difference": biases.Difference(),
    "distance": biases.Difference(True),
    "cable": biases.CABLE(),
    "k_cable": biases.KCABLE(),
    "contextual": biases.ContextualGaussian(jnp.float32(0.7), jnp.float32(0.3)),
    "contextual_far": biases.ContextualGaussian(jnp.float32(-1.0), jnp.float32(0.3)),
}
SEED = st.integers(0, 10**6)


def ends(tree):
    return tuple(
        tuple(ends(x)[n] for x in tree) if isinstance(tree, tuple) else pick(tree)
        for n, pick in enumerate((jnp.min, jnp.max))
    )


def check(bias, i, j):
    low, high = bias.bounds(ends(i), ends(j))
    value = bias(i, j)
    slack = 1e-4 * (1 + np.abs(value).max())
    assert low - slack <= value.min() and value.max() <= high + slack, (low, value.min(), value.max(), high)


@pytest.mark.parametrize("name", POSITION)
@given(st.data(), SEED)
def test_positions(name, data, seed):
    rng = np.random.default_rng(seed)
    i, j = (
        jnp.asarray(rng.integers(low := rng.integers(200), low + 1 + rng.integers(60), 20), jnp.float32)
        for _ in range(2)
    )
    bias = data.draw(POSITION[name])
    check(type(bias)(**{k: jnp.float32(v) if k != "eps" else v for k, v in vars(bias).items()}), i[:, None], j[None])


@pytest.mark.parametrize("name", SUMS)
@given(SEED)
def test_running_sums(name, seed):
    rng = np.random.default_rng(seed)
    sums = lambda *shape: tuple(jnp.asarray(rng.normal(size=shape) * s, jnp.float32) for s in (10.0, 1e-3))
    i, j = sums(20, 1), sums(1, 20)
    weight = jnp.asarray(rng.exponential(size=(20, 1)) - rng.choice([0, 1, 9]), jnp.float32)  # of either sign
    check(SUMS[name], (weight, i) if isinstance(SUMS[name], biases.CABLE | biases.KCABLE) else i, j)


def test_biases_without_bounds_say_so():
    assert biases.T5(jnp.zeros(4), starts=biases.t5_starts(4, 9)).bounds((0, 1), (0, 1)) is None
    assert biases.Sandwich(jnp.ones(())).bounds((0, 1), (0, 1)) is None
