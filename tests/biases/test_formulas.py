"""Every bias against its paper's formula, written again as a loop over plain floats."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases

HEADS = 3
SLOPES = [0.5, 0.25, 2.0]


def loop(formula, i, j):
    """formula(head, i, j) at every head, query and key."""
    return np.array([[[formula(h, float(a), float(b)) for b in j] for a in i] for h in range(HEADS)])


def generalised_gaussian(shape, log_scale, loc):
    mu = [math.exp(x) - math.exp(-x) for x in loc]
    return lambda h, i, j: -math.exp(log_scale[h]) * (abs((j - i) - mu[h]) + 1e-5) ** shape[h]


def fire(w1, b1, w2, b2, c, length):
    psi = lambda x: math.log(c * x + 1)

    def formula(h, i, j):
        x = psi(abs(i - j)) / psi(max(length, i, j))
        return b2[h] + sum(w2[h][n] * max(w1[n] * x + b1[n], 0) for n in range(len(w1)))

    return formula


def sandwich(compression, width, base):
    """The inner product of two position vectors of Vaswani et al., number by number."""
    angle = lambda t, n: t / base ** (2 * (n // 2) / width)
    vector = lambda t: [(math.sin, math.cos)[n % 2](angle(t, n)) for n in range(width)]

    def formula(h, i, j):
        product = sum(a * b for a, b in zip(vector(i), vector(j), strict=True))
        return (product - width / 2) / compression[h]

    return formula


def t5(table, bidirectional, max_distance):
    """The bucket of Raffel et al.'s code: relative position = key - query; half the buckets exact, half logarithmic."""

    def formula(h, i, j):
        buckets, bucket, n = len(table[h]), 0, i - j
        if bidirectional:
            buckets //= 2
            bucket += buckets if n < 0 else 0
            n = abs(n)
        else:
            n = max(n, 0)
        exact = buckets // 2
        if n >= exact:
            n = exact + int(math.log(n / exact) / math.log(max_distance / exact) * (buckets - exact))
        return table[h][bucket + int(min(n, buckets - 1))]

    return formula


TABLE = [[math.sin(5 * h + n * n) for n in range(16)] for h in range(HEADS)]
SHAPE, LOG_SCALE, LOC = [1.5, 0.0, -0.7], [0.3, -1.0, 1.0], [0.0, 0.7, -1.1]
W1, B1 = [0.5, -1.0, 2.0, 1.0], [0.1, 0.9, -0.3, 0.0]
W2, B2 = [[1.0, -2.0, 0.5, 0.2], [0.3, 0.4, -0.5, 1.0], [-1.0, 0.0, 1.0, 2.0]], [0.1, 0.0, -0.4]

nu = lambda h: math.exp(LOG_SCALE[h])

POSITION = {
    "uniform": (biases.Uniform, {}, lambda h, i, j: 0.0),
    "alibi": (biases.ALiBi, {"slope": SLOPES}, lambda h, i, j: -SLOPES[h] * abs(i - j)),
    "ggd": (
        biases.GeneralisedGaussian,
        {"shape": SHAPE, "log_scale": LOG_SCALE, "loc": LOC},
        generalised_gaussian(SHAPE, LOG_SCALE, LOC),
    ),
    "kerple_log": (
        biases.KerpleLog,
        {"r1": [1.0, 0.2, 3.0], "r2": SLOPES},
        lambda h, i, j: -[1.0, 0.2, 3.0][h] * math.log(1 + SLOPES[h] * abs(i - j)),
    ),
    "kerple_power": (
        biases.KerplePower,
        {"r1": SLOPES, "r2": [1.7, 0.3, 1.0]},
        lambda h, i, j: -SLOPES[h] * abs(i - j) ** [1.7, 0.3, 1.0][h],
    ),
    "sandwich": (
        biases.Sandwich,
        {"compression": SLOPES, "width": 6, "base": 50.0},
        sandwich(SLOPES, 6, 50.0),
    ),
    "additive_decay": (
        biases.AdditiveDecay,
        {"linear": [0.1, 0.0, 2.0], "logarithmic": SLOPES, "root": [0.3, 1.0, 0.0]},
        lambda h, i, j: (
            -([0.1, 0.0, 2.0][h] * abs(i - j) + SLOPES[h] * math.log1p(abs(i - j)) + [0.3, 1, 0][h] * abs(i - j) ** 0.5)
        ),
    ),
    "gaussian": (
        biases.Gaussian,
        {"log_width": LOC},
        lambda h, i, j: -(((i - j) / math.exp(LOC[h])) ** 2) / 2,
    ),
    "student_t": (
        biases.StudentT,
        {"log_width": SHAPE, "log_freedom": LOG_SCALE},
        lambda h, i, j: -(nu(h) + 1) / 2 * math.log1p(((i - j) / math.exp(SHAPE[h])) ** 2 / nu(h)),
    ),
    "fire": (
        biases.FIRE,
        {"w1": W1, "b1": B1, "w2": W2, "b2": B2, "c": 0.7, "length": 9.0},
        fire(W1, B1, W2, B2, 0.7, 9.0),
    ),
    "t5": (
        biases.T5,
        {"table": TABLE, "starts": biases.t5_starts(16, 40)},
        t5(TABLE, False, 40),
    ),
    "t5_bidirectional": (
        biases.T5,
        {"table": TABLE, "starts": biases.t5_starts(8, 40), "bidirectional": True},
        t5(TABLE, True, 40),
    ),
    "t5_distance": (
        biases.T5Distance,
        {"table": TABLE},
        lambda h, i, j: TABLE[h][int(min(abs(i - j), 15))],
    ),
    "band": (
        biases.Band,
        {"table": TABLE},
        lambda h, i, j: TABLE[h][int(abs(i - j))] if abs(i - j) < 16 else 0.0,
    ),
}


