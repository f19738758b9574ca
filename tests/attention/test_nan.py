"""A row is NaN where something that it sees is, and only there."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import BACKENDS, EMPTY, Scoring, Tiling, Tokens, UniqueKeys, attention
from bam_jax.attention.logits.mask import visible
from bam_jax.attention.logits.merge import merge
from bam_jax.attention.logits.scoring import HIDDEN
from tests.attention.common import EACH, normals
from tests.marks import full

B, T, H, K, D = 2, 24, 4, 2, 4


@pytest.fixture
def case(rng):
    """Two documents, padding and an empty slot; a prior so steep that far tiles are left out."""
    position = jnp.arange(T)[None].repeat(B, 0).at[1, 5].set(EMPTY)
    segment = jnp.asarray([[1] * 20 + [2] * 3 + [0], [1] * T], jnp.int32)
    tokens = Tokens(position, segment, jnp.arange(float(T))[None, None])
    bias = biases.GeneralisedGaussian(jnp.ones(H), jnp.full(H, 3.0), jnp.zeros(H))
    scoring = Scoring(bias, tokens, tokens, jnp.ones((B, H, T)))
    return *normals(rng, (B, T, H, D), (B, T, K, D), (B, T, K, D)), scoring


def places(q, k, v, scoring):
    """(name, arguments with NaN in one place, which rows [B, T, H] see it)."""
    seen = np.asarray(visible(scoring.queries, scoring.keys, scoring.mask))
    some = np.broadcast_to(seen.any(2)[:, :, None], (B, T, H))
    of = lambda *at: np.isin(np.arange(some.size).reshape(some.shape), np.arange(some.size).reshape(some.shape)[at])
    replace = functools.partial(dataclasses.replace, scoring)
    for b, t in ((0, 0), (0, 13), (0, T - 1), (1, 5), (1, 20)):
        yield f"query {b} {t}", (q.at[b, t, 1, 2].set(jnp.nan), k, v, scoring), some & of(b, t, 1)
        hot = replace(temperature=scoring.temperature.at[b, 2, t].set(jnp.nan))
        yield f"temperature {b} {t}", (q, k, v, hot), some & of(b, t, 2)
        sees = np.zeros((B, T, H), bool)
        sees[b, :, 2:] = seen[b, :, t, None]
        yield f"key {b} {t}", (q, k.at[b, t, 1, 0].set(jnp.nan), v, scoring), sees
        for name, value in (("NaN", jnp.nan), ("infinity", -jnp.inf)):
            yield f"value {b} {t} {name}", (q, k, v.at[b, t, 1, 3].set(value), scoring), sees
    of_side = lambda tokens, t: dataclasses.replace(tokens, coordinate=tokens.coordinate.at[..., t].set(jnp.nan))
    for t in (2, 13):
        far = replace(queries=of_side(scoring.queries, t))
        yield f"query's coordinate {t}", (q, k, v, far), some & of(slice(None), t)
        far = replace(keys=of_side(scoring.keys, t))
        yield f"key's coordinate {t}", (q, k, v, far), seen[:, :, t, None].repeat(H, 2)
    for field in ("shape", "log_scale", "loc"):
        number = getattr(scoring.bias, field).at[0].set(jnp.nan)
        broken = replace(bias=dataclasses.replace(scoring.bias, **{field: number}))
        yield f"prior's {field}", (q, k, v, broken), some & of(slice(None), slice(None), 0)


@pytest.mark.parametrize("backend", EACH)
def test_a_row_is_nan_where_what_it_sees_is(backend, case, float32_on_gpus):
    tiling = Tiling() if backend == "pallas_gpu" else Tiling(block_q=4, block_k=4)

    @jax.jit
    def run(*arguments):
        out, lse = BACKENDS[backend].forward(*arguments, tiling)
        return out.astype(lse.dtype), lse

    whole, _ = map(np.asarray, run(*case))
    assert np.isfinite(whole).all()
    for name, arguments, sees in places(*case):
        out, lse = map(np.asarray, run(*arguments))
        np.testing.assert_array_equal(np.isnan(out), sees[..., None].repeat(D, -1), err_msg=name)
        np.testing.assert_array_equal(np.isnan(lse), sees.swapaxes(1, 2), err_msg=name)
        np.testing.assert_allclose(out[~sees], whole[~sees], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("backend", "far"), [("chunked", False), ("chunked", True), full("pallas_tpu", False)])
def test_one_query_is_nan_where_what_it_sees_is(backend, far, case):
    """As in decoding, where keys lie in slots that are not all filled, and values are looked at as they are read."""
    q, k, v, scoring = case
    last = lambda x: x[..., -1:]
    keys = dataclasses.replace(scoring.keys, segment=None)
    queries = Tokens(last(keys.position), None, last(keys.coordinate))
    alone = Scoring(biases.Uniform() if far else scoring.bias, queries, keys)
    run = jax.jit(lambda *operands: BACKENDS[backend].forward(*operands, alone, Tiling(block_q=1, block_k=8))[0])
    assert np.isfinite(run(q[:, -1:], k, v)).all()
    for slot, seen in ((3, True), (5, False), (T - 1, True)):  # slot 5 of row 1 is empty
        sees = np.zeros((B, 1, H, D), bool)
        sees[1, :, 2:] = seen
        for number in (jnp.nan, jnp.inf):
            np.testing.assert_array_equal(np.isnan(run(q[:, -1:], k, v.at[1, slot, 1, 2].set(number))), sees)
        np.testing.assert_array_equal(np.isnan(run(q[:, -1:], k.at[1, slot, 1, 2].set(jnp.nan), v)), sees)


@pytest.mark.parametrize("length", [1, 600])
@pytest.mark.parametrize(
    ("where", "soft_cap"), [("k", None), ("v", None), ("coordinate", None), ("k", 2.0), ("v", 2.0)]
)
def test_a_far_nan_of_a_long_row_is_seen(where, soft_cap, length, rng):
    """XLA's CPU backend loses NaN in the maximum of many numbers, and with it would be lost that a block is needed.

    A cap of logits caps no NaN.
    """
    q, k, v = normals(rng, (1, length, 2, 8), (1, 2000, 2, 8), (1, 2000, 2, 8))
    coordinate = jnp.arange(2000.0)[None, None]
    if where == "coordinate":
        coordinate = coordinate.at[..., 7].set(jnp.nan)
    if where == "k":
        k = k.at[0, 7, :, 3].set(jnp.nan)
    if where == "v":
        v = v.at[0, 7, :, 3].set(jnp.nan)
    position = jnp.arange(2000)[None]
    queries = Tokens(position[:, -length:], coordinate=jnp.arange(2000.0)[None, None, -length:])
    keys = Tokens(position, coordinate=coordinate)
    scoring = Scoring(biases.ALiBi(jnp.full(2, 5.0)), queries, keys, soft_cap=soft_cap)
    assert np.isnan(attention(q, k, v, scoring, backend="chunked", tiling=Tiling(block_k=128))).all()


@pytest.mark.parametrize("backend", ["chunked", full("pallas_tpu")])
def test_a_gradient_is_nan_where_what_it_is_made_of_is(backend, case):
    def loss(q, k, v, scoring, weights):
        return (attention(q, k, v, scoring, backend=backend, tiling=Tiling(block_q=4, block_k=4)) * weights).sum()

    slopes = jax.jit(jax.grad(loss, (0, 1, 2, 3), allow_int=True))
    weights = jnp.ones((B, T, H, D))
    for name, arguments, sees in places(*case):
        dq, dk, dv, d_scoring = slopes(*arguments, weights)
        assert np.isnan(dq).any(-1)[sees].all(), name
        for slope in (dk, dv, d_scoring.bias.shape, d_scoring.bias.log_scale, d_scoring.bias.loc):
            assert np.isnan(slope).any() or not sees.any(), name


def test_keys_that_are_counted_are_nan_for_those_who_see_them(rng):
    length, count = 128, 7
    of = np.sort(rng.integers(0, count - 1, (1, length)))[:, ::-1].copy()  # a kind's tokens follow one another
    of[0, -1] = count - 1
    k, v, q = normals(rng, (count, K, D), (count, K, D), (1, length, H, D))
    tokens = Tokens(jnp.arange(length)[None], kinds=UniqueKeys(jnp.asarray(of), count))
    scoring = Scoring(biases.Uniform(), tokens, tokens)
    run = jax.jit(functools.partial(attention, backend="chunked", tiling=Tiling(block_q=16, block_k=16)))
    for kind in (0, 3, count - 1):
        sees = np.maximum.accumulate(of[0] == kind)
        for keys, values in ((k.at[kind, 0, 0].set(jnp.nan), v), (k, v.at[kind, 0, 1].set(jnp.nan))):
            out = np.isnan(run(q, keys[of], values[of], scoring))
            np.testing.assert_array_equal(out[0, :, :2], sees[:, None, None].repeat(2, 1).repeat(D, 2))
            assert not out[0, :, 2:].any()


def test_parts_merge_to_nan_where_one_of_them_is():
    out = jnp.array([[[1.0], [2.0], [jnp.nan], [0.0]], [[3.0], [jnp.nan], [0.0], [0.0]]])
    lse = jnp.array([[0.0, 0.0, jnp.nan, HIDDEN], [0.0, jnp.nan, HIDDEN, HIDDEN]])
    merged, normaliser = merge(out, lse, axis=0)
    np.testing.assert_array_equal(merged[:, 0], [2.0, np.nan, np.nan, 0.0])
    np.testing.assert_array_equal(jnp.isnan(normaliser), [False, True, True, False])
