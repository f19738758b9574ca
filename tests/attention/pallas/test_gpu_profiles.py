"""Profiles that each query mixes, in GPU kernels: gradients, and what each thread moves through shared memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Mask, Scoring, Tokens, attention
from bam_jax.attention.pallas import gpu_diagonals, gpu_pipeline, gpu_profiles
from tests.attention.common import close, normals, slopes
from tests.marks import full

BAND = lambda length, count=3: lambda rng: biases.Band(normals(rng, (count, length))[0])
PRIORS = [[1.0, 0.5, -0.3], [-3.0, 0.0, 1.0], [0.0, 0.3, 0.0]]


def in_registers(thread, columns):
    """The row and the column of the first number of each of a thread's pairs in a tile, by the layout of the tensor cores."""
    group, half = np.divmod(np.arange(columns // 4), 2)  # pairs of one of two rows, 8 apart, and of every eighth column
    return (thread // 32 * 16 + thread % 32 // 4)[:, None] + 8 * half, (thread % 4 * 2)[:, None] + 8 * group


class Memory:
    """A warpgroup's shared memory, through which tiles go by the addresses of each thread."""

    def __init__(self, columns):
        self.numbers = np.zeros(gpu_profiles.passage_size(columns))

    def write(self, places, tile):
        """Pairs at once: aligned, no two at one place, and half a warp's in different banks."""
        at, row, column = first_of_pairs(places, tile.shape[1])
        assert (at % 2 == 0).all()
        assert len(np.unique(at)) == at.size
        for some in at.T.reshape(-1, 16):
            assert len(np.unique([some % 32, (some + 1) % 32])) == 32
        for second in (0, 1):
            self.numbers[at + second] = tile[row, column + second]

    def read(self, places, columns):
        tile = np.full((64, columns), np.nan)
        at, row, column = first_of_pairs(places, columns)
        for second in (0, 1):
            tile[row, column + second] = self.numbers[at + second * places.by_column]
        return tile

    def move(self, passing, tiles, columns):
        for places, tile in zip(passing.written, tiles, strict=True):
            self.write(places, tile)
        return [self.read(places, columns) for places in passing.read]


def first_of_pairs(places, columns):
    """The places at which each thread's pairs begin, and their rows and columns in the tile."""
    thread = np.arange(128)
    return places.start(thread)[:, None] + places.steps(columns)[0], *in_registers(thread, columns)


def of_warps(several, columns):
    """The places of all numbers of each warp."""
    at = [
        first_of_pairs(x, width)[0] + n * x.by_column for x, width in zip(several, columns, strict=True) for n in (0, 1)
    ]
    return [{*np.concatenate([x.reshape(4, -1)[warp] for x in at])} for warp in range(4)]


def crosses(passing, written, read):
    """Whether a warp reads what another one writes."""
    writes, reads = of_warps(passing.written, written), of_warps(passing.read, read)
    return any(writes[a] & reads[b] for a in range(4) for b in range(4) if a != b)


@pytest.mark.parametrize(("columns", "keys_in_rows"), [(64, False), (64, True), (128, False)])
def test_threads_read_the_biases_of_a_tile_among_those_of_all_offsets(columns, keys_in_rows, rng):
    at_offsets, passing = rng.normal(size=(64, 64 + columns)), gpu_profiles.to_tile(columns, keys_in_rows)
    (made,) = Memory(columns).move(passing, [at_offsets], columns)
    query, key = np.ogrid[:64, :columns]
    np.testing.assert_array_equal(made.T if keys_in_rows else made, at_offsets[query, 63 - query + key])
    assert crosses(passing, [64 + columns], [columns]) is passing.across_warps


@pytest.mark.parametrize("offsets_in_rows", [False, True])
def test_threads_read_a_tile_at_its_offsets_and_zeros_elsewhere(offsets_in_rows, rng):
    memory, tile, passing = Memory(64), rng.normal(size=(64, 64)), gpu_profiles.to_offsets(offsets_in_rows)
    memory.move(gpu_profiles.to_tile(64, False), [rng.normal(size=(64, 128))], 64)  # what biases left
    made = memory.move(passing, [np.zeros((64, 64)), tile], 64)
    made = np.concatenate([x.T for x in made] if offsets_in_rows else made, axis=1)
    expected = np.zeros((64, 128))
    for query in range(64):
        expected[query, 63 - query : 127 - query] = tile[query]
    np.testing.assert_array_equal(made, expected)
    assert crosses(passing, [64, 64], [64, 64]) is passing.across_warps


def test_cotangents_are_summed_over_both_parts_and_both_warpgroups(rng):
    made = rng.normal(size=(2, 5, 3, 2 * 16))
    for c, d in enumerate(gpu_profiles.weights_cotangent(7, jnp.asarray(made))):
        np.testing.assert_allclose(d, (made[..., c] + made[..., 16 + c]).swapaxes(1, 2), rtol=1e-5, atol=1e-6)
    made = rng.normal(size=(4, 256, 2 * 16))
    made[:, [127, 255]] = 0  # of 64 queries and 64 keys there are 127 offsets
    expected = np.zeros((16, 4, 192))
    for group, start in ((0, 64), (1, 0)):
        mine = made[:, 128 * group : 128 * (group + 1)]
        expected[:, :, start : start + 128] += (mine[..., :16] + mine[..., 16:]).transpose(2, 0, 1)
    np.testing.assert_allclose(gpu_profiles.strip_sums(jnp.asarray(made)), expected[..., :191], rtol=1e-5, atol=1e-6)


@pytest.mark.hopper
def test_weights_and_profiles_keep_16_bits_beside_operands_of_8(rng):
    """Queries are zeros. Biases are differences of numbers near 100: rounded to 8 bits, these would be off by as much."""
    length = 128
    near, rest = 100 * rng.normal(size=length), rng.normal(size=length)
    weights, profiles = 1 + rng.normal(size=(2, length)) / 300, np.stack([near, rest - near])
    v = jnp.asarray(rng.normal(size=(1, length, 1, 16)), jnp.bfloat16)
    of = tuple(jnp.asarray(x, jnp.float32)[None, None] for x in weights)
    at = Tokens(jnp.arange(length)[None])
    scoring = Scoring(
        biases.Mixture(biases.Band(jnp.asarray(profiles, jnp.float32))), dataclasses.replace(at, coordinate=of), at
    )
    run = lambda backend, x: jax.jit(lambda q, k, v: attention(q, k, v, scoring, backend=backend))(x * 0, x, x)
    close(run("pallas_gpu", v), run("reference", v.astype(jnp.float32)), 1e-2)


@pytest.mark.hopper
@pytest.mark.parametrize(
    ("profiles", "mask", "queries", "keys", "packed", "tempered", "blocks"),
    [
        (BAND(90), Mask(), 300, 300, False, True, 1),  # tiles beyond the band
        (lambda _: biases.GeneralisedGaussian(*jnp.asarray(PRIORS)), Mask(window=150), 300, 300, True, False, 99),
        full(BAND(150, 20), Mask(causal=False), 130, 300, False, False, 99),
    ],
)
def test_gradients_are_the_references(
    profiles, mask, queries, keys, packed, tempered, blocks, rng, float32_on_gpus, monkeypatch
):
    """A block of threads has three texts, or one; in the former case heads come one by one, and operands have one buffer.

    A hidden value is not finite.
    """
    monkeypatch.setattr(gpu_diagonals, "_BLOCKS", blocks)
    if blocks == 1:
        monkeypatch.setattr(gpu_diagonals, "_BYTES", 1)
        monkeypatch.setattr(gpu_pipeline, "_STAGES", 1)
    q, k, v = normals(rng, (3, queries, 2, 8), *[(3, keys, 1, 8)] * 2)
    position, segment = np.arange(keys), 1 + (np.arange(keys) >= 140)
    position[-1] = EMPTY
    bias = biases.Mixture(profiles(rng))
    count = len(jax.tree.leaves(bias)[0])
    weights = tuple(jnp.moveaxis(normals(rng, (3, 2, queries, count))[0], -1, 0))
    temperature = jnp.asarray(rng.uniform(0.5, 1.5, (3, 2, queries)), jnp.float32) if tempered else None

    def tokens(first, coordinate=None):
        documents = jnp.asarray(segment[first:])[None] if packed else None
        return Tokens(jnp.asarray(position[first:])[None], documents, coordinate, consecutive=True)

    def of(backend, hidden):
        def run(q, k, v, bias, weights, temperature):
            scoring = Scoring(bias, tokens(keys - queries, weights), tokens(0), temperature, mask)
            return attention(q, k, v, scoring, backend=backend)

        inputs = q, k, v.at[:, -1].set(hidden), bias, weights, temperature
        return jax.jit(lambda *x: slopes(run, *x))(*inputs)

    close(of("pallas_gpu", jnp.nan), of("reference", 0), 2e-5)
