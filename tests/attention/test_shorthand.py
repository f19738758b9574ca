"""The one-line form: what it means by default, against jax.nn's function and the full form, and what it refuses."""

import doctest
import functools
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bam_jax
from bam_jax import biases
from bam_jax.attention import Mask, Scoring, Tokens, attend, attention
from tests.attention.common import close, normals

B, T, H, D = 2, 12, 4, 8


@pytest.fixture
def qkv(rng):
    return normals(rng, *((B, T, heads, D) for heads in (H, 2, 2)))


def test_without_a_bias_it_is_that_of_jax(qkv):
    for causal, arguments in itertools.product((False, True), (qkv, tuple(x[0] for x in qkv))):
        expected = jax.nn.dot_product_attention(*arguments, is_causal=causal, scale=0.3)
        close(attend(*arguments, causal=causal, scale=0.3), expected)


def test_a_bias_is_added_and_a_window_counts_the_query_itself(qkv):
    slopes, offset = jnp.asarray(biases.alibi_slopes(H)), jnp.arange(T)[:, None] - jnp.arange(T)
    bias = jnp.where((offset >= 0) & (offset < 5), -slopes[:, None, None] * offset, -1e30)
    close(attend(*qkv, biases.ALiBi(slopes), window=5), jax.nn.dot_product_attention(*qkv, bias=bias[None]))


def test_fewer_queries_are_the_last_ones_and_pads_are_seen_by_nobody(qkv):
    q, k, v = qkv
    prior = biases.ALiBi(jnp.ones(H))
    whole, lse = attend(q, k, v, prior, return_lse=True)
    last, last_lse = attend(q[:, -3:], k, v, prior, return_lse=True)
    close(last, whole[:, -3:])
    close(last_lse, lse[..., -3:])
    for pad in (0, -1):
        packed = attend(q, k, v, prior, segments=jnp.asarray([1] * 4 + [2] * 5 + [pad] * (T - 9)))
        close(packed[:, 4:9], attend(q[:, 4:9], k[:, 4:9], v[:, 4:9], prior))
        assert not packed[:, 9:].any() and packed[:, :9].any()


def test_positions_limits_and_a_temperature_are_those_of_the_full_form(qkv, rng):
    q, k, v = qkv
    at, of = jnp.arange(T) * 3, jnp.array([[2, 17, 20], [0, 5, 33]])
    temperature = jnp.asarray(rng.uniform(0.5, 2, (1, H, 3)), jnp.float32)
    prior = biases.GeneralisedGaussian(*(jnp.full(H, x) for x in (0.5, -1.0, 0.0)))
    first, last = of - 9, jnp.array([20, 21, 40])
    of_queries = {"query_positions": of, "sees_from": first, "sees_to": last, "temperature": temperature}
    made = attend(q[:, :3], k, v, prior, positions=at, **of_queries, causal=False)
    queries = Tokens(of, sees_from=first, sees_to=last[None])
    scoring = Scoring(prior, queries, Tokens(at[None]), temperature, Mask(causal=False))
    np.testing.assert_array_equal(made, attention(q[:, :3], k, v, scoring))


