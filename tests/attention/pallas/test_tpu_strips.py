"""Relative biases that TPU kernels read in strips: where the strips are right, and only there, they are taken."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Scoring, Tiling, Tokens, attention
from bam_jax.attention.pallas import tpu_strips

H = 2


@pytest.mark.parametrize(("rows", "row"), [(1, 0), (2, 4), (7, 0), (12, 12), (16, 0)])
def test_a_strip_is_the_tile_and_sums_are_its_transpose(rows, row, rng):
    strip, tile = (rng.normal(size=size).astype(np.float32) for size in ((1, 128), (rows, 20)))
    both = jax.jit(
        lambda strip, tile: (tpu_strips.tile_of_strip(strip, rows, 20, row), tpu_strips.diagonal_sums(tile, 128))
    )
    spread, sums = both(strip, tile)
    at = np.arange(20) - np.arange(rows)[:, None]
    np.testing.assert_array_equal(spread, strip[0, at - row])
    expected = np.zeros((1, 128))
    np.add.at(expected[0], at, tile)
    np.testing.assert_allclose(sums, expected, atol=1e-5)


@pytest.mark.parametrize("blocks", [(4, 4), (4, 6), (8, 3), (1, 5)])
@pytest.mark.parametrize("counts", [(1, 1), (3, 4), (1, 3), (3, 1)])
def test_every_tile_finds_its_values(blocks, counts):
    shift = -5
    whole = tpu_strips.StripTable(biases.ALiBi(jnp.ones(H)), jnp.int32(shift), H, *blocks, *counts)
    by_rows = {keys: np.asarray(whole.values(keys_in_sublanes=keys)) for keys in (True, False)}
    assert by_rows[True].shape == (H, whole.count, whole.width)
    for n, m in np.ndindex(counts):
        t, s = n * blocks[0] + np.arange(blocks[0]), m * blocks[1] + np.arange(blocks[1])
        expected = -np.abs(s - t[:, None] + shift)
        for keys, values in by_rows.items():
            strip, (rows, lanes) = values[1, whole.index(n, m)], blocks[::-1] if keys else blocks
            tile = strip[np.arange(lanes) - np.arange(rows)[:, None]]
            np.testing.assert_array_equal(tile.T if keys else tile, expected)


E = EMPTY


@pytest.mark.parametrize(
    ("queries", "keys", "expected"),
    [
        ([[0, 1, 2, 3]], [[0, 1, 2, 3]], 0),
        ([[2, 3]], [[0, 1, 2, 3, E]], -2),
        ([[2, 3], [1, 2]], [[0, 1, 2, 3], [E, 0, 1, 2]], -2),
        ([[0, 1, 2], [E, E, E]], [[0, 1, 2], [E, E, E]], 0),
        ([[E]], [[E]], 0),
        ([[9, 9]], [[0, 1]], None),
        ([[0, 1, 3]], [[0, 1, 3]], None),
        ([[2, 3], [2, 3]], [[0, 1, 2, 3], [E, 0, 1, 2]], None),
    ],
)
def test_where_offsets_are_those_of_slots(queries, keys, expected):
    queries, keys = (Tokens(jnp.asarray(x)) for x in (queries, keys))
    fits, shift = tpu_strips.slot_shift(Scoring(biases.ALiBi(jnp.ones(H)), queries, keys))
    assert (int(shift) if fits else None) == expected


@pytest.mark.parametrize(
    ("positions", "segments", "expected"),
    [
        ([[0, 1, 2, 0, 1, E]], [[1, 1, 1, 2, 2, 0]], True),
        ([[0, 1, 2, 0, 1, 5]], [[1, 1, 1, 2, 2, 0]], True),
        ([[0, 1, 3, 0, 1, E]], [[1, 1, 1, 2, 2, 0]], False),
        ([[0, 1, 9, 7, 8, 0]], [[1, 1, 0, 1, 1, 0]], False),
        ([[0, 1, 0, 1, 7, 8]], [[1, 1, 2, 2, 1, 1]], False),
    ],
)
def test_documents_may_begin_anew(positions, segments, expected):
    tokens = Tokens(jnp.asarray(positions), jnp.asarray(segments))
    assert tpu_strips.slot_shift(Scoring(biases.ALiBi(jnp.ones(H)), tokens, tokens))[0] == expected


@biases.bias
class Lying(biases.Relative):
    """A lookup that says it is relative, and looks at the query's position."""

    table: jax.Array

    def __call__(self, i, j):
        return self.table[jnp.abs(i - j).astype(jnp.int32)] - i * jnp.sin(j - i)


DOCUMENTS = ([[0, 1, 2, 3, 4, 0, 1, 2]], [[1, 1, 1, 1, 1, 2, 2, 2]])


@pytest.mark.parametrize(
    ("positions", "segments", "taken"),
    [
        pytest.param([range(8)], None, True, marks=pytest.mark.full),
        pytest.param(*DOCUMENTS, True, marks=pytest.mark.full),
        ([range(0, 16, 2)], None, False),
    ],
    ids=["contiguous", "packed", "sparse"],
)
def test_kernels_take_them_exactly_where_they_are_right(positions, segments, taken):
    position = jnp.asarray(np.array(positions))
    tokens = Tokens(position, None if segments is None else jnp.asarray(segments))
    tile = Tiling(block_q=8, block_k=4)  # one block of queries: `chunked` counts positions from the first of a block
    inputs = jax.random.normal(jax.random.key(0), (3, 1, 8, H, 4))

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def of(kind, backend, q, k, v, table):
        run = lambda *x: attention(*x[:3], Scoring(kind(x[3]), tokens, tokens), backend=backend, tiling=tile)
        out, vjp = jax.vjp(run, q, k, v, table)
        return out, *vjp(jnp.cos(out + jnp.arange(out.size).reshape(out.shape)))

    arguments = *inputs, jnp.arange(32.0).reshape(H, 16) / 9
    for kind in (Lying, biases.T5Distance) if taken else (Lying,):
        made, expected = (of(kind, backend, *arguments) for backend in ("pallas_tpu", "reference"))
        same = [np.allclose(a, b, atol=1e-4) for a, b in zip(made, expected, strict=True)]
        assert all(same) if kind is biases.T5Distance or not taken else not any(same)
