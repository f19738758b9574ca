"""A text cut along a ring of devices attends as a whole one does, output and every gradient."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bam_jax import biases
from bam_jax.attention import BACKENDS, Dropout, Mask, Scoring, Tiling, Tokens, attention
from bam_jax.attention.ring import _deal, _take_back, ring, zigzag
from tests.attention import common
from tests.attention.common import close, slopes
from tests.marks import full, longest

B, T, H, K, D = 2, 48, 4, 2, 8
AXIS = "context"
TILING = Tiling(block_q=4, block_k=4)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4,), (AXIS,), devices=jax.devices()[:4], axis_types=(AxisType.Auto,))


def case(bias, *, packed, tempered, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda low, high, *shape: jnp.asarray(rng.uniform(low, high, shape))
    position = jnp.arange(T)[None]
    segment = jnp.asarray(1 + (np.arange(T) >= [[13], [31]]) + (np.arange(T) >= [[40], [33]])) if packed else None
    own_i = own_j = None
    if bias == "cable":
        total = jnp.cumsum(draw(0, 0.5, B, H, T), -1)
        own_j = (total, jnp.zeros_like(total))
        own_i = (draw(0, 2, B, H, T), own_j)
    if bias == "mixture":
        own_i = tuple(draw(-1, 1, B, H, T) for _ in range(common.C))
    scoring = Scoring(
        common.BIASES[bias](draw),
        Tokens(position, segment, own_i, consecutive=True),
        Tokens(position, segment, own_j, consecutive=True),
        draw(0.5, 2, B, H, T) if tempered else None,
    )
    q, d_out = draw(-2, 2, B, T, H, D), draw(-1, 1, B, T, H, D)
    return q, draw(-2, 2, B, T, K, D), draw(-2, 2, B, T, K, D), scoring, d_out


def specs(scoring):
    """The text is the last axis of tokens and temperature; the bias is everywhere."""
    last = lambda tree: jax.tree.map(lambda x: P(*[None] * (x.ndim - 1), AXIS), tree)
    return dataclasses.replace(
        jax.tree.map(lambda x: P(), scoring),
        queries=last(scoring.queries),
        keys=last(scoring.keys),
        temperature=last(scoring.temperature),
    )


def over_ring(mesh, scoring, backend=BACKENDS["chunked"], *, balanced=False, tiling=TILING, check=True):
    text = P(None, AXIS)
    around = ring(backend, AXIS)
    return jax.shard_map(
        functools.partial(attention, backend=zigzag(around, AXIS) if balanced else around, tiling=tiling),
        mesh=mesh,
        in_specs=(text, text, text, specs(scoring)),
        out_specs=text,
        check_vma=check,
    )


@pytest.mark.parametrize(
    ("backend", "bias", "packed", "tempered", "mask", "balanced", "check"),
    [
        full("chunked", "ggd", True, True, Mask(), True, True),
        ("chunked", "cable", True, False, Mask(), True, True),
        ("chunked", "mixture", True, True, Mask(), True, True),
        longest("chunked", "alibi", False, True, Mask(window=9), False, False),
        longest("chunked", "uniform", True, False, Mask(causal=False), False, True),
        ("chunked", "t5_distance", False, False, Mask(causal=False, window=20), True, False),
        full("rows", "ggd", True, True, Mask(), True, True),
        ("reference", "cable", False, True, Mask(), False, True),
        full("pallas_tpu", "ggd", True, True, Mask(), True, False),
        longest("pallas_tpu", "ggd", False, False, Mask(), False, False),
        full("pallas_tpu", "mixture", True, True, Mask(), True, False),
    ],
)
def test_a_ring_agrees_with_the_whole(mesh, backend, bias, packed, tempered, mask, balanced, check):
    with jax.enable_x64(backend != "pallas_tpu"):
        tolerance, tiling = (1e-4, Tiling()) if backend == "pallas_tpu" else (1e-9, TILING)
        q, k, v, scoring, d_out = case(bias, packed=packed, tempered=tempered)
        dropout = Dropout(0.0 if tempered else 0.3, 7).per_head(B, H)
        scoring = dataclasses.replace(scoring, mask=mask, dropout=dropout)
        attend = over_ring(mesh, scoring, BACKENDS[backend], balanced=balanced, tiling=tiling, check=check)
        made, expected = (
            jax.jit(functools.partial(slopes, run))(q, k, v, scoring, d_results=d_out)
            for run in (attend, functools.partial(attention, backend="reference"))
        )
    close(made, expected, tolerance)


def test_steps_that_hold_no_mass_are_not_computed(mesh, x64):
    """A steep head reads its own part and the one before; of a flat one everything is needed."""
    q, k, v, scoring, _ = case("alibi", packed=False, tempered=False)
    computed = []

    def count(q, k, v, scoring, tiling):
        jax.debug.callback(lambda: computed.append(1))
        return BACKENDS["chunked"].forward(q, k, v, scoring, tiling)

    counting = dataclasses.replace(BACKENDS["chunked"], forward=count)
    for slope, steps in ((20.0, 4 + 3), (1e-3, 4 + 3 + 2 + 1)):
        scoring = dataclasses.replace(scoring, bias=biases.ALiBi(jnp.full(H, slope)))
        attend = over_ring(mesh, scoring, counting, tiling=Tiling())
        computed.clear()
        run = jax.jit(attend)
        out = run(q, k, v, scoring)
        jax.effects_barrier()
        assert len(computed) == steps
        np.testing.assert_allclose(out, attention(q, k, v, scoring, backend="reference"), atol=1e-7)
        broken = v.at[0, 2, 0, 1].set(jnp.nan)  # on the first device, whose keys hold nothing for the others
        expected = attention(q, k, broken, scoring, backend="reference")
        np.testing.assert_array_equal(jnp.isnan(run(q, k, broken, scoring)), jnp.isnan(expected))
        assert jnp.isnan(expected[0, 2:, :2]).all() and not jnp.isnan(expected[:, :2]).any()


def test_balanced_pieces_are_mirrored_and_come_back(mesh):
    text = P(None, AXIS)
    mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=text, out_specs=text, check_vma=False)
    there = mapped(lambda x: _deal(x, AXIS, 1))(jnp.arange(16)[None])
    np.testing.assert_array_equal(there[0].reshape(4, 2, 2)[..., 0] // 2, [[0, 7], [1, 6], [2, 5], [3, 4]])
    np.testing.assert_array_equal(mapped(lambda x: _take_back(x, AXIS, 1))(there)[0], np.arange(16))


def test_offsets_are_exact_wherever_the_text_begins(mesh):
    q, k, v, scoring, _ = case("alibi", packed=False, tempered=False)
    far = dataclasses.replace(scoring.queries, position=scoring.queries.position + 2**30 + 5)
    attend = jax.jit(over_ring(mesh, scoring, balanced=True))
    close(attend(q, k, v, dataclasses.replace(scoring, queries=far, keys=far)), attend(q, k, v, scoring), 2e-5)
