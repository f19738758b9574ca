"""Positions from 2^24 on, which float32 rounds: offsets between neighbours stay exact on every backend."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bam_jax import biases
from bam_jax.attention import BACKENDS, EMPTY, Cache, Mask, Scoring, Tiling, Tokens, attention
from bam_jax.attention.pallas import gpu
from bam_jax.attention.ring import ring, zigzag

B, T, S, H, K, D = 2, 5, 40, 4, 2, 16
STARTS = [2**24 + 1, 2**26 + 3, 2**30 + 5]
CAUSAL = Mask()
SLOPES = np.float32([1.0, 0.5, 0.25, 0.1])

BIASES = {
    "alibi": biases.ALiBi(SLOPES),
    "ggd": biases.GeneralisedGaussian(SLOPES, SLOPES - 1, SLOPES - 0.5),
    "t5": biases.T5(np.float32(np.random.default_rng(1).normal(size=(H, 8))), starts=biases.t5_starts(8, 30)),
    "fire": biases.FIRE(
        np.float32(np.random.default_rng(2).normal(size=(H, 3))),
        SLOPES,
        w1=np.float32([30, -60, 90]),
        b1=np.float32([1, 0.5, -1]),
        c=np.float32(1),
        length=np.float32(9),
    ),
}


@pytest.fixture(autouse=True)
def float32_on_gpus(monkeypatch):
    """Interpreted, a product of float32 is exact."""
    monkeypatch.setattr(gpu, "_DTYPES", (*gpu._DTYPES, "float32"))


def operands(queries=T):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return draw(B, queries, H, D), draw(B, S, K, D), draw(B, S, K, D), draw(B, queries, H, D)


def scoring_at(start, bias, queries=T, mask=CAUSAL, far=False):
    """The last queries of a row and its keys from a position on, with an empty slot behind the keys of the second row.

    far: whether the first two keys stay at the front of the text.
    """
    position = start + np.tile(np.arange(S), (B, 1))
    if far:
        position[:, :2] = [0, 1]
    own = position[:, S - queries :].copy()
    position[1, -1] = own[1, -1] = EMPTY
    return Scoring(bias, *(Tokens(jnp.asarray(x, jnp.int32)) for x in (own, position)), mask=mask)


@functools.partial(jax.jit, static_argnums=0)
def results(backend, q, k, v, d_out, scoring):
    """Output, and gradients of the operands and the bias's parameters."""

    def attend(q, k, v, bias):
        return attention(q, k, v, Scoring(bias, scoring.queries, scoring.keys, mask=scoring.mask), backend=backend)

    out, vjp = jax.vjp(attend, q, k, v, scoring.bias)
    return out, vjp(d_out)


def in_float64(*operands):
    """The reference's results in float64, which holds every position."""
    wide = lambda x: x if jnp.issubdtype(x.dtype, jnp.integer) else jnp.asarray(x, jnp.float64)
    with jax.enable_x64(True):
        return results("reference", *jax.tree.map(wide, operands))


def same(made, expected, tolerance=2e-5):
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max()))


@pytest.mark.parametrize(
    ("backend", "bias", "queries"),
    [
        ("reference", "ggd", T),
        ("chunked", "ggd", T),
        ("chunked", "t5", 1),
        *(pytest.param("chunked", bias, n, marks=pytest.mark.full) for bias, n in (("ggd", 1), ("t5", T))),
        *(pytest.param("rows", "ggd", n, marks=pytest.mark.full) for n in (1, T)),
        *(pytest.param("pallas_tpu", bias, n, marks=pytest.mark.full) for bias in ("alibi", "t5") for n in (1, T)),
        *(pytest.param("pallas_gpu", "ggd", n, marks=pytest.mark.hopper) for n in (1, T)),
    ],
)
def test_a_relative_bias_is_the_same_wherever_the_text_begins(backend, bias, queries):
    *rows, d_out = operands(queries)
    run = lambda start: results(backend, *rows, d_out, scoring_at(start, BIASES[bias], queries, Mask(window=30)))
    expected = run(0)
    for start in STARTS:
        same(run(start), expected)


@pytest.mark.parametrize("backend", ["chunked", pytest.param("pallas_tpu", marks=pytest.mark.full)])
def test_a_mask_to_both_sides_has_exact_offsets_too(backend):
    *rows, d_out = operands()
    run = lambda start: results(backend, *rows, d_out, scoring_at(start, BIASES["alibi"], mask=Mask(causal=False)))
    same(run(STARTS[-1]), run(0))


