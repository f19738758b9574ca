"""Profiles that each query mixes, in TPU kernels: tiles of several groups of 128 lanes, and tiles that need no bias."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import Mask, Scoring, Tiling, Tokens, Unsupported, attention
from bam_jax.attention.pallas import strips
from tests.attention.common import close, normals, slopes
from tests.marks import full

H, C = 2, 3


BAND = lambda length: lambda rng: biases.Band(normals(rng, (C, length))[0])
PRIORS = [[1.0, 0.5, -0.3], [-3.0, 0.0, 1.0], [0.0, 0.3, 0.0]]


@pytest.mark.parametrize(
    ("profiles", "queries", "mask", "tiling"),
    [
        # Whole tiles of both kinds: within the band and beyond it.
        (BAND(150), 768, Mask(), Tiling("off", 256, 256)),
        full(BAND(150), 300, Mask(causal=False), Tiling("off", 256, 256)),
        full(
            lambda _: biases.GeneralisedGaussian(*jnp.asarray(PRIORS)), 650, Mask(window=400), Tiling("exact", 512, 256)
        ),
    ],
)
def test_tiles_of_several_groups_of_lanes_agree_with_the_reference(profiles, queries, mask, tiling, rng):
    keys = 768
    bias = biases.Mixture(profiles(rng))
    q, k, v = normals(rng, (1, queries, H, 8), *[(1, keys, H, 8)] * 2)
    position = jnp.arange(keys)[None]
    weights = tuple(jnp.moveaxis(normals(rng, (1, H, queries, C))[0], -1, 0))

    @functools.partial(jax.jit, static_argnames="backend")
    def run(q, k, v, bias, weights, backend):
        of = Scoring(bias, Tokens(position[:, keys - queries :], None, weights), Tokens(position), mask=mask)
        return attention(q, k, v, of, backend=backend, tiling=tiling)

    made, expected = (
        (run(q, k, v, bias, weights, name), slopes(functools.partial(run, backend=name), q, k, v, bias, weights))
        for name in ("pallas_tpu", "reference")
    )
    # A profile that falls steeply amplifies the rounding of offsets, in the reference as well.
    close(made, expected, 1e-5 if isinstance(bias.profiles, biases.Band) else 1e-4)


@pytest.mark.parametrize("reach", [1, 3, 8, 40])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("sizes", "shift"), [((4, 8, 6, 3), 0), ((8, 8, 1, 5), -32), ((8, 4, 4, 12), 5), ((8, 8, 1, 1), -90)]
)
def test_strips_that_may_have_values_are_found(reach, causal, sizes, shift):
    band = biases.Band(jnp.ones((1, reach)))
    table = strips.StripTable(band, jnp.int32(shift), causal, 1, *sizes)
    block_q, block_k, query_blocks, key_blocks = sizes
    first, last = np.asarray(table.near())
    for n in range(query_blocks):
        for m in range(key_blocks):
            i, j = n * block_q + np.arange(block_q)[:, None], m * block_k + np.arange(block_k)
            offset = j - i + shift
            some = (abs(offset) < reach) & ((offset <= 0) | (not causal))
            assert (first <= table.index(n, m) < last) == some.any()


def test_numbers_are_their_parts(rng):
    x = np.float32(rng.normal(size=1000) * 10.0 ** rng.integers(-20, 20, 1000))
    parts = jax.jit(strips.parts)(x)
    assert {part.dtype for part in parts} == {jnp.dtype("bfloat16")}
    np.testing.assert_array_equal(sum(np.float64(part) for part in parts), x)


def test_more_profiles_than_a_core_can_sum_are_refused_before_they_are_compiled():
    shape = lambda *n: jax.ShapeDtypeStruct(n, jnp.bfloat16)
    tokens = Tokens(jax.ShapeDtypeStruct((1, 2**19), jnp.int32))
    queries = dataclasses.replace(tokens, coordinate=(jax.ShapeDtypeStruct((1, 1, 2**19), jnp.float32),) * 2)
    scoring = Scoring(biases.Mixture(biases.ALiBi(jnp.ones(2))), queries, tokens)
    ask = functools.partial(attention, backend="pallas_tpu")
    with pytest.raises(Unsupported, match="2 profiles at 1048576 offsets, whose gradients take 67,108,864 bytes"):
        jax.eval_shape(ask, *[shape(1, 2**19, 1, 64)] * 3, scoring)
