"""The order in which the TPU kernels walk over the tiles of a table of logits."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import Scoring, Tiling, Tokens
from bam_jax.attention.pallas import tpu_grid
from bam_jax.attention.pallas.tpu_grid import TileGrid, Walk, _Scalars
from tests.attention.common import drawn, normals


def walk(rng, blocks, group, held=2):
    """Over runs of none to four blocks."""
    heads = held * group
    count, first = rng.integers(0, 5, (heads, blocks)), rng.integers(0, 3, (heads, blocks))
    tiles = types.SimpleNamespace(k=np.zeros((1, held, 1, 1)), heads_differ=False, strips=None)
    return Walk(tiles, group == 1, *(jnp.asarray(x, jnp.int32) for x in (first, count)), None)


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("blocks", [1, 2, 3, 6])
def test_every_block_of_a_pair_walks_over_its_own_runs(blocks, group, rng):
    made = walk(rng, blocks, group)
    segments, steps = made.segments()
    of = _Scalars(None, segments, None, None, None)
    for c in range(made.held):
        walked, written, longest = {}, [], 0
        for p in range(made.pairs):
            before = None
            for t in range(int(steps.max())):
                segment, of_held, n = (int(x) for x in made._place(c, p, t, segments))
                _, h, other = (int(x) for x in made._other(0, c, p, t, *of))
                assert h == c * group + of_held
                if t > segments.last[segment]:  # a step without work
                    assert (h, n, other) == before
                    continue
                longest = max(longest, t + 1)
                before = h, n, other
                if t < segments.end[segment]:
                    walked.setdefault((h, n), []).append(other)
                if t == segments.start[segment] and of_held == 0:
                    written.append([n, 0])
                if t == segments.last[segment] and of_held == group - 1:
                    written[-1][1] += 1
        assert longest == steps[c]
        mirrored = [[p, blocks - 1 - p] for p in range(blocks // 2)] + ([[blocks // 2]] if blocks % 2 else [])
        assert written == [[n, 1] for pair in mirrored for n in pair]  # one after another, each written once
        for h in range(c * group, (c + 1) * group):
            for n in range(blocks):
                first, count = int(made.first[h, n]), int(made.count[h, n])
                assert walked.get((h, n), []) == [*range(first, first + count)]


@pytest.mark.parametrize(
    ("name", "skip", "apart"), [("ggd", "exact", True), ("ggd", "off", False), ("uniform", "exact", False)]
)
def test_heads_of_long_texts_have_grids_of_their_own_where_they_differ(name, skip, apart, rng):
    q, k, v = normals(rng, *[(1, 128, 4, 8)] * 3)
    position = Tokens(jnp.arange(128, dtype=jnp.int32)[None])
    bias = drawn(name) if name != "uniform" else biases.Uniform()
    for blocks, many in ((tpu_grid._MANY_BLOCKS, apart), (tpu_grid._MANY_BLOCKS // 2, False)):
        size = 128 // blocks
        grid = TileGrid.of(q, k, v, Scoring(bias, position, position), Tiling(skip, size, size))
        assert [Walk.of(grid, hold_queries=side).apart for side in (True, False)] == [many] * 2


def test_tiles_behind_the_diagonal_need_no_mask(rng):
    q, k, v = normals(rng, *[(1, 40, 4, 8)] * 3)
    position = Tokens(jnp.arange(40, dtype=jnp.int32)[None])
    of_keys, of_queries = TileGrid.of(
        q, k, v, Scoring(biases.Uniform(), position, position), Tiling("exact", 8, 8)
    ).whole_runs
    np.testing.assert_array_equal(of_keys.length, [range(5)])
    np.testing.assert_array_equal(of_queries.length, [range(4, -1, -1)])
    np.testing.assert_array_equal(of_queries.first, [[1, 2, 3, 4, 0]])
