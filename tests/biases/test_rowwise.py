"""What needs whole rows, against the papers' equations, written again as loops over plain floats."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases

B, H, D, T, S = 2, 3, 4, 3, 6


def rows(rng, visible, positions=None):
    """Rows of random scores; what is not visible is large, and must not matter."""
    draw = lambda *shape: rng.normal(size=shape)
    scores = np.where(visible, draw(B, H, T, S), 1e3 * draw(B, H, T, S))
    i, j = positions if positions is not None else (np.arange(S - T, S), np.arange(S))
    i, j = i[None, None, :, None], j[None, None, None]
    numbers = draw(B, T, H, D), draw(B, S, H, D), scores, draw(1, H, T, S), visible, i, j
    return biases.Rows(*map(jnp.asarray, numbers), scored=lambda product: product)


def visible(rng, causal):
    """Causal or not; a key that is hidden in between, and one on either end."""
    seen = np.arange(S) <= np.arange(S - T, S)[:, None] if causal else np.ones((T, S), bool)
    seen = np.broadcast_to(seen, (B, 1, T, S)).copy()
    seen[0, :, :, 2] = seen[1, :, :, 0] = seen[0, :, 0, 1] = False
    return seen


def convolved(x, weights, offset, seen):
    """[C][S] -> [C'][S], keys that are not seen read as 0."""
    width = len(weights[0][0])
    made = [[float(b)] * S for b in offset]
    for c, s, a, tap in np.ndindex(len(weights), S, len(x), width):
        at = s + tap - width // 2
        if 0 <= at < S and seen[at]:
            made[c][s] += weights[c][a][tap] * x[a][at]
    return made


@pytest.mark.parametrize("width", [3, 5])
def test_dape(width, rng, x64):
    draw = lambda *shape: rng.normal(size=shape)
    w1, b1, w2, b2 = draw(2, 2 * H, width), draw(2), draw(H, 2, width), draw(H)
    given = rows(rng, seen := visible(rng, True))
    made = biases.DAPE(*map(jnp.asarray, (w1, b1, w2, b2)))(given)
    for b, t in np.ndindex(B, T):
        s, bias = np.asarray(given.scores)[b, :, t], np.asarray(given.bias)[0, :, t]
        hidden = convolved([*s, *bias], w1, b1, seen[b, 0, t])
        hidden = [[x if x > 0 else 0.01 * x for x in row] for row in hidden]
        added = convolved(hidden, w2, b2, seen[b, 0, t])
        for h, j in np.ndindex(H, S):
            if seen[b, 0, t, j]:
                np.testing.assert_allclose(made[b, h, t, j], s[h, j] + bias[h, j] + added[h][j], rtol=1e-11)


@pytest.mark.parametrize("symmetric", [False, True])
def test_cope(symmetric, rng, x64):
    """Positions from .2 to 4, of which those above 2 are clipped."""
    vectors = rng.normal(size=(3, D))
    given = rows(rng, seen := visible(rng, not symmetric))
    made = biases.CoPE(jnp.asarray(vectors), symmetric)(given)
    places = []
    for b, h, t, j in np.ndindex(B, H, T, S):
        if not seen[b, 0, t, j]:
            continue
        i = S - T + t
        between = [k for k in range(min(i, j), max(i, j) + 1) if seen[b, 0, t, k]]
        scores = np.asarray(given.scores)[b, h, t]
        place = min(sum(1 / (1 + math.exp(-scores[k])) for k in between), 2)
        low, high = math.floor(place), math.ceil(place)
        vector = (place - low) * vectors[high] + (1 - place + low) * vectors[low]
        expected = scores[j] + given.bias[0, h, t, j] + np.asarray(given.queries)[b, t, h] @ vector
        np.testing.assert_allclose(made[b, h, t, j], expected, rtol=1e-11)
        places.append(place)
    assert min(places) < 0.5 and max(places) == 2 and len(places) > 50


def test_cope_counts_one_document_after_another(rng):
    """Positions that start again: keys are in the order of their tokens, and what lies outside is not visible."""
    seen = np.zeros((B, 1, T, S), bool)
    seen[..., 3:] = True
    at = np.array([0, 1, 2])
    one = rows(rng, seen, (at, np.concatenate([at, at])))
    whole = biases.CoPE(jnp.ones((4, D)), symmetric=True)(one)
    last = ("scores", "bias", "visible", "j")
    alone = dataclasses.replace(one, **{name: getattr(one, name)[..., 3:] for name in last})
    np.testing.assert_allclose(whole[..., 3:], biases.CoPE(jnp.ones((4, D)), symmetric=True)(alone), rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_relative_keys(causal, rng, x64):
    """Offsets from -5 to 5, of which those beyond 2 are clipped, between positions that are far from the start."""
    vectors = rng.normal(size=(5, D))
    positions = np.arange(S - T, S) + 2**30, np.arange(S) + 2**30
    given = rows(rng, seen := visible(rng, causal), positions)
    made = biases.RelativeKeys(jnp.asarray(vectors))(given)
    for b, h, t, j in np.ndindex(B, H, T, S):
        if seen[b, 0, t, j]:
            vector = vectors[min(max(j - (S - T + t), -2), 2) + 2]
            expected = (
                given.scores[b, h, t, j] + given.bias[0, h, t, j] + given.queries[b, t, h] @ vector / math.sqrt(D)
            )
            np.testing.assert_allclose(made[b, h, t, j], expected, rtol=1e-11)


def sparse(z):
    """1.5-entmax by trying every number of keys with a weight."""
    z = np.sort(np.asarray(z) / 2)[::-1]
    for count in range(len(z), 0, -1):
        mean = z[:count].mean()
        spread = count * ((z[:count] ** 2).mean() - mean**2)
        if spread <= 1 and (tau := mean - math.sqrt((1 - spread) / count)) <= z[count - 1]:
            return tau
    raise AssertionError(z)


@pytest.mark.parametrize("causal", [True, False])
def test_entmax_leaves_far_keys_nothing_and_its_gradient_is_that_of_differences(causal, rng, x64):
    given = rows(rng, seen := visible(rng, causal))
    where = np.broadcast_to(seen, given.scores.shape)
    weights = lambda scores: jax.nn.softmax(
        jnp.where(seen, biases.Entmax(None)(dataclasses.replace(given, scores=scores)), -1e30), axis=-1
    )
    made, zeros = np.asarray(weights(given.scores)), 0
    for b, h, t in np.ndindex(B, H, T):
        z = np.asarray(given.scores + given.bias)[b, h, t]
        expected = np.maximum(z / 2 - sparse(z[seen[b, 0, t]]), 0) ** 2 * seen[b, 0, t]
        np.testing.assert_allclose(made[b, h, t], expected, atol=1e-6)
        zeros += ((expected == 0) & seen[b, 0, t]).sum()
    assert zeros > 5
    cotangent, step = rng.normal(size=made.shape), 1e-4
    slope = np.asarray(jax.grad(lambda s: (weights(s) * cotangent).sum())(given.scores))
    assert not slope[~where].any()
    for at in [tuple(x) for x in np.argwhere(where)[::7]]:
        moved = [(weights(given.scores.at[at].add(d)) * cotangent).sum() for d in (step, -step)]
        np.testing.assert_allclose(slope[at], (moved[0] - moved[1]) / (2 * step), atol=2e-3)


def test_entmax_keeps_nan_and_rows_without_keys_are_finite(rng):
    seen = np.zeros((B, 1, T, S), bool)
    seen[0, :, 1] = True
    given = rows(rng, seen)
    given = dataclasses.replace(given, scores=given.scores.at[0, 0, 1, 2].set(jnp.nan))
    made = biases.Entmax(None)(given)
    assert jnp.isnan(made[0, 0, 1, 2]) and jnp.isfinite(made[1]).all() and jnp.isfinite(made[0, 1:]).all()
    slope = jax.grad(lambda s: biases.Entmax(None)(dataclasses.replace(given, scores=s))[0, 1:].sum())
    assert jnp.isfinite(slope(given.scores)[0, 1:]).all()


def test_adaptive_temperature_follows_the_entropy(rng, x64):
    given = rows(rng, seen := visible(rng, False))
    made, factors = biases.AdaptiveTemperature(None)(given), []
    for b, h, t in np.ndindex(B, H, T):
        z = np.asarray(given.scores + given.bias)[b, h, t]
        weights = np.exp(z[seen[b, 0, t]])
        weights /= weights.sum()
        entropy = -(weights * np.log(weights)).sum()
        beta = -0.037 * entropy**4 + 0.481 * entropy**3 - 2.3 * entropy**2 + 4.917 * entropy - 1.791
        factors.append(max(beta, 1) if entropy > 0.5 else 1)
        np.testing.assert_allclose(made[b, h, t][seen[b, 0, t]], factors[-1] * z[seen[b, 0, t]], rtol=1e-11)
    assert 1 in factors and max(factors) > 1.2
    assert (
        not biases.AdaptiveTemperature(None).mixes_heads and biases.Entmax(biases.DAPE(*[jnp.ones(1)] * 4)).mixes_heads
    )
