"""Encodings that change queries and keys by more than an angle of the position, by their formulas in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax.attention import EMPTY, Tokens
from bam_jax.encodings import Dims, spec
from bam_jax.encodings.angles import angle_sum
from bam_jax.system.errors import UserError

DIMS = Dims(heads=4, width=24, context=16)
B, T, H, D = 2, 11, 4, 6
TOKENS = Tokens(jnp.arange(T, dtype=jnp.int32)[None])


@pytest.fixture
def row(rng):
    """q, k and x."""
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((B, T, H, D), (B, T, 2, D), (B, T, 24))]


def build(name, dims=DIMS, **options):
    """The encoding with parameters other than its first ones."""
    made = spec(name, options).build(dims, nnx.Rngs(0))
    rng = np.random.default_rng(1)
    moved = jax.tree.map(lambda x: x + jnp.asarray(rng.normal(size=x.shape), x.dtype), nnx.state(made, nnx.Param))
    nnx.update(made, moved)
    return made


def scores(encoding, q, k, x, tokens=TOKENS):
    """Products of every query and key, [B, H, T, T]."""
    q, k, _ = encoding.turn(q, k, x, tokens, encoding.initial_state(len(x)))
    k = np.repeat(np.asarray(k, np.float64), H // k.shape[2], axis=2)
    return np.einsum("bthd,bshd->bhts", np.asarray(q, np.float64), k)


def as_pairs(x):
    """Heads as complex numbers."""
    x = np.asarray(x, np.float64)
    return x[..., : D // 2] + 1j * x[..., D // 2 :]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_pope_is_magnitudes_and_phases(row):
    q, k, x = row
    made = build("pope", base=100.0)
    delta = np.clip(made.delta[...], -2 * np.pi, 0)
    assert (delta < 0).any() and (delta == 0).any()
    expected = np.zeros((B, H, T, T))
    softplus = lambda x: np.log1p(np.exp(np.asarray(x, np.float64)))
    for h in range(H):
        for c in range(D):
            phase = (np.arange(T)[None] - np.arange(T)[:, None]) * 100.0 ** (-c / D) + delta[h, c]
            magnitude = softplus(q[:, :, h, c])[:, :, None] * softplus(k[:, :, h // 2, c])[:, None]
            expected[:, h] += magnitude * np.cos(phase)
    np.testing.assert_allclose(scores(made, *row), expected, atol=1e-4)
    assert not spec("pope").build(DIMS, nnx.Rngs(0)).delta[...].any()
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (q, k))
    assert {x.dtype.name for x in made.turn(*half, x, TOKENS, None)[:2]} == {"bfloat16"}


def test_phases_of_pope_come_back_within_their_limits(row):
    q, k, x = row
    made = spec("pope").build(DIMS, nnx.Rngs(0))
    graph, state = nnx.split(made)
    loss = lambda state, sign: sign * nnx.merge(graph, state).turn(q, k, x, TOKENS, None)[0].sum()
    slopes = {}
    for start in (-7.0, -1.0, 0.0, 0.5):
        moved = jax.tree.map(lambda x, start=start: jnp.full_like(x, start), state)
        slopes[start] = [np.asarray(jax.grad(loss)(moved, sign)["delta"][...]) for sign in (1, -1)]
    for start, (up, down) in slopes.items():
        np.testing.assert_array_equal((up == 0) | (down == 0), np.full(up.shape, start in (-7.0, 0.5)))
    assert (slopes[0.5][0] >= 0).all() and (slopes[-7.0][0] <= 0).all()


def test_xpos_decays_with_the_distance(row):
    q, k, x = row
    far = 300 * np.arange(T)
    tokens = Tokens(jnp.asarray(far, jnp.int32)[None])
    zeta = (2 * np.arange(D // 2) / D + 0.4) / 1.4
    distance = (far[:, None] - far[None])[..., None]
    turning = np.exp(-1j * distance * 50.0 ** (-np.arange(D // 2) / (D // 2))) * zeta ** (distance / 700)
    pairs = np.einsum("bthn,bshn->bhtsn", as_pairs(q), as_pairs(np.repeat(k, 2, axis=2)).conj())
    expected = (pairs * turning.conj()).real.sum(-1)
    made = scores(build("xpos", base=50.0, scale_base=700.0), q, k, x, tokens)
    seen = np.tril(np.ones((T, T), bool))
    np.testing.assert_allclose(made[..., seen], expected[..., seen], atol=1e-4)


def test_xpos_stays_finite_and_is_for_decoders(row):
    made = spec("xpos").build(DIMS, nnx.Rngs(0))
    tokens = Tokens(jnp.asarray([0, 10, 2**20, 2**20 + 1, EMPTY - 1, *range(6)], jnp.int32)[None])
    assert np.isfinite(scores(made, *row, tokens)).all()
    with pytest.raises(UserError, match="xpos grows with the distance after the query; it is for decoders"):
        spec("xpos").build(dataclasses.replace(DIMS, causal=False), nnx.Rngs(0))


def selective_angles(made, x, segment, heads=H):
    """The running angles [B, T, H, D/2] by loops over tokens and taps."""
    x = np.asarray(x, np.float64).reshape(B, T, H, -1)
    unit = (x / np.linalg.norm(x, axis=-1, keepdims=True)).reshape(B, T, -1)
    down, up, gate = (np.asarray(each.kernel[...], np.float64) for each in (made.down, made.up, made.gate))
    taps = np.asarray(made.taps[...], np.float64)
    rates = 100.0 ** (-np.arange(D // 2) / (D // 2))
    angle, total = np.zeros((B, T, H, D // 2)), np.zeros((B, H, D // 2))
    for t in range(T):
        phi = np.zeros((B, H * D // 2))
        for lag in range(4):
            same = t >= lag and np.asarray(segment)[:, t] == np.asarray(segment)[:, t - lag]
            phi += taps[lag] * np.where(same, 1, 0)[..., None] * (unit[:, t - lag] @ down @ up)
        opened = sigmoid(unit[:, t] @ gate + np.asarray(made.gate.bias[...]))
        total = total + phi.reshape(B, H, -1) * opened[..., None] * rates
        angle[:, t] = total
    return angle


@pytest.mark.parametrize("packed", [False, True])
def test_selective_rope_turns_by_what_the_text_says(packed, row):
    q, k, x = row
    made = build("selective_rope", rank=5, base=100.0)
    segment = jnp.asarray([[1] * 4 + [2] * 7, [1] * 11]) if packed else jnp.ones((B, T), jnp.int32)
    tokens = dataclasses.replace(TOKENS, segment=segment if packed else None)
    angle = np.repeat(
        selective_angles(made, x, segment)[:, :, ::2], 2, axis=2
    )  # heads that share a key share its angles
    turned = [as_pairs(side) * np.exp(1j * angle) for side in (q, np.repeat(k, 2, axis=2))]
    expected = np.einsum("bthn,bshn->bhts", turned[0], turned[1].conj()).real
    np.testing.assert_allclose(scores(made, q, k, x, tokens), expected, atol=1e-4)


def test_selective_rope_has_finite_gradients_of_rows_of_zeros(row):
    q, k, x = row
    made = build("selective_rope")
    loss = lambda x: (made.turn(q, k, x, TOKENS, made.initial_state(B))[0] ** 2).sum()
    assert jnp.isfinite(jax.grad(loss)(x.at[:, 3, :6].set(0))).all()


@pytest.mark.parametrize("name", ["selective_rope", "path"])
def test_the_text_goes_on_from_the_state_behind_pads(name, row):
    q, k, x = row
    made = build(name)
    whole = made.turn(q, k, x, TOKENS, made.initial_state(B))
    front = lambda y: jnp.pad(y, ((0, 0), (2, 0), (0, 0), (0, 0))[: y.ndim], constant_values=1.0)
    position = jnp.pad(TOKENS.position, ((0, 0), (2, 0)), constant_values=EMPTY)
    state, pieces = made.initial_state(B), []
    for piece in (slice(0, 1), slice(1, 6), slice(6, 7), slice(7, T + 2)):
        cut = (front(y)[:, piece] for y in row)
        *pair, state = made.turn(*cut, Tokens(position[:, piece]), state)
        pieces.append(pair)
    for n in range(2):
        joined = jnp.concatenate([piece[n] for piece in pieces], axis=1)[:, 2:]
        np.testing.assert_allclose(joined, whole[n], atol=1e-5)
    seen, expected = (jax.tree.leaves(each)[0] for each in (state, whole[2]))  # by the convolution
    np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_path_carries_a_matrix_of_each_token_beside_its_key(packed, row):
    q, k, x = row
    made = build("path", rank=5)
    segment = np.asarray([[1] * 4 + [2] * 7, [1] * 11]) if packed else np.ones((B, T), int)
    tokens = dataclasses.replace(TOKENS, segment=jnp.asarray(segment, jnp.int32) if packed else None)
    queries, keys, _ = made.turn(q, k, x, tokens, made.initial_state(B))
    np.testing.assert_array_equal(queries, np.pad(q, ((0, 0),) * 3 + ((0, D + 1),)))
    np.testing.assert_array_equal(keys[..., :D], k)

    wide = lambda y: np.asarray(y[...], np.float64)
    low = np.asarray(x, np.float64) @ wide(made.down.kernel) @ wide(made.up.kernel)
    for b, t in np.ndindex(B, T):
        lags = [n for n in range(3) if t >= n and segment[b, t] == segment[b, t - n]]
        mixed = sum(wide(made.taps)[n] * low[b, t - n] for n in lags)
        w = (mixed * sigmoid(mixed)).reshape(H, D)
        w /= np.linalg.norm(w, axis=-1, keepdims=True)
        beta = 2 * sigmoid(np.asarray(x[b, t], np.float64) @ wide(made.beta.kernel) + wide(made.beta.bias))
        np.testing.assert_allclose(keys[b, t, :, D:-1], w[::2], atol=1e-4)  # of the first head that reads the key
        np.testing.assert_allclose(keys[b, t, :, -1], beta[::2], atol=1e-5)


def test_grape_carries_vectors_that_leave_products_as_they_are(row):
    q, k, x = row
    made = build("grape_ap", width=4)
    tokens = Tokens(TOKENS.position + 70_000)
    expected = np.einsum("bthd,bshd->bhts", q, np.repeat(k, H // 2, axis=2))
    np.testing.assert_allclose(scores(made, *row, tokens), expected, atol=1e-5)
    queries, keys, _ = made.turn(q, k, x, tokens, None)
    p = (np.asarray(x, np.float64) @ np.asarray(made.positional.kernel[...], np.float64)).reshape(B, T, H, 4)
    np.testing.assert_allclose(queries[..., D : D + 4], p, atol=1e-4)
    np.testing.assert_array_equal(queries[0, 0, :, D + 4 : D + 6], [[1, 2.0 ** (-8 * (h + 1) / H)] for h in range(H)])
    unit = p[:, :, ::2] / np.sqrt((p[:, :, ::2] ** 2).mean(-1, keepdims=True))
    turned = (unit[..., :2] + 1j * unit[..., 2:]) * np.exp(1j * np.asarray(tokens.position))[0, :, None, None]
    np.testing.assert_allclose(keys[..., -4:-2] + 1j * keys[..., -2:], turned, atol=1e-3)


def test_what_follows_the_text_is_for_decoders():
    encoder = dataclasses.replace(DIMS, causal=False)
    for name, message in (("path", "follows the text from the key"), ("grape_ap", "counts tokens from the key")):
        with pytest.raises(UserError, match=f"config.encoding={name} {message} to the query; it is for decoders"):
            spec(name).build(encoder, nnx.Rngs(0))
    with pytest.raises(UserError, match="encoding_options.width=5 must be even"):
        spec("grape_ap", {"width": 5}).build(DIMS, nnx.Rngs(0))


def test_angles_are_summed_without_rounding_and_have_the_gradient_of_a_sum(rng):
    step = jnp.asarray(rng.normal(size=(1, 50_000, 2)) + 3.0, jnp.float32)  # turns
    angle, last = angle_sum(step, jnp.zeros((1, 2), jnp.uint32))
    expected = 2 * np.pi * np.cumsum(np.asarray(step, np.float64), axis=1)
    assert expected.max() > 1e5 and np.abs(angle).max() <= np.float32(np.pi)
    np.testing.assert_allclose(np.exp(1j * np.asarray(angle, float)), np.exp(1j * expected), atol=3e-5)
    more, _ = angle_sum(step[:, :5], last)
    np.testing.assert_allclose(
        np.exp(1j * np.asarray(more, float)), np.exp(1j * (expected[:, -1:] + expected[:, :5])), atol=3e-5
    )
    weights = jnp.asarray(rng.normal(size=(1, 9, 2)), jnp.float32)
    slope = jax.grad(lambda s: (weights * angle_sum(s, jnp.zeros((1, 2), jnp.uint32))[0]).sum())(step[:, :9])
    np.testing.assert_allclose(slope, 2 * np.pi * np.cumsum(weights[:, ::-1], axis=1)[:, ::-1], rtol=1e-5, atol=1e-5)
