"""Sinks, windows that leave some in sight and values of another width, against tables of all logits."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import attend, biases
from bam_jax.attention import BACKENDS, Mask, Scoring, Tokens, Unsupported, attention
from bam_jax.attention.cpu import blocks
from bam_jax.attention.pallas import gpu, tpu_grid

B, T, H, K, D, E = 2, 14, 4, 2, 6, 9
CASES = [("chunked", E), pytest.param("pallas_gpu", E, marks=pytest.mark.hopper)]
CASES += [
    pytest.param(name, width, marks=pytest.mark.full)
    for name, width in itertools.product(BACKENDS, (E, D, D - 2))
    if name != "pallas_gpu" and (name, width) not in CASES
]
WINDOW, SINKS = 4, 2


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(gpu, "_DTYPES", (*gpu._DTYPES, "float32"))
    for module in (blocks, tpu_grid):
        monkeypatch.setattr(module, "_block_sizes", lambda q, k: (4, 6))


def draw(rng, width):
    shapes = (B, T, H, D), (B, T, K, D), (B, T, K, width), (H,), (H,)
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


def dense(q, k, v, slopes, sinks, *, seen, cap=None):
    """Output and normaliser with one column more for the sink."""
    k, v = (jnp.repeat(x, H // K, 2) for x in (k, v))
    logits = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(D)
    logits = logits if cap is None else cap * jnp.tanh(logits / cap)
    at = jnp.arange(T)
    logits = jnp.where(seen[:, None], logits - slopes[:, None, None] * abs(at[:, None] - at), -jnp.inf)
    logits = jnp.concatenate([logits, jnp.broadcast_to(sinks[:, None, None], (B, H, T, 1))], -1)
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits)[..., :-1], v)
    return out, jax.nn.logsumexp(logits, -1)


def slopes_of(function, operands):
    """Results, and all gradients of a loss that weighs each of their numbers otherwise."""
    results, vjp = jax.vjp(function, *operands)
    wave = lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    return (*results, *vjp(jax.tree.map(wave, results)))


def agree(made, expected):
    for a, b in zip(made, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, float(jnp.abs(b).max())))


@pytest.mark.parametrize(("backend", "width"), CASES)
def test_a_window_with_sinks_of_tokens_and_of_logits(backend, width, rng):
    """Two documents in each row, so that each has sinks of its own, and a soft cap."""
    operands = draw(rng, width)
    start = np.array([[0] * 9 + [9] * 5, [0] * 5 + [5] * 9])
    at, segment = np.arange(T) - start, 1 + (start > 0)
    i, j = at[:, :, None], at[:, None, :]
    seen = (segment[:, :, None] == segment[:, None]) & (j <= i) & ((i - j < WINDOW) | (j < SINKS))

    def made(q, k, v, slopes, sinks):
        tokens = Tokens(jnp.asarray(at, jnp.int32), jnp.asarray(segment))
        mask = Mask(window=WINDOW, sink_tokens=SINKS)
        scoring = Scoring(biases.ALiBi(slopes), tokens, tokens, None, mask, soft_cap=1.2, sink_logits=sinks)
        return attention(q, k, v, scoring, backend=backend, return_lse=True)

    both = made, functools.partial(dense, seen=seen, cap=1.2)
    agree(*(jax.jit(functools.partial(slopes_of, run))(operands) for run in both))


@pytest.mark.parametrize("backend", ["rows", "chunked"])
def test_normalisers_alone_have_gradients_whatever_the_width_of_values(backend, rng):
    q, k, v, slopes, _ = draw(rng, E)

    def normalisers(q, k, backend):
        return (attend(q, k, v, biases.ALiBi(slopes), backend=backend, return_lse=True)[1] ** 2).sum()

    slope = jax.jit(jax.grad(normalisers, (0, 1)), static_argnums=2)
    agree(slope(q, k, backend), slope(q, k, "reference"))


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_a_row_that_sees_nothing_leaves_all_to_its_sink(backend, rng):
    q, k, v, slopes, sinks = draw(rng, D)
    segments = jnp.arange(T) < 5

    def found(sinks):
        return attend(
            q, k, v, biases.ALiBi(slopes), segments=segments, sink_logits=sinks, backend=backend, return_lse=True
        )

    (out, lse), vjp = jax.vjp(found, sinks)
    assert not out[:, 5:].any()
    np.testing.assert_array_equal(lse[:, :, 5:], np.broadcast_to(sinks[:, None], (B, H, T - 5)))
    assert all(jnp.isfinite(x).all() for x in vjp((jnp.ones_like(out), jnp.zeros_like(lse))))
    without = attend(q, k, v, biases.ALiBi(slopes), segments=segments, backend=backend)
    np.testing.assert_allclose(found(jnp.full(H, -jnp.inf))[0], without, atol=1e-6)
    nothing = attend(q, k[:, :0], v[:, :0], query_positions=jnp.arange(T), sink_logits=sinks, return_lse=True)[1]
    np.testing.assert_array_equal(nothing, np.broadcast_to(sinks[:, None], (B, H, T)))


def test_what_cannot_be_is_said_in_a_line(rng):
    q, k, v, _, sinks = draw(rng, D)
    with pytest.raises(
        ValueError, match="sink_tokens=2 are those that a causal window does not hide: got causal=True, window=None"
    ):
        attend(q, k, v, sink_tokens=2)
    with pytest.raises(ValueError, match="sinks are a number of tokens, 0 for none: got sink_tokens=-1"):
        attend(q, k, v, window=4, sink_tokens=-1)
    with pytest.raises(ValueError, match=r"sink_logits has the shape \(3,\), not \[H\]"):
        attend(q, k, v, sink_logits=sinks[:3])
    with pytest.raises(ValueError, match="soft_cap must be a finite number above 0 of Python's, not 0"):
        attend(q, k, v, soft_cap=0)
    with pytest.raises(ValueError, match=r"sees_to has the shape \(3,\), not \[B, T\]"):
        attend(q, k, v, sees_to=jnp.arange(3))
    rowwise = biases.CoPE(jnp.ones((4, D)))
    tokens = Tokens(jnp.arange(T)[None])
    with pytest.raises(Unsupported, match="whole rows"):
        attention(q, k, v, Scoring(biases.Uniform(), tokens, tokens, rowwise=rowwise), backend="chunked")
