"""The cache: slots are written from the front, and attention over them is attention over what was written."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Cache, Mask, Scoring, Tiling, Tokens, attention
from bam_jax.attention import cache as caches
from bam_jax.attention.cpu import chunked
from bam_jax.attention.logits import skipping
from bam_jax.attention.logits.extents import key_norms, summarize

B, T, H, K, D = 2, 7, 4, 2, 4


@pytest.fixture
def row(rng):
    """q, k, v, and key coordinates (high [B, H, T], low [1, 1, T])."""
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return draw(B, T, H, D), draw(B, T, K, D), draw(B, T, K, D), (draw(B, H, T), draw(1, 1, T))


def piece(row, at):
    _, k, v, own = row
    tokens = Tokens(jnp.arange(T, dtype=jnp.int32)[None, at], coordinate=jax.tree.map(lambda x: x[..., at], own))
    return k[:, at], v[:, at], tokens


def test_pieces_lie_one_behind_another(row, monkeypatch):
    monkeypatch.setattr(caches, "BLOCK", 3)
    cache = Cache.empty(row[1], piece(row, slice(0, 1))[2], 9)
    assert jax.tree.map(lambda x: not x.any(), cache.last_coordinate()) == (True, True)
    for at in (slice(0, 3), slice(3, 6), slice(6, 7)):
        cache = Cache.append(cache, *piece(row, at))
        jax.tree.map(
            lambda last, x, at=at: np.testing.assert_array_equal(last[..., 0], x[..., at.stop - 1]),
            cache.last_coordinate(),
            row[3],
        )
    assert cache.length == T
    np.testing.assert_array_equal(cache.k[:, :T], row[1])
    np.testing.assert_array_equal(cache.v[:, :T], row[2])
    np.testing.assert_array_equal(cache.tokens.position[0], [*range(T), EMPTY, EMPTY])
    assert not cache.k[:, T:].any()
    assert_bounds(cache, exact=True)


def test_what_a_cache_does_not_hold_is_refused(row):
    k, v, tokens = piece(row, slice(0, 3))
    cache = Cache.empty(k, tokens, 9)
    with pytest.raises(ValueError, match="one document a row: tokens have no segment"):
        cache.append(k, v, dataclasses.replace(tokens, segment=jnp.array([[1, 2, 2]])))
    for keys, values in ((k, v[..., :2]), (k[:, :, :1], v), (k[..., :2], v[..., :2])):
        with pytest.raises(ValueError, match=r"a cache \(2, 9, 2, 4\) holds neither keys .* nor values"):
            cache.append(keys, values, tokens)


@pytest.mark.parametrize("mask", [Mask(), Mask(window=3)])
@pytest.mark.parametrize("backend", ["reference", "chunked", pytest.param("pallas_tpu", marks=pytest.mark.full)])
def test_decoding_is_the_full_pass(backend, mask, row):
    q, k, _, _ = row
    whole = piece(row, slice(0, T))[2]
    cache = Cache.empty(k, whole, 9)
    full = attention(q, k, row[2], Scoring(biases.Difference(), whole, whole, mask=mask), backend=backend)
    for t in range(T):
        cache = cache.append(*piece(row, slice(t, t + 1)))
        scoring = Scoring(biases.Difference(), piece(row, slice(t, t + 1))[2], cache.tokens, mask=mask)
        out = attention(q[:, t : t + 1], cache.k, cache.v, scoring, backend=backend)
        np.testing.assert_allclose(out, full[:, t : t + 1], atol=1e-6)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        ("chunked", "bfloat16"),
        ("reference", "float64"),
        *(pytest.param(*case, marks=pytest.mark.full) for case in (("chunked", "float64"), ("rows", "float32"))),
    ],
)
def test_decoding_and_its_gradient_under_64_bits(backend, dtype, x64):
    """Indices are int64 by default there, and may meet some of int32."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, B, 6, 4, 8)).astype(dtype)
    k, v = k[:, :, :2], v[:, :, :2]
    prior = biases.GeneralisedGaussian(*(jnp.full(4, x) for x in (0.5, -1.0, 0.3)))  # of float64
    at = lambda first, stop: Tokens(jnp.arange(first, stop)[None])

    @jax.jit
    def last_two(q, k, v, prior):
        attend = lambda n, tokens, cache: attention(
            q[:, n : n + 1], cache.k, cache.v, Scoring(prior, tokens, cache.tokens), backend=backend
        )
        cache = Cache.empty(k, at(0, 6), 6).append(k[:, :4], v[:, :4], at(0, 4))
        outs = []
        for n in (4, 5):
            cache = cache.append(k[:, n : n + 1], v[:, n : n + 1], at(n, n + 1))
            outs.append(attend(n, at(n, n + 1), cache))
        return jnp.concatenate(outs, 1)

    whole = lambda *x: attention(*x[:3], Scoring(x[3], at(0, 6), at(0, 6)), backend="reference")[:, 4:]
    loss = lambda run: lambda *x: (run(*x).astype(float) ** 2).sum()
    made, expected = (jax.value_and_grad(loss(run), range(4))(q, k, v, prior) for run in (last_two, whole))
    tolerance = 0.1 if dtype == "bfloat16" else 1e-5
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.float64(a), np.float64(b), atol=tolerance, rtol=0.1), made, expected
    )