@pytest.mark.parametrize(
    ("backend", "queries"),
    [
        ("reference", T),
        ("chunked", T),
        *(pytest.param(name, 1, marks=pytest.mark.full) for name in ("reference", "chunked")),
        *(pytest.param(name, n, marks=pytest.mark.full) for name in ("rows", "pallas_tpu") for n in (1, T)),
        *(pytest.param("pallas_gpu", n, marks=pytest.mark.hopper) for n in (1, T)),
    ],
)
def test_fire_has_exact_distances_where_its_normaliser_is_rounded(backend, queries):
    *rows, d_out = operands(queries)
    for start in STARTS:
        scoring = scoring_at(start, BIASES["fire"], queries)
        same(results(backend, *rows, d_out, scoring), in_float64(*rows, d_out, scoring), 1e-4)


@pytest.mark.parametrize("backend", ["reference", "chunked", pytest.param("pallas_tpu", marks=pytest.mark.full)])
def test_keys_near_the_query_are_exact_beside_some_at_the_front(backend):
    """Keys 2^26 tokens back get float32's rounding of the distance; their neighbours' distances stay whole."""
    *rows, d_out = operands()
    bias = biases.KerpleLog(SLOPES, SLOPES)
    far = results(backend, *rows, d_out, scoring_at(2**26 + 3, bias, far=True))
    same(far, in_float64(*rows, d_out, scoring_at(2**26 + 3, bias, far=True)), 1e-4)


def test_bounds_leave_no_near_key_out_far_from_the_first_query():
    """Positions far from a row's first query are rounded: here by 128 between the last query and keys before its block."""
    first, start = 3, 2**30 + 64 - 32
    q, k, v, _ = (x[:1] for x in operands(2))
    keys = Tokens(start + jnp.arange(S, dtype=jnp.int32)[None])
    queries = Tokens(jnp.asarray([[first, start + S - 1]], jnp.int32))
    bias = biases.ALiBi(np.full(H, 0.5, np.float32))
    tiling = Tiling(block_q=1, block_k=4)
    both = attention(q, k, v, Scoring(bias, queries, keys), backend="chunked", tiling=tiling)
    alone = attention(q[:, 1:], k, v, Scoring(bias, Tokens(queries.position[:, 1:]), keys), backend="reference")
    np.testing.assert_allclose(both[:, 1:], alone, atol=1e-5)


def test_a_cache_decodes_far_tokens_as_near_ones():
    q, k, v, _ = operands(S)

    def decoded(start):
        position = start + jnp.arange(S, dtype=jnp.int32)[None]
        part = lambda at: Tokens(position[:, at])
        prompt = slice(0, S - 3)
        cache = Cache.empty(k[:, prompt], part(prompt), S).append(k[:, prompt], v[:, prompt], part(prompt))
        outs = []
        for n in range(S - 3, S):
            at = slice(n, n + 1)
            cache = cache.append(k[:, at], v[:, at], part(at))
            outs.append(attention(q[:, at], cache.k, cache.v, Scoring(BIASES["ggd"], part(at), cache.tokens)))
        return jnp.concatenate(outs, 1)

    expected = decoded(0)
    for start in STARTS:
        same(decoded(start), expected)


def test_a_ring_has_exact_offsets():
    if jax.device_count() < 4:
        pytest.skip("needs four devices")
    mesh = jax.make_mesh((4,), ("context",), devices=jax.devices()[:4], axis_types=(AxisType.Auto,))
    text = P(None, "context")
    backend = zigzag(ring(BACKENDS["chunked"], "context"), "context")
    spec = Scoring(biases.ALiBi(P()), Tokens(text), Tokens(text))
    attend = jax.jit(
        jax.shard_map(
            functools.partial(attention, backend=backend), mesh=mesh, in_specs=(text, text, text, spec), out_specs=text
        )
    )
    q, k, v, _ = operands(S)
    at = lambda start: Tokens(start + jnp.arange(S, dtype=jnp.int32)[None])
    around = lambda start: attend(q, k, v, Scoring(BIASES["alibi"], at(start), at(start)))
    same(around(STARTS[-1]), around(0))