def build(formula, parameters):
    keep = ("starts", "bidirectional", "width", "base")
    return formula(**{name: x if name in keep else jnp.asarray(x) for name, x in parameters.items()})


@pytest.mark.parametrize("name", POSITION)
def test_formula_of_positions(name):
    formula, parameters, expected = POSITION[name]
    i, j = np.arange(0.0, 90, 7), np.arange(0.0, 90)
    wanted = loop(expected, i, j)
    for dtype, rtol, atol in (("float64", 1e-12, 1e-14), ("float32", 1e-5, 1e-5)):
        with jax.enable_x64(dtype == "float64"):
            bias, at = build(formula, parameters), (jnp.asarray(x, dtype)[None, None] for x in (i, j))
            made = biases.table(bias, *at)
            assert made.dtype == dtype
            np.testing.assert_allclose(np.broadcast_to(made, (1, *wanted.shape))[0], wanted, rtol=rtol, atol=atol)
            square = biases.table(bias, *[jnp.asarray(i, dtype)[None, None]] * 2)
        if name not in ("ggd", "t5", "t5_bidirectional"):  # for encoders: no loc, and no buckets of either side
            np.testing.assert_allclose(square, square.swapaxes(-1, -2), rtol=rtol)


@pytest.mark.parametrize("name", ["difference", "distance", "cable", "k_cable", "gated", "contextual"])
def test_formula_of_running_sums(name, rng, x64):
    """Sums come as (high, low)."""
    (a, b), (a_low, b_low) = np.cumsum(rng.exponential(size=(2, HEADS, 8)), -1), rng.normal(0, 1e-3, (2, HEADS, 8))
    g, of_key = rng.exponential(size=(2, HEADS, 8))
    shape, scale = rng.uniform(-0.5, 1.5, HEADS), rng.uniform(-1, 1, HEADS)
    bias, formula = {
        "difference": (biases.Difference(), lambda h, g, d: d),
        "distance": (biases.Difference(symmetric=True), lambda h, g, d: -abs(d)),
        "cable": (biases.CABLE(), lambda h, g, d: -g * abs(d)),
        "k_cable": (biases.KCABLE(), lambda h, g, d: -math.log((g * d) ** 2 + 1)),
        "gated": (biases.GatedDistance(), lambda h, g, d: -g * abs(d)),
        "contextual": (
            biases.ContextualGaussian(jnp.asarray(shape), jnp.asarray(scale)),
            lambda h, g, d: -math.exp(scale[h]) * (abs(d) + 1e-5) ** shape[h],
        ),
    }[name]
    i, j = (a[None], a_low[None]), (b[None], b_low[None])
    i = (g[None], i) if "cable" in name or name == "gated" else i
    j = (of_key[None], j) if name == "gated" else j
    gate = lambda h, t, s: g[h, int(t)] + (of_key[h, int(s)] if name == "gated" else 0)
    difference = lambda h, t, s: (a + a_low)[h, int(t)] - (b + b_low)[h, int(s)]
    expected = loop(lambda h, t, s: formula(h, gate(h, t, s), difference(h, t, s)), np.arange(8), np.arange(8))
    np.testing.assert_allclose(biases.table(bias, i, j)[0], expected, rtol=1e-10, atol=1e-12)


def test_formula_of_a_mixture(rng, x64):
    """Weights of a query's own in each head, and profiles that all heads share."""
    weights = rng.normal(size=(HEADS, 4, 8))  # [H, C, T]
    parameters = [[*x, 0.4] for x in (SHAPE, LOG_SCALE, LOC)]  # C is not H
    profiles, profile = biases.GeneralisedGaussian(*map(jnp.asarray, parameters)), generalised_gaussian(*parameters)
    i, j = np.arange(3.0, 11), np.arange(12.0)
    expected = loop(lambda h, i, j: sum(weights[h, c, int(i) - 3] * profile(c, i, j) for c in range(4)), i, j)
    query = (i[None, None], tuple(weights.swapaxes(0, 1)[:, None]))
    made = biases.table(biases.Mixture(profiles), query, j[None, None])
    np.testing.assert_allclose(made[0], expected, rtol=1e-10, atol=1e-12)