def test_a_rewound_cache_goes_on_as_one_that_never_held_more(row):
    fresh = Cache.empty(row[1], piece(row, slice(0, 1))[2], 9).append(*piece(row, slice(0, 3)))
    cache = fresh.append(*piece(row, slice(3, 7))).rewound(3)
    np.testing.assert_array_equal(cache.tokens.position, fresh.tokens.position)
    jax.tree.map(np.testing.assert_array_equal, cache.last_coordinate(), fresh.last_coordinate())
    again, expected = (each.append(*piece(row, slice(5, 7))) for each in (cache, fresh))
    assert again.length == expected.length == 5
    np.testing.assert_array_equal(again.k[:, :5], expected.k[:, :5])
    np.testing.assert_array_equal(again.tokens.position, expected.tokens.position)


SLOTS, TILE = 46, 8
STEEP = biases.GeneralisedGaussian(jnp.ones(H), jnp.linspace(1.0, 3.0, H), jnp.zeros(H))


def without_summary(tokens):
    return dataclasses.replace(tokens, summary=None)


@jax.jit
def decoded(q, cache, position):
    """One query's output with the summary, by the reference without, and the tiles walked over with it and without."""
    outs, runs = [], []
    for tokens, backend in ((cache.tokens, "chunked"), (without_summary(cache.tokens), "reference")):
        scoring = Scoring(STEEP, Tokens(position), tokens)
        tiling = Tiling(block_q=1, block_k=TILE)
        outs.append(attention(q, cache.k, cache.v, scoring, backend=backend, tiling=tiling))
        padded = skipping.padded(scoring, 1, TILE)
        runs.append(skipping.runs(q, cache.k, padded, "exact", 1, TILE, cache.v)[0].length)
    return *outs, *runs


@jax.jit
def summed_up(cache):
    norm = key_norms(cache.k, cache.v, jnp.float32)
    return summarize(without_summary(cache.tokens), norm, cache.tokens.summary.block)


append, rewound = jax.jit(Cache.append), jax.jit(Cache.rewound)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 12))])
def test_decoding_with_a_summary_is_decoding_without(seed, monkeypatch):
    """Pieces of all lengths, pads on the left, cuts anywhere, keys of all lengths, and what is not finite here and there."""
    monkeypatch.setattr(caches, "BLOCK", 4)
    rng = np.random.default_rng(seed)
    draw = lambda *shape: np.asarray(rng.normal(size=shape), np.float32)
    pads = np.array([0, rng.integers(0, 12)])
    cache = Cache.empty(jnp.zeros((B, 1, K, D)), Tokens(jnp.zeros((B, 1), jnp.int32)), SLOTS)
    slots = cache.k.shape[1]
    assert slots == SLOTS + 2  # whole blocks
    cut = False
    for _ in range(14):
        held = int(cache.length)
        if held > 8 and rng.random() < 0.25:
            cut, held = True, int(rng.integers(1, held))
            cache = rewound(cache, held)
        count = int(rng.choice([1, 9]))
        if held + count > slots:
            break
        k, v = draw(B, count, K, D) * rng.choice([0.1, 1, 5], (B, count, K, 1)), draw(B, count, K, D)
        if rng.random() < 0.2:
            at = rng.integers(B), rng.integers(count), rng.integers(K), rng.integers(D)
            (k if rng.random() < 0.5 else v)[at] = rng.choice([np.nan, np.inf])
        at = np.arange(held, held + count)[None] - pads[:, None]
        position = jnp.asarray(np.where(at < 0, EMPTY, at), jnp.int32)
        cache = append(cache, jnp.asarray(k, jnp.float32), jnp.asarray(v), Tokens(position))
        out, expected, walked, without = decoded(draw(B, 1, H, D), cache, position[:, -1:])
        np.testing.assert_allclose(out, expected, atol=2e-6)
        assert (walked == without).all() if not cut else (walked >= without).all()
        assert_bounds(cache, exact=not cut)


