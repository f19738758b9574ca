"""Running sums: their precision at 500k tokens, their gradient, and what CABLE and FoX make of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import biases
from bam_jax.encodings import BAM, CABLE, CABLENW, KCABLE, ContextualBAM, Dims, ForgettingTransformer, GRAPEAdditive
from bam_jax.encodings.context_aware import running_sum

DIMS = Dims(heads=3, width=4, context=8)
B, T = 2, 7


def test_half_a_million_tokens(rng):
    """The sum is near 3e5, where float32 steps by 0.03: two floats hold it, and differences of neighbours."""
    x = np.maximum(rng.normal(0.3, 1, 500_000), 0).astype(np.float32)
    exact = np.cumsum(x.astype(np.float64))
    assert exact[-1] > 2e5
    high, low = (np.asarray(part, np.float64) for part in jax.jit(running_sum)(x))
    tolerance = 1e-6
    assert np.abs(high + low - exact).max() < tolerance
    assert np.abs(np.asarray(jnp.cumsum(x), np.float64) - exact).max() > 1000 * tolerance
    at = slice(-5000, None)
    i, j = ((jnp.asarray(high[s], jnp.float32), jnp.asarray(low[s], jnp.float32)) for s in (at, slice(-5001, -1)))
    np.testing.assert_allclose(biases.Difference()(i, j), x[at], atol=tolerance)


def test_gradient_of_the_sum(rng):
    x, weight = rng.normal(size=(2, 3, 9)).astype(np.float32)
    of = lambda x: (weight * sum(running_sum(x))).sum()
    np.testing.assert_allclose(
        jax.grad(of)(jnp.asarray(x)), np.cumsum(weight[:, ::-1], -1)[:, ::-1], rtol=1e-5, atol=1e-5
    )


def made_of(encoding, rng, filled=None, **options):
    """The encoding with random kernels, an input, and its table of biases."""
    made = encoding(DIMS, **options, rngs=nnx.Rngs(0))
    if hasattr(made, "step_size"):
        made.step_size.kernel[...] = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)
    x = rng.normal(size=(B, T, 4)).astype(np.float32)
    filled = jnp.ones((1, T), bool) if filled is None else jnp.asarray(filled)
    return made, x, np.asarray(biases.table(made.bias(), *made.coordinate(jnp.asarray(x), filled, None)))


softplus = lambda x: np.log1p(np.exp(x))
difference = lambda s: s[..., None] - s[..., None, :]
FORMULAS = {
    "cable": (CABLE, lambda g, s: -g[..., None] * np.abs(difference(s))),
    "cable_nw": (CABLENW, lambda g, s: -difference(s)),
    "k_cable": (KCABLE, lambda g, s: -np.log((g[..., None] * difference(s)) ** 2 + 1)),
}


@pytest.mark.parametrize(
    ("name", "gate"), [("cable", "relu"), ("cable", "softplus"), ("cable_nw", "relu"), ("k_cable", "relu")]
)
def test_cable_from_the_layers_input(name, gate, rng):
    encoding, formula = FORMULAS[name]
    filled = np.array([[True] * T, [False] * 2 + [True] * (T - 2)])
    made, x, table = made_of(encoding, rng, filled, gate=gate)
    f = x @ np.asarray(made.step_size.kernel[...])
    f = np.maximum(f, 0) if gate == "relu" else softplus(f)
    s = np.cumsum(f * filled[..., None], 1).transpose(0, 2, 1)
    g = None if name == "cable_nw" else softplus(x @ np.asarray(made.weight.kernel[...])).transpose(0, 2, 1)
    np.testing.assert_allclose(table, formula(g, s), atol=1e-5)


def test_forgetting_transformer(rng):
    made, x, table = made_of(ForgettingTransformer, rng, gate_bias=1.5)
    forget = -softplus(-(x @ np.asarray(made.gate.kernel[...]) + 1.5))
    np.testing.assert_allclose(table, difference(np.cumsum(forget, 1).transpose(0, 2, 1)), atol=1e-5)
    assert (np.tril(table[0, 0], -1) <= 0).all()


def test_contextual_bam_is_the_prior_of_its_own_sums(rng):
    made, x, table = made_of(ContextualBAM, rng)
    s = np.cumsum(softplus(x @ np.asarray(made.step_size.kernel[...]) + np.log(np.e - 1)), 1).transpose(0, 2, 1)
    shape, scale = (np.asarray(p[...])[:, None, None] for p in (made.shape, made.log_scale))
    apart = ~np.eye(T, dtype=bool)
    expected = -np.exp(scale) * (np.abs(difference(s)) + 1e-5) ** shape
    np.testing.assert_allclose(table[..., apart], expected[..., apart], rtol=1e-4)


@pytest.mark.parametrize("near", [{}, {"near_decay": None, "near_shape": 1.0}, {"near_decay": 9.0}])
def test_contextual_bam_starts_as_bam_over_positions(near):
    """Steps are 1 where the input is 0, and the prior that counts keys is that of positions."""
    made = ContextualBAM(DIMS, **near, rngs=nnx.Rngs(0))
    positions = BAM(DIMS, init="ladder", **near, rngs=nnx.Rngs(0))
    at = jnp.arange(T, dtype=jnp.float32)[None, None]
    table = biases.table(made.bias(), *made.coordinate(jnp.zeros((1, T, 4)), jnp.ones((1, T), bool), None))
    expected = biases.table(positions.bias(), at, at)
    past = np.tril(np.ones((T, T), bool), -1)
    np.testing.assert_allclose(np.asarray(table)[..., past], np.asarray(expected)[..., past], rtol=1e-4)
    np.testing.assert_array_equal(*(biases.table(x, at, at) for x in (made.bias().by_offset(), positions.bias())))


@pytest.mark.parametrize("context", [8, 512])
@pytest.mark.parametrize(("options", "shape", "nats"), [({}, 1, 16), ({"near_decay": 81.0, "near_shape": 4.0}, 4, 81)])
def test_near_heads_have_widths_from_a_token_to_what_forgets_within_the_context(context, options, shape, nats):
    """One head looks far; the sharpest near head has a slope of 1, and the widest takes what it is told a context away."""
    made = BAM(Dims(4, 4, context), init="ladder", **options, rngs=nnx.Rngs(0)).bias()
    at = lambda position: jnp.full((1, 1, 1), float(position))
    table = lambda distance: biases.table(made, at(distance), at(0)).reshape(-1)
    assert table(context)[0] > -1 / (context - 1)
    np.testing.assert_allclose([table(d)[1] for d in (1, 2, context)], [-1, -2, -context], rtol=1e-4)
    widest = [-nats * d**shape for d in (0.25, 0.5, 1)]
    np.testing.assert_allclose([table(context * d)[-1] for d in (0.25, 0.5, 1)], widest, rtol=1e-4)
    between = (context / nats ** (1 / shape)) ** 0.5  # the width of the head between
    np.testing.assert_allclose(table(2 * between)[2], -(2 ** ((1 + shape) / 2)), rtol=1e-4)


@pytest.mark.parametrize("gate", ["both", "query", "key"])
def test_grape_gates_the_slopes_of_alibi(gate, rng):
    made = GRAPEAdditive(DIMS, gate=gate, rngs=nnx.Rngs(0))
    gates = [each for each in (made.of_query, made.of_key) if each is not None]
    assert len(gates) == (2 if gate == "both" else 1)
    for each in gates:
        each.kernel[...] = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)
    made.omega[...] += jnp.asarray([0.0, 1.0, -2.0])
    x, filled = rng.normal(size=(B, T, 4)).astype(np.float32), np.arange(T) >= np.array([[0], [2]])
    table = biases.table(made.bias(), *made.coordinate(jnp.asarray(x), jnp.asarray(filled), None))
    scale = np.log1p(np.exp(np.log(np.e - 1) + np.array([0.0, 1.0, -2.0])))
    slope = scale * np.asarray(biases.alibi_slopes(3))
    of_query, of_key = (
        0 if each is None else softplus(x @ np.asarray(each.kernel[...])).transpose(0, 2, 1)
        for each in (made.of_query, made.of_key)
    )
    total = np.zeros((B, 3, T, T)) + (0 if gate == "key" else of_query[..., None])
    total = total + (0 if gate == "query" else of_key[..., None, :])
    expected = -slope[:, None, None] * total * np.abs(difference(np.arange(T)))
    both = (filled[:, :, None] & filled[:, None])[:, None]
    np.testing.assert_allclose(np.where(both, table, 0), np.where(both, expected, 0), atol=1e-5)


@pytest.mark.parametrize("encoding", [CABLE, ForgettingTransformer, GRAPEAdditive])
def test_a_row_goes_on_where_it_stopped(encoding, rng):
    made = encoding(DIMS, rngs=nnx.Rngs(0))
    x, filled = jnp.asarray(rng.normal(size=(B, T, 4)), jnp.float32), jnp.ones((1, T), bool)
    whole = made.coordinate(x, filled, None)
    _, first = made.coordinate(x[:, :3], filled[:, :3], None)
    rest = made.coordinate(x[:, 3:], filled[:, 3:], jax.tree.map(lambda s: s[..., -1:], first))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[..., 3:], atol=1e-6), rest, whole)