def test_every_bias_is_tested_here():
    tested = {formula for formula, *_ in POSITION.values()}
    tested |= {biases.Difference, biases.CABLE, biases.KCABLE, biases.GatedDistance, biases.ContextualGaussian}
    tested |= {biases.Mixture}
    public = {x for x in vars(biases).values() if isinstance(x, type) and issubclass(x, biases.Bias)}
    assert tested == public - {biases.Bias, biases.Monotone, biases.Relative}


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (64, 40), (2, 5)])
def test_t5_starts(buckets, max_distance):
    bucket = t5([list(range(buckets))], False, max_distance)
    starts = biases.t5_starts(buckets, max_distance)
    for distance in range(2 * max_distance):
        last = max(n for n, start in enumerate(starts) if start <= distance)
        assert last == bucket(0, distance, 0), distance


def test_t5_refuses_buckets_without_a_logarithm():
    with pytest.raises(ValueError, match="max_distance > buckets / 2, got 32 and 16"):
        biases.t5_starts(32, 16)


def test_slopes_of_alibi():
    for heads in (1, 8, 64):
        np.testing.assert_allclose(biases.alibi_slopes(heads), [2 ** (-8 * h / heads) for h in range(1, heads + 1)])
    eighth = [2.0**-n for n in range(1, 9)]
    np.testing.assert_allclose(biases.alibi_slopes(12), [*eighth, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    with pytest.raises(ValueError, match="heads=0"):
        biases.alibi_slopes(0)


def test_table_has_only_the_axes_that_something_depends_on():
    i, j = jnp.zeros((1, 1, 4)), jnp.zeros((1, 1, 5))
    assert biases.table(biases.Uniform(), i, j).shape == (1, 1, 4, 5)
    assert biases.table(biases.ALiBi(jnp.ones(3)), i, j).shape == (1, 3, 4, 5)
    both = biases.table(biases.ALiBi(jnp.ones(3)), jnp.zeros((2, 1, 4)), jnp.zeros((1, 3, 5)))
    assert both.shape == (2, 3, 4, 5)


def test_a_table_names_coordinates_of_other_axes():
    bias, right = biases.ALiBi(jnp.array(SLOPES)), jnp.zeros((1, 1, 4))
    for name, i, j in (("i", jnp.zeros(()), right), ("j", right, jnp.zeros((1, 1, 1, 4)))):
        says = rf"coordinates \[#B, #H, T\], not {name} of the shape \(.*\); positions .*\[None, None\]"
        with pytest.raises(ValueError, match=says):
            biases.table(bias, i, j)


@pytest.mark.parametrize(("base", "arguments"), [(biases.Bias, (0.0, 1.0)), (biases.Rowwise, (None,))])
def test_formula_of_the_base_class_says_what_is_missing(base, arguments):
    class Mine(base):
        pass

    with pytest.raises(NotImplementedError, match="Mine has no formula"):
        Mine()(*arguments)


def test_a_formula_asked_for_all_heads_names_the_table():
    """Where as many heads as tokens are there it would broadcast, to something else."""
    at = jnp.arange(4.0)
    prior = biases.GeneralisedGaussian(*jnp.ones((3, 4)))
    with pytest.raises(
        ValueError, match=r"GeneralisedGaussian is that of one head, .* those of 4: biases\.table\(bias, i, j\)"
    ):
        prior(at[:, None], at[None])
    one = biases.GeneralisedGaussian(*jnp.ones(3))
    np.testing.assert_allclose(biases.table(prior, at[None, None], at[None, None])[0, 2], one(at[:, None], at[None]))


PRIORS = {
    "plain": (0.7, -0.3, 0.4),
    "centred": (1.3, 0.2, 0.0),
    "retrieval": (-0.5, 0.1, -0.2),
    "capped near": (-7.9, 0.0, 0.0),
    "capped far": (2.5, 3.0, 0.1),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_closed_form_of_the_generalised_gaussian(prior, rng, x64):
    bias = biases.GeneralisedGaussian(*(jnp.full((1, 5), x) for x in PRIORS[prior]))
    i, j = jnp.asarray(rng.integers(0, 40, (1, 5)), float), jnp.asarray(rng.integers(0, 40, (7, 1)) + 0.25)
    j = j.at[0].set(i[0, 0])  # the mode of a centred prior
    d_bias = jnp.asarray(rng.normal(size=(7, 5)))
    own, general = bias.cotangents(i, j, d_bias), biases.Bias.cotangents(bias, i, j, d_bias)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), own, general)
