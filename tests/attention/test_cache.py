"""The cache: slots are written from the front, and attention over them is attention over what was written."""

import dataclasses
import itertools

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
from tests.attention.common import close, normals
from tests.marks import full, longest

B, T, H, K, D = 2, 7, 4, 2, 4


@pytest.fixture
def row(rng):
    """q, k, v, and key coordinates (high [B, H, T], low [1, 1, T])."""
    q, k, v, *own = normals(rng, (B, T, H, D), (B, T, K, D), (B, T, K, D), (B, H, T), (1, 1, T))
    return q, k, v, tuple(own)


def piece(row, at):
    _, k, v, own = row
    tokens = Tokens(jnp.arange(T, dtype=jnp.int32)[None, at], coordinate=jax.tree.map(lambda x: x[..., at], own))
    return k[:, at], v[:, at], tokens


def test_what_a_cache_does_not_hold_is_refused(row):
    k, v, tokens = piece(row, slice(0, 3))
    cache = Cache.empty(k, tokens, 9)
    with pytest.raises(ValueError, match="one document a row: tokens have no segment"):
        cache.append(k, v, dataclasses.replace(tokens, segment=jnp.array([[1, 2, 2]])))
    for keys, values in ((k, v[..., :2]), (k[:, :, :1], v), (k[..., :2], v[..., :2])):
        with pytest.raises(ValueError, match=r"a cache \(2, 9, 2, 4\) does not hold keys .* with values"):
            cache.append(keys, values, tokens)


CASES = [("chunked", None, True, 0), ("chunked", 3, False, 0), ("chunked", None, False, 2**30 + 5)]
OTHERS = list(itertools.product(("reference", "rows", "pallas_tpu"), (None, 3), (False, True), (0, 9)))
CASES += [(longest if n % 3 else full)(*case) for n, case in enumerate(OTHERS)]


@pytest.mark.parametrize(("backend", "window", "x64", "start"), CASES)
def test_decoding_and_its_gradient_are_those_of_the_full_pass(backend, window, x64, start, row, monkeypatch):
    """With coordinates of each head and of all; or far from the front, with offsets of positions.

    Under 64 bits indices are int64 by default, and may meet some of int32. Heads come one by one, as long prompts are read.
    """
    monkeypatch.setattr(caches, "BLOCK", 4)
    monkeypatch.setattr(chunked, "_TABLE", 1)

    def tokens_of(own, first, stop):
        position = jnp.arange(first, stop, dtype=jnp.int32)[None]
        return Tokens(start + position, coordinate=None if start else jax.tree.map(lambda x: x[..., first:stop], own))

    def attend(q, k, v, queries, keys, backend):
        bias = biases.ALiBi(jnp.full(H, 0.5)) if start else biases.Difference()
        scoring = Scoring(bias, queries, keys, mask=Mask(window=window))
        return attention(q, k, v, scoring, backend=backend, tiling=Tiling(block_q=2, block_k=4))

    @jax.jit
    def last(q, k, v, own):
        cut = lambda *at: (k[:, slice(*at)], v[:, slice(*at)], tokens_of(own, *at))
        cache = Cache.empty(k, tokens_of(own, 0, T), 8).append(*cut(0, T - 4)).append(*cut(T - 4, T - 1))
        outs = [attend(q[:, T - 4 : T - 1], cache.k, cache.v, tokens_of(own, T - 4, T - 1), cache.tokens, backend)]
        cache = cache.append(*cut(T - 1, T))
        outs.append(attend(q[:, T - 1 :], cache.k, cache.v, tokens_of(own, T - 1, T), cache.tokens, backend))
        return jnp.concatenate(outs, 1)

    @jax.jit
    def whole(q, k, v, own):
        tokens = tokens_of(own, 0, T)
        return attend(q, k, v, tokens, tokens, "reference")[:, T - 4 :]

    loss = lambda run: lambda *x: (((out := run(*x)).astype(float) ** 2).sum(), out)
    with jax.enable_x64(x64):
        close(*(jax.value_and_grad(loss(run), range(4), has_aux=True)(*row) for run in (last, whole)))


def test_a_rewound_cache_goes_on_as_one_that_never_held_more(row):
    fresh = Cache.empty(row[1], piece(row, slice(0, 1))[2], 9)
    assert jax.tree.map(lambda x: not x.any(), fresh.last_coordinate()) == (True, True)
    fresh = fresh.append(*piece(row, slice(0, 3)))
    cache = fresh.append(*piece(row, slice(3, 7))).rewound(3)
    np.testing.assert_array_equal(cache.tokens.position, fresh.tokens.position)
    for each in (cache, fresh):
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[..., 0], y[..., 2]), each.last_coordinate(), row[3])
    again, expected = (each.append(*piece(row, slice(5, 7))) for each in (cache, fresh))
    assert again.length == expected.length == 5
    np.testing.assert_array_equal(again.k[:, :5], expected.k[:, :5])
    np.testing.assert_array_equal(again.tokens.position, expected.tokens.position)


def test_a_cache_keeps_a_state_and_values_of_their_own_width(row):
    k, v, tokens = piece(row, slice(0, 3))
    state = (jnp.zeros((B, 2)), jnp.zeros(B, jnp.uint32))
    cache = Cache.empty(k, tokens, 9, v=v[..., :3], state=state)
    cache = cache.append(k, v[..., :3], tokens, jax.tree.map(lambda x: x + 5, state))
    assert (cache.k.shape, cache.v.shape) == ((B, 9, K, D), (B, 9, K, 3))
    assert cache.state[0].sum() == 5 * 2 * B
    assert not cache.rewound(1, state).state[0].any()
    for change in (lambda: cache.rewound(1), lambda: cache.append(k, v[..., :3], tokens)):
        with pytest.raises(ValueError, match="a cache has the state of its encoding .*; give it as state="):
            change()
    with pytest.raises(ValueError, match=r"a cache \(2, 9, 2, 4\), \(2, 9, 2, 3\) does not hold"):
        cache.append(k, v, tokens, state)


SLOTS, TILE = 46, 8
STEEP = biases.GeneralisedGaussian(jnp.ones(H), jnp.linspace(1.0, 3.0, H), jnp.zeros(H))


without_summary = lambda tokens: dataclasses.replace(tokens, summary=None)


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


@pytest.mark.parametrize("seed", [0, 1, *map(full, range(2, 12))])
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