def assert_bounds(cache, *, exact):
    """The summary knows every token that is there, and its norms are, or bound, those of the keys."""
    known = cache.tokens.summary
    whole = summed_up(cache)
    np.testing.assert_array_equal(known.first, whole.first)
    np.testing.assert_array_equal(known.last, whole.last)
    jax.tree.map(np.testing.assert_array_equal, (known.lowest, known.highest), (whole.lowest, whole.highest))
    if exact:
        np.testing.assert_array_equal(known.norm, whole.norm)
    assert ((known.norm >= whole.norm) | np.isnan(known.norm)).all()


@pytest.mark.parametrize("queries", [1, pytest.param(5, marks=pytest.mark.full)])
def test_heads_one_by_one_have_their_part_of_the_summary(queries, row, monkeypatch):
    """As long prompts are read, with coordinates of each head and of all."""
    monkeypatch.setattr(caches, "BLOCK", 4)
    monkeypatch.setattr(chunked, "_TABLE", 1)
    whole = piece(row, slice(0, T))[2]
    cache = Cache.empty(row[1], whole, 8).append(*piece(row, slice(0, T)))
    seen = piece(row, slice(T - queries, T))[2]
    q = row[0][:, T - queries :]
    full = attention(q, *row[1:3], Scoring(biases.Difference(), seen, whole), backend="reference")
    scoring = Scoring(biases.Difference(), seen, cache.tokens)
    tiling = Tiling(block_q=2, block_k=4)
    out = attention(q, cache.k, cache.v, scoring, backend="chunked", tiling=tiling)
    np.testing.assert_allclose(out, full, atol=1e-6)


def test_a_step_of_decoding_copies_no_cache():
    """Whatever the number of slots that is asked for; nothing but a few tiles is in memory beside the cache."""
    slots, width = 5000, 64
    shape = lambda *sizes, of=jnp.float32: jax.ShapeDtypeStruct(sizes, of)
    row, position = shape(1, 1, K, width), shape(1, 1, of=jnp.int32)
    cache = jax.eval_shape(lambda k, at: Cache.empty(k, Tokens(at), slots), row, position)

    def step(cache, q, k, v, position):
        cache = cache.append(k, v, Tokens(position))
        scoring = Scoring(STEEP, Tokens(position), cache.tokens)
        return attention(q, cache.k, cache.v, scoring, backend="chunked"), cache

    compiled = jax.jit(step, donate_argnums=0).lower(cache, shape(1, 1, H, width), row, row, position).compile()
    memory = compiled.memory_analysis()
    size = 4 * 2 * cache.k.shape[1] * K * width
    assert memory.alias_size_in_bytes > size
    assert memory.temp_size_in_bytes < size / 10


@pytest.mark.full
def test_caches_of_many_layers_are_mapped(row):
    """As one cache with an axis of layers, by `jax.vmap` and by `jax.lax.scan`."""
    q, k, v, _ = row
    tokens = Tokens(jnp.arange(T, dtype=jnp.int32)[None])
    cache = Cache.empty(k, tokens, 9)

    def layer(cache, scale):
        cache = cache.append(scale * k, v, tokens)
        return attention(q[:, -1:], cache.k, cache.v, Scoring(STEEP, Tokens(tokens.position[:, -1:]), cache.tokens))

    scales = jnp.array([1.0, 2.0])
    one_by_one = [layer(cache, scale) for scale in scales]
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), cache)
    np.testing.assert_allclose(jax.vmap(layer)(stacked, scales), one_by_one, atol=1e-6)
    _, scanned = jax.lax.scan(lambda _, layers: (None, layer(*layers)), None, (stacked, scales))
    np.testing.assert_allclose(scanned, one_by_one, atol=1e-6)
    slope = jax.grad(lambda scale: layer(cache, scale).sum())(0.0)  # keys of zeros, whose norms have no gradient
    assert np.isfinite(slope)
