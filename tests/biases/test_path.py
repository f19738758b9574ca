"""What depends on the tokens between a key and its query, as loops over these tokens."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases

B, H, K, T = 2, 4, 2, 3
WIDTH = 6


def rows(rng, slots, *, queries, keys, visible):
    """Queries at the last slots but two; scores of 1,000 would be seen where a product is asked for anew."""
    i, j = np.arange(slots - T - 2, slots - 2), np.arange(slots)
    numbers = queries, keys, np.full((B, H, T, slots), 1e3), rng.normal(size=(1, H, T, slots)), visible
    places = i[None, None, :, None], j[None, None, None]
    return biases.Rows(*map(jnp.asarray, (*numbers, *places)), scored=lambda product: 2 * jnp.tanh(product / 3))


def visible(slots):
    """A query sees what is behind it and, as in a prefix, the next key; one key is hidden in between, and two in front."""
    seen = np.arange(slots) <= np.arange(slots - T - 2, slots - 2)[:, None] + 1
    seen = np.broadcast_to(seen, (B, 1, T, slots)).copy()
    seen[0, :, :, 1] = seen[1, :, 0, :2] = False
    return seen


def pairs(seen):
    """Query and key of each pair that is compared, the key behind its query."""
    slots = seen.shape[-1]
    for b, h, t, j in np.ndindex(B, H, T, slots):
        i = slots - T - 2 + t
        if seen[b, 0, t, j] and j <= i:
            yield (b, h, t, j), i, h // (H // K)


@pytest.mark.parametrize("slots", [7, 64, 150])
def test_path_multiplies_the_matrices_of_the_tokens_in_between(slots, rng, x64):
    q, k, w = rng.normal(size=(B, T, H, WIDTH)), *rng.normal(size=(2, B, slots, K, WIDTH))
    beta = rng.uniform(0, 2, (B, slots, K))
    w /= np.linalg.norm(w, axis=-1, keepdims=True)
    queries = np.pad(q, ((0, 0),) * 3 + ((0, WIDTH + 1),))
    given = rows(rng, slots, queries=queries, keys=np.concatenate([k, w, beta[..., None]], -1), visible=visible(slots))
    made = np.asarray(biases.PaTH()(given))
    for at, i, head in pairs(given.visible):
        b, h, t, j = at
        changed = q[b, t, h]
        for step in range(i, j, -1):  # hidden or not
            direction = w[b, step, head]
            changed = changed - beta[b, step, head] * (direction @ changed) * direction
        expected = 2 * np.tanh(changed @ k[b, j, head] / 3) + given.bias[0, h, t, j]
        np.testing.assert_allclose(made[at], expected, atol=1e-12)


def test_path_keeps_what_is_not_finite_to_its_own_logit(rng):
    q, keys = rng.normal(size=(B, T, H, 13)), rng.normal(size=(B, 20, K, 13))
    keys[0, 9, 1] = keys[1, 19, 0] = np.nan
    given = rows(rng, 20, queries=q, keys=keys, visible=visible(20))
    expected = np.zeros((B, H, T, 20), bool)
    expected[0, 2:, :, 9] = expected[1, :2, :, 19] = True
    np.testing.assert_array_equal(~np.isfinite(biases.PaTH()(given)), expected)


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_path_integral_sums_what_the_tokens_in_between_cost(factor, rng, x64):
    slots, width = 12, 4
    draw = lambda *shape: rng.normal(size=shape)
    q, p, slope = draw(B, T, H, WIDTH), draw(B, T, H, width), np.abs(draw(H))
    k, r = draw(B, slots, K, WIDTH), draw(B, slots, K, width)
    zeros = lambda side, n: np.zeros((*side.shape[:3], n))
    slopes = np.broadcast_to(slope[:, None], (B, T, H, 1))
    queries = factor * np.concatenate([q, p, np.ones((B, T, H, 1)), slopes, zeros(q, width)], -1)
    keys = np.concatenate([k, zeros(k, width + 2), r], -1)
    given = rows(rng, slots, queries=queries, keys=keys, visible=visible(slots))
    product = np.einsum("bthd,bshd->bhts", queries, np.repeat(keys, H // K, axis=2))
    np.testing.assert_allclose(product, factor * np.einsum("bthd,bshd->bhts", q, np.repeat(k, H // K, axis=2)))
    made = np.asarray(biases.PathIntegral(width)(given))
    for at, i, head in pairs(given.visible):
        b, h, t, j = at
        between = [step for step in range(j + 1, i + 1) if given.visible[b, 0, t, step]]
        cost = sum(math.log1p(math.exp(-p[b, t, h] @ r[b, step, head] / width)) for step in between)
        np.testing.assert_allclose(made[at], 1e3 + given.bias[0, h, t, j] - slope[h] * cost, atol=1e-9)


def test_path_integral_has_finite_gradients_of_rows_of_zeros(rng):
    """As queries are that nobody reads."""
    queries, keys = rng.normal(size=(B, T, H, 12)), rng.normal(size=(B, 12, K, 12))
    given = rows(rng, 12, queries=queries, keys=keys, visible=visible(12))
    loss = lambda x: biases.PathIntegral(2)(dataclasses.replace(given, queries=x)).sum()
    assert jnp.isfinite(jax.grad(loss)(given.queries.at[:, 1].set(0))).all()