@pytest.mark.parametrize("queries", [3, 16])
def test_queries_without_a_mask_of_their_own_say_where_they_stand(qkv, queries):
    """Those of a cache are the last tokens, those of a decoder that reads an encoder's keys are not."""
    _, k, v = qkv
    q = jnp.concatenate([k, k], 1)[:, :queries].repeat(H // k.shape[2], 2)
    prior = biases.ALiBi(jnp.ones(H))
    attend_to_all = functools.partial(attend, q, k, v, causal=False)
    for options in ({"bias": prior}, {"window": 4}, {"sees_to": jnp.arange(queries)}, {"positions": jnp.arange(T)}):
        with pytest.raises(ValueError, match=rf"query_positions=jnp.arange\({queries}\)") as caught:
            attend_to_all(**options)
        # The last tokens, in numbers, where there are so many keys.
        assert (f"jnp.arange({T - queries}, {T})" in str(caught.value)) == (queries < T and "positions" not in options)
    at = jnp.arange(queries)
    whole = Scoring(prior, Tokens(at[None]), Tokens(jnp.arange(T)[None]), None, Mask(causal=False))
    np.testing.assert_array_equal(attend_to_all(prior, query_positions=at), attention(q, k, v, whole))
    close(attend_to_all(), jax.nn.dot_product_attention(q, k, v))  # which depends on no position
    with pytest.raises(ValueError, match="query_segments="):
        attend_to_all(prior, query_positions=at, segments=jnp.ones(T, int))


def test_the_examples_of_the_page_run():
    found = doctest.testfile(str(Path(__file__).parents[2] / "docs" / "attention.md"), module_relative=False)
    assert found.attempted >= 12 and not found.failed


@biases.bias
class Own(biases.Bias):
    """A bias as a newcomer may write it: a Python `if` over arrays, and fields of other kinds."""

    slope: jax.Array
    which: Any
    table: Any = biases.static(())

    def __call__(self, i, j):
        return self.slope * (i - j) if i < j else self.which


KEYS = np.ones((1, 8, 2, 4), np.float32)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"temperature": 2.0}, r"temperature is an array \[#B, H, T\]; for a single number give scale="),
        (
            {"positions": jnp.arange(3)},
            r"positions has the shape \(3,\), not \[B, S\] with B = 1, S = 8; .* are query_positions=",
        ),
        ({"windw": 4}, "no argument 'windw'; did you mean 'window'"),
        (
            {"bias": lambda i, j: i - j},
            "a Bias of bam_jax.biases, not function; a formula of your own is a class under @",
        ),
        ({"bias": biases.ALiBi}, r"that is the class; give one with its parameters, ALiBi\(...\)"),
        ({"bias": jnp.ones((8, 8))}, r"a table of all pairs takes O\(T S\) memory"),
        ({"query_segments": jnp.ones(3, int)}, "query_segments= are compared with those of the keys; give segments="),
        ({"segments": jnp.ones(8)}, r"segments must hold int32 or int64, not float32; give segments.astype\(jnp.int32"),
        ({"positions": [*range(8)]}, r"positions must be an array, not list; give jnp.asarray"),
        ({"query_positions": np.arange(3) + 2**32}, "query_positions holds 4294967298, beyond int32; count from"),
        ({"sees_to": jnp.zeros(8, int)}, r"sees_to has the shape \(8,\), not \[B, T\] with B = 1, T = 3$"),
        (
            {"temperature": jnp.ones((1, 3, 2))},
            r"temperature has the shape \(1, 3, 2\), not \[B, H, T\] with B = 1, H = 2, T = 3",
        ),
        ({"sink_logits": jnp.zeros(3)}, r"sink_logits has the shape \(3,\), not \[H\] with H = 2"),
        ({"q": jnp.ones((1, 3, 2, 4), int)}, r"q must hold floats, not int32; give q.astype\(jnp.float32"),
        ({"q": jnp.ones((3, 2, 4))}, r"or all three without B, got q \(3, 2, 4\)"),
        ({"scale": jnp.float32(0.5)}, r"scale must be a finite number of Python's, not Array\(0.5.*; give scale=float"),
        ({"softmax_scale": 0.1}, "no argument 'softmax_scale'; give scale=$"),
        ({"slopes": 1}, "no argument 'slopes'$"),
        ({"k": KEYS[:, :2], "v": KEYS[:, :2]}, "3 queries are not the last of 2 keys; give query_positions="),
        (
            {"k": KEYS[:, :2], "v": KEYS[:, :2], "query_positions": np.arange(3), "segments": np.ones(2, int)},
            "3 queries are not the last of 2 keys; give query_segments=",
        ),
        ({"soft_cap": -1.0}, "soft_cap must be a finite number above 0 of Python's, not -1.0"),
        ({"bias": biases.ALiBi([0.5, 0.25])}, r"slope of ALiBi must be an array, not list; give jnp.asarray"),
        ({"bias": Own(jnp.ones(2), "far")}, r"which of Own must be an array, not str; or declare it with static\(\)"),
        ({"bias": Own(jnp.ones(2), 3)}, r"which of Own must hold floats, not int32; .* declare it with static\(\)"),
        ({"bias": Own(jnp.ones(2), jnp.ones(2), np.ones(2))}, r"table of Own is static, .* not ndarray; an array is"),
        (
            {"bias": Own(jnp.ones(2), jnp.ones(2))},
            "Own cannot compare .*; it raised ValueError: .*jnp.where stands for if",
        ),
    ],
)
def test_what_newcomers_give_is_named(changes, says):
    with pytest.raises((TypeError, ValueError), match=says):
        attend(**{"q": KEYS[:, :3], "k": KEYS, "v": KEYS, **changes})


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        bam_jax.atend  # noqa: B018
