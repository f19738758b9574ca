"""Tiles that are left out lack nothing that could be seen in the result."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bam_jax import biases
from bam_jax.attention import EMPTY, Mask, Scoring, Tiling, Tokens, attention
from bam_jax.attention.logits import skipping
from bam_jax.attention.logits.mask import visible
from bam_jax.attention.logits.scoring import bias_table
from bam_jax.biases.base import bias
from tests.attention.common import close, normals, slopes
from tests.marks import full

B, T, H, D = 2, 48, 2, 4
PRIORS = {
    "alibi": biases.ALiBi(jnp.array([3.0, 40.0])),
    "ggd": biases.GeneralisedGaussian(jnp.array([1.5, -0.5]), jnp.array([2.0, 0.0]), jnp.array([1.0, 0.0])),
    "rising": biases.ALiBi(jnp.array([-30.0, -20.0])),
}


MASKS = {"causal": Mask(), "bidirectional": Mask(causal=False), "window": Mask(window=9)}
CASES = [("chunked", *case) for case in itertools.product(PRIORS, [None, (0.0, 3.0), (-1.0, 1.0)], MASKS)]
CASES = [case if n % 5 == 0 else full(*case) for n, case in enumerate(CASES)]
CASES += [("pallas_tpu", "alibi", (0.0, 3.0), "causal"), ("pallas_tpu", "ggd", None, "bidirectional")]


@functools.partial(jax.jit, static_argnums=(0, 1))
def results(backend, mask, tokens, *operands):
    """Output and gradients; cases that differ in numbers alone are compiled once."""

    def run(q, k, v, bias, temperature):
        scoring = Scoring(bias, tokens, tokens, temperature, mask)
        return attention(q, k, v, scoring, backend=backend, tiling=Tiling(block_q=8, block_k=8))

    return slopes(run, *operands)


@pytest.mark.parametrize(("backend", "prior", "temperature", "mask"), CASES)
def test_what_is_left_out_does_not_matter(backend, prior, temperature, mask, rng, x64):
    tokens = Tokens(jnp.arange(T)[None], jnp.asarray(np.repeat([[1, 2]], T // 2, axis=1)))
    heat = jnp.asarray(rng.uniform(*temperature, (1, H, T))) if temperature else None
    operands = *normals(rng, *[(B, T, H, D)] * 3), PRIORS[prior], heat

    def run(backend, dtype):
        return results(backend, MASKS[mask], tokens, *jax.tree.map(lambda x: x.astype(dtype), operands))

    dtype, tolerance = ("float32", 1e-4) if backend == "pallas_tpu" else ("float64", 1e-7)
    close(run(backend, dtype), run("reference", "float64"), tolerance)


FACTORS = {
    "prior": st.sampled_from(sorted(PRIORS)),
    "mask": st.sampled_from(sorted(MASKS)),
    "skip": st.sampled_from(["exact", 1e-3, 0.3]),
    "size": st.sampled_from([0.1, 1.0, 10.0]),
    "temperature": st.sampled_from([None, (0.0, 5.0), (-1.0, 1.0)]),
    "soft_cap": st.sampled_from([None, 0.5, 5.0]),
    "cut": st.integers(0, T),
    "empty": st.sampled_from([0, 3, 9]),
    "seed": st.integers(0, 9),
}


@functools.partial(jax.jit, static_argnums=(3, 4))
def needed_tiles(q, k, scoring, skip, block):
    return skipping.needed(q, k, skipping.padded(scoring, block, block), skip, block, block)


@pytest.mark.full
@settings(max_examples=30)
@given(**FACTORS)
def test_what_is_left_out_is_lighter_than_its_share(prior, mask, skip, size, temperature, soft_cap, cut, empty, seed):
    """Against all weights in float64: also for long vectors that point the same way, and rows that nothing divides."""
    rng = np.random.default_rng(seed)
    length, block = T - empty, 8
    towards = rng.normal(size=D)
    draw = lambda: size * (rng.normal(size=(B, length, H, D)) + rng.choice([0, -3, 3]) * towards)
    q, k = jnp.asarray(draw(), jnp.float32), jnp.asarray(draw(), jnp.float32)
    segment = 1 + (np.arange(length) >= cut)[None]
    tokens = Tokens(jnp.arange(length)[None], jnp.asarray(segment))
    if temperature is not None:
        temperature = jnp.asarray(rng.uniform(*temperature, (1, H, length)), jnp.float32)
    scoring = Scoring(PRIORS[prior], tokens, tokens, temperature, MASKS[mask], soft_cap=soft_cap)
    needed = np.asarray(needed_tiles(q, k, scoring, skip, block))
    kept = needed.repeat(block, 1).repeat(block, 2)[:, :length, :length]

    bias = np.asarray(bias_table(scoring, jnp.float32), float)
    content = np.einsum("bthd,bshd->bhts", np.float64(q), np.float64(k)) / np.sqrt(D)
    content = content if soft_cap is None else soft_cap * np.tanh(content / soft_cap)
    logits = content + bias
    logits = logits if temperature is None else logits * np.float64(temperature)[..., None]
    logits = np.where(visible(tokens, tokens, scoring.mask)[:, None], logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    lost = np.where(kept[None], 0, weights).sum(-1) / weights.sum(-1)
    assert lost.max() < (2**-24 if skip == "exact" else skip)


@pytest.mark.parametrize("backend", ["chunked", "pallas_tpu"])
def at_the_edge(q, k, slope, soft_cap=None):
    """Half of the keys lie one off the queries, the others at them, in two tiles."""
    block = q.shape[1]
    distance = jnp.repeat(jnp.array([1.0, 0.0]), block)[None, None]
    near, far = jnp.zeros((1, 1, block)), distance
    tokens = (Tokens(jnp.arange(x.shape[2])[None], coordinate=x) for x in (near, far))
    scoring = Scoring(biases.ALiBi(jnp.array([slope])), *tokens, mask=Mask(causal=False), soft_cap=soft_cap)
    return scoring, needed_tiles(q, k, scoring, "exact", block).tolist()


@pytest.mark.parametrize("backend", ["chunked", "pallas_tpu"])
def test_queries_are_rounded_to_nothing_that_the_bound_does_not_know(backend):
    """Content of a thousand nats, in heads whose root is no power of two, against a prior that is barely steep enough."""
    width, keys, block = 128, 16, 8
    numbers = np.arange(1, 2, 2**-7)  # all of bfloat16 there
    divided = numbers / np.sqrt(width)
    number = numbers[np.argmax(np.float64(divided.astype(jnp.bfloat16)) / divided)]  # would be rounded up most
    sign = np.repeat([1.0, -1.0], block)[None, :, None, None]
    q = jnp.full((1, block, 1, width), number, jnp.bfloat16)
    k = jnp.asarray(np.repeat(sign, width, -1) * 1000 / number / np.sqrt(width), jnp.bfloat16)
    content = float((np.float64(q)[0, 0, 0] * np.float64(k)[0, 0, 0]).sum() / np.sqrt(width))
    scoring, needed = at_the_edge(q, k, (2 * content + np.log(keys) + 24 * np.log(2)) * (1 + 1e-5))
    assert needed == [[[False, True]]]
    v = jnp.broadcast_to(sign > 0, k.shape).astype(jnp.bfloat16)  # 1 for far keys
    tiling = Tiling(block_q=block, block_k=block, skip="off")
    lost = attention(q, k, v, scoring, backend=backend, tiling=tiling)
    assert 0 < np.float64(lost).max() < 2**-24


@pytest.mark.parametrize("steeper", [False, True])
def test_a_soft_cap_bounds_content_by_no_less_than_itself(steeper):
    """Far keys at the cap, near ones at minus the cap; the prior is at the edge of what it takes to leave them out."""
    keys, block, cap = 16, 8, 3.0
    q, k = jnp.full((1, block, 1, 1), 100.0), jnp.repeat(jnp.array([1.0, -1.0]), block)[None, :, None, None]
    slope = (2 * cap + np.log(keys) + 24 * np.log(2)) * (1.001 if steeper else 0.999)
    assert at_the_edge(q, k, slope, cap)[1] == [[[not steeper, True]]]


@bias
class Peak(biases.Monotone):
    """A Laplace prior of any height, the mode some tokens before the query."""

    slope: jax.Array
    height: jax.Array
    back: jax.Array

    def __call__(self, i, j):
        return self.height - self.slope * jnp.abs(j - i + self.back)

    def centre(self):
        return -self.back


REACHED = jax.jit(lambda *x: skipping.within_reach(*x).any(), static_argnums=(4, 5))


def reached(slope, height, back, temperature, towards, seed, end=T // 3):
    """Whether far keys are said to be needed beside near ones, and the largest share that they have of a row, in nats."""
    rng = np.random.default_rng(seed)
    near, far = slice(2 * T // 3, T), slice(0, end)
    q, k = rng.normal(size=(B, T, H, D)), rng.normal(size=(B, T, H, D))
    if towards:  # the far keys are what the queries look for
        q[:], k[:], k[:, far] = 2 * q[0, 0], 0, 2 * q[0, 0]
    factors = -np.sort(-rng.uniform(*temperature, (1, H, T)))  # the rows next to the far keys are the hottest
    prior = Peak(*(np.full(H, x) for x in (slope, height, back)))
    i, j = np.arange(T)[near, None], np.arange(T)[None]
    logits = np.einsum("bthd,bshd->bhts", q[:, near], k) / np.sqrt(D) + height - slope * np.abs(j - i + back)
    logits = np.where(j <= i, logits * factors[..., near, None], -np.inf)
    lse = np.logaddexp.reduce(logits[..., near], -1)
    parts = Tokens(np.arange(T)[None, near]), Tokens(np.arange(T)[None, far])
    said = REACHED(q[:, near], k[:, far], Scoring(prior, *parts, factors[..., near]), lse, 1e-3, T)
    return bool(said), (np.logaddexp.reduce(logits[..., far], -1) - lse).max()


def test_keys_that_do_not_reach_hold_less_than_their_share(x64):
    """Whatever the signs of biases and temperatures."""
    temperatures = (1.0, 1.0), (0.001, 1.0), (0.5, 2.0), (-1.0, 1.0), (-2.0, -0.5)
    settings = (1.0, 5.0, 30.0), (-100.0, 0.0, 200.0), (0, 8), temperatures, (False, True), (T // 3, 2 * T // 3)
    for seed, (*prior, temperature, towards, end) in enumerate(itertools.product(*settings)):
        said, share = reached(*prior, temperature, towards, seed, end)
        assert said or share < np.log(1e-3), (prior, temperature, towards, end)
    assert not reached(8.0, 0.0, 0, (0.5, 2.0), False, 0)[0]
    assert not reached(8.0, 200.0, 0, (1.0, 1.0), False, 0)[0]
    assert reached(0.06, 0.0, 0, (0.5, 2.0), False, 0)[0]


def test_counts_of_tiles():
    tokens = Tokens(jnp.arange(T)[None])
    x = jnp.ones((B, T, H, D))
    scoring = Scoring(biases.ALiBi(jnp.array([10.0, 0.01])), tokens, tokens)
    for skip, expected in (("exact", [18, 21]), (1e-2, [15, 21]), ("off", [21, 21])):
        assert skipping.Runs.of(needed_tiles(x, x, scoring, skip, 8)).length.sum(-1).tolist() == expected  # of 36
    first, count = skipping.Runs.of(needed_tiles(x, x, scoring, "exact", 8))
    assert first.tolist() == [[0, 0, 0, 0, 1, 2], [0] * 6]
    assert (first + count == jnp.arange(1, T // 8 + 1)).all()


@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_one_long_key_keeps_no_other_tile(soft_cap):
    """Each tile has its own bound: only that of the long key is not left out, and under a soft cap no key is so long."""
    tokens = Tokens(jnp.arange(T)[None])
    x = jnp.ones((1, T, 1, D))
    scoring = Scoring(biases.ALiBi(jnp.array([20.0])), tokens, tokens, soft_cap=soft_cap)
    needed = needed_tiles(x, x.at[0, 3].mul(1e4), scoring, "exact", 8)[0]
    expected = np.tril(np.ones((6, 6), bool)) & ~np.tril(np.ones((6, 6), bool), -3)
    expected[:, 0] |= soft_cap is None
    np.testing.assert_array_equal(needed, expected)


@pytest.mark.parametrize("strip", [1, 2 * 6 * 4])
def test_strips_of_tiles_are_the_whole_table(strip, monkeypatch, rng):
    monkeypatch.setattr(skipping, "_STRIP", strip)
    tokens = Tokens(jnp.arange(T)[None], jnp.asarray(np.repeat([[1, 2]], T // 2, axis=1)))
    q, k = normals(rng, *[(B, T, H, D)] * 2)
    temperature = jnp.asarray(rng.uniform(0, 2, (B, H, T)), jnp.float32)
    scoring = Scoring(biases.ALiBi(jnp.array([10.0, 0.1])), tokens, tokens, temperature)
    needed = skipping.needed(q, k, scoring, "exact", 8, 8)
    made = skipping.runs(q, k, scoring, "exact", 8, 8)
    jax.tree.map(np.testing.assert_array_equal, made[0], skipping.Runs.of(needed))
    jax.tree.map(np.testing.assert_array_equal, made[1], skipping.Runs.of(needed.swapaxes(1, 2)))


@pytest.mark.parametrize("strip", [1, 2**20])
@pytest.mark.parametrize("mask", [Mask(), Mask(window=26), Mask(causal=False)])
def test_runs_of_tiles_without_a_hidden_pair(mask, strip, monkeypatch, rng):
    """The first run of each row and column of tiles: two documents, and an empty slot in one of two rows."""
    monkeypatch.setattr(skipping, "_STRIP", strip)
    position = np.stack([np.arange(T), np.arange(T) - 1])
    position[1, 0] = EMPTY
    tokens = Tokens(jnp.asarray(position, jnp.int32), jnp.asarray(1 + (np.arange(T) >= [[40], [40]]), jnp.int32))
    scoring = Scoring(biases.Uniform(), tokens, tokens, mask=mask)
    q, k = normals(rng, *[(B, T, H, D)] * 2)
    in_tiles = lambda seen: np.asarray(seen.all(0)).reshape(6, 8, 6, 8).all((1, 3))
    seen = visible(tokens, tokens, mask)
    whole = in_tiles(seen)
    assert 0 < whole.sum() < 21
    both = skipping.whole_runs(q, k, scoring, 8, 8)
    for made, table in zip(both, (whole, whole.T), strict=True):
        for row, first, length in zip(table, made.first[0], made.length[0], strict=True):
            expected = [*itertools.takewhile(lambda m: row[m], range(int(row.argmax()), 6))]  # noqa: B023
            assert [*range(first, first + length)] == expected


@pytest.mark.parametrize("mask", [Mask(), Mask(window=13), Mask(causal=False), Mask(causal=False, window=9)])
@pytest.mark.parametrize(
    ("queries", "keys", "start"),
    [(48, 48, 0), (30, 50, 20), (30, 50, 3), (30, 50, 14), (48, 50, 2), (20, 41, 60), (20, 41, -30), (1, 41, 40)],
)
def test_runs_of_slots_are_those_of_positions(mask, queries, keys, start, rng):
    """Tokens that promise to be consecutive: as many queries and keys, with queries so many slots behind the first key."""
    block_q, block_k = 8, 12
    q, k = normals(rng, (B, queries, H, D), (B, keys, H, D))

    def both(consecutive):
        tokens = lambda first, length: Tokens(100 + first + jnp.arange(length)[None], consecutive=consecutive)
        scoring = Scoring(biases.Uniform(), tokens(start, queries), tokens(0, keys), mask=mask)
        whole = skipping.padded(scoring, block_q, block_k)
        runs = skipping.runs(q, k, whole, "off", block_q, block_k)
        return *runs, *skipping.whole_runs(q, k, whole, block_q, block_k)

    for made, expected in zip(both(True), both(False), strict=True):
        assert made.length.dtype == made.first.dtype == jnp.int32
        np.testing.assert_array_equal(made.length, expected.length, strict=True)
        some = expected.length > 0
        np.testing.assert_array_equal(made.first[some], expected.first[some])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=False), Mask(window=13)])
def test_runs_of_slots_heed_empty_ones(mask, wide, rng):
    """One row begins with empty slots, one ends with them and one has nothing else: needed are at least the tiles with a pair."""
    position = np.arange(T) + 5
    filled = np.stack([np.arange(T) >= 3, np.arange(T) < 40, np.zeros(T, bool)])
    q, k = normals(rng, *[(3, T, H, D)] * 2)
    with jax.enable_x64(wide):
        tokens = Tokens(jnp.asarray(np.where(filled, position, EMPTY)), consecutive=True)
        scoring = Scoring(biases.Uniform(), tokens, tokens, mask=mask)
        both = skipping.runs(q, k, scoring, "off", 8, 8)[0], skipping.whole_runs(q, k, scoring, 8, 8)[0]
        runs, whole = jax.tree.map(np.asarray, both)
        seen = np.asarray(visible(tokens, tokens, mask)).reshape(3, 6, 8, 6, 8)
        assert int(tokens.start) == 5
    assert runs.length.dtype == whole.length.dtype == np.int32
    walked = lambda runs, n: (np.arange(6) >= runs.first[0, n]) & (np.arange(6) < runs.first[0, n] + runs.length[0, n])
    for n in range(6):
        assert (walked(runs, n) >= seen.any((0, 2, 4))[n]).all()
        assert (walked(whole, n) <= seen.all((0, 2, 4))[n]).all()


def test_bounds_leave_no_near_key_out_far_from_the_first_query(rng):
    """Positions far from a row's first query are rounded: here by 128 between the last query and keys before its block."""
    start = 2**30 + 64 - 32
    q, k, v = normals(rng, (1, 2, H, D), (1, T, H, D), (1, T, H, D))
    keys, queries = Tokens(start + jnp.arange(T)[None]), jnp.asarray([[3, start + T - 1]])
    bias, tiling = biases.ALiBi(jnp.full(H, 0.5)), Tiling(block_q=1, block_k=4)
    both = attention(q, k, v, Scoring(bias, Tokens(queries), keys), backend="chunked", tiling=tiling)
    alone = attention(q[:, 1:], k, v, Scoring(bias, Tokens(queries[:, 1:]), keys), backend="reference")
    np.testing.assert_allclose(both[:, 1:], alone, atol=1e-5)


def test_no_table_of_tiles_is_in_memory():
    """At half a million tokens and sixteen heads, where it would have a quarter of a billion tiles."""
    length, heads, block = 2**19, 16, 128

    def runs(q, k, bias, position):
        tokens = Tokens(position)
        return skipping.runs(q, k, Scoring(bias, tokens, tokens), "exact", block, block)

    x = jax.ShapeDtypeStruct((1, length, heads, 8), jnp.bfloat16)
    bias = biases.GeneralisedGaussian(*[jax.ShapeDtypeStruct((heads,), jnp.float32)] * 3)
    compiled = jax.jit(runs).lower(x, x, bias, jax.ShapeDtypeStruct((1, length), jnp.int32)).compile()
    norms = 4 * length * heads  # of one side, that must be there before the largest of each block are
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * norms + 2**20
