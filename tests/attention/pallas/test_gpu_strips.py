"""Relative biases that GPU kernels read in strips: where the strips are right, what each thread reads of them, and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Mask, Scoring, Tokens, attention
from bam_jax.attention.pallas import gpu_diagonals, gpu_strips
from tests.attention.common import H, Lying, close, drawn, normals, slopes
from tests.marks import full


def parts_of_a_head(bias, head, offset):
    """The bias of a head at some offsets, and its slope in each of its numbers there."""
    own = jax.tree.map(lambda x: x[head][None], bias)
    flat = jnp.asarray(offset, jnp.float32).reshape(1, 1, -1)
    values = lambda bias: biases.table(bias, jnp.zeros((1, 1, 1)), flat).reshape(offset.shape)
    by_leaf = (x.reshape(*offset.shape, -1) for x in jax.tree.leaves(jax.jacfwd(values)(own)))
    return values(own), *(x[..., n] for x in by_leaf for n in range(x.shape[-1]))


@pytest.mark.parametrize(
    ("keys_in_rows", "width", "bias"),
    [
        (False, 128, drawn("ggd")),
        (False, 64, biases.T5Distance(jnp.arange(12.0).reshape(H, 3))),
        (True, 64, drawn("ggd")),
    ],
)
def test_each_thread_reads_its_own_pairs_without_bank_conflicts(keys_in_rows, width, bias):
    """What the threads of both computing warpgroups read in shared memory, by the layout of the tensor cores' products."""
    shift, columns = 3, [0, 1, 2]
    blocks = (256 // 128, 256 // width)
    tokens, blocks = ((width, 128), blocks[::-1]) if keys_in_rows else ((128, width), blocks)
    table = gpu_strips.PairedStrips(bias, jnp.int32(shift), False, H, *tokens, *blocks, keys_in_rows)
    memory = np.asarray(table.array(columns)).reshape(H, table.count, 1 + len(columns), -1)
    thread = np.arange(256)
    first, (behind, _) = gpu_strips.first_pair(thread, width), gpu_strips._PLACES.steps(width)
    at = first[:, None] + behind
    assert (at % 2 == 0).all()  # pairs are aligned
    for lanes in at.T.reshape(-1, 16):  # which the memory serves at once
        words = np.unique([lanes, lanes + 1])
        assert len(np.unique(words % 32)) == len(words)
    # Register n of a thread has a pair of neighbours in one of two rows, which lie 8 apart, and every eighth column.
    group, half = np.divmod(np.arange(behind.size), 2)
    r = (thread // 32 * 16 + thread % 32 // 4)[:, None] + 8 * half
    c = (thread % 4 * 2)[:, None] + 8 * group
    for head, n, m in [(0, 0, 0), (1, 1, 0), (3, blocks[0] - 1, blocks[1] - 1)]:
        for second in (0, 1):
            i, j = (c + second, r) if keys_in_rows else (r, c + second)
            offset = (m * tokens[1] + j) - (n * tokens[0] + i) + shift
            for part, expected in zip(
                memory[head, table.index(n, m)], parts_of_a_head(bias, head, offset), strict=True
            ):
                np.testing.assert_allclose(part[at + second], expected, rtol=1e-5, atol=1e-5)


def run(backend, kind, position, q, k, v, table):
    tokens = Tokens(position)
    return slopes(lambda *x: attention(*x[:3], Scoring(kind(x[3]), tokens, tokens), backend=backend), q, k, v, table)


@pytest.mark.hopper
@pytest.mark.parametrize(("step", "taken"), [(1, True), full(2, False)])
def test_kernels_take_them_exactly_where_they_are_right(step, taken):
    q, k, v = (
        x.astype(jnp.bfloat16).astype(jnp.float32) for x in normals(np.random.default_rng(0), *[(1, 9, 2, 4)] * 3)
    )
    position, table = step * jnp.arange(9)[None], jnp.arange(36.0).reshape(2, 18) / 9
    compiled = jax.jit(run, static_argnums=(0, 1))
    narrow = lambda *x: (y.astype(jnp.bfloat16) for y in x)
    made, *_ = compiled("pallas_gpu", Lying, position, *narrow(q, k, v), table)
    expected, *_ = run("reference", Lying, position, q, k, v, table)
    assert np.allclose(made, expected, atol=3e-2) is not taken


@pytest.mark.hopper
@pytest.mark.parametrize(
    ("mask", "queries", "keys", "packed", "tempered", "blocks"),
    [
        (Mask(), 300, 300, False, False, 1),
        full(Mask(causal=False), 130, 300, False, True, 1),
        (Mask(window=150), 300, 300, True, True, 99),
    ],
)
def test_tables_have_the_references_gradient(
    mask, queries, keys, packed, tempered, blocks, rng, float32_on_gpus, monkeypatch
):
    """A table has a number for each distance: their gradients are sums along diagonals, over several tiles of three texts.

    A block of threads has three texts, or, where there are to be more blocks, one; heads come one by one in the former case.
    A value that nobody sees is not finite.
    """
    monkeypatch.setattr(gpu_diagonals, "_BLOCKS", blocks)
    if blocks == 1:
        monkeypatch.setattr(gpu_diagonals, "_BYTES", 1)
    q, k, v = normals(rng, (3, queries, 2, 8), *[(3, keys, 1, 8)] * 2)
    position, segment = np.arange(keys), 1 + (np.arange(keys) >= 140)
    position[-1] = EMPTY
    side = lambda first: Tokens(
        jnp.asarray(position[first:])[None], jnp.asarray(segment[first:])[None] if packed else None, consecutive=True
    )
    temperature = jnp.asarray(rng.uniform(0.5, 1.5, (3, 2, queries)), jnp.float32) if tempered else None
    table = jnp.asarray(rng.normal(size=(2, 90)), jnp.float32)

    def of(backend, hidden):
        run = lambda q, k, v, table, temperature: attention(
            *(q, k, v, Scoring(biases.T5Distance(table), side(keys - queries), side(0), temperature, mask)),
            backend=backend,
        )
        return jax.jit(lambda *x: slopes(run, *x))(q, k, v.at[:, -1].set(hidden), table, temperature)

    close(of("pallas_gpu", jnp.nan), of("reference", 0), 2e-5)
