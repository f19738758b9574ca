"""Relative biases that TPU kernels read in strips: where the strips are right, and only there, they are taken."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Scoring, Tiling, Tokens, attend, attention
from bam_jax.attention.pallas import strips
from tests.attention.common import Lying, close, normals, slopes
from tests.marks import full

H = 2


E = EMPTY


@pytest.mark.parametrize(
    ("queries", "keys", "segments", "expected"),
    [
        ([[0, 1, 2, 3]], [[0, 1, 2, 3]], None, 0),
        ([[2, 3]], [[0, 1, 2, 3, E]], None, -2),
        ([[2, 3], [1, 2]], [[0, 1, 2, 3], [E, 0, 1, 2]], None, -2),
        ([[0, 1, 2], [E, E, E]], [[0, 1, 2], [E, E, E]], None, 0),
        ([[E]], [[E]], None, 0),
        ([[9, 9]], [[0, 1]], None, None),
        ([[0, 1, 3]], [[0, 1, 3]], None, None),
        ([[2, 3], [2, 3]], [[0, 1, 2, 3], [E, 0, 1, 2]], None, None),
        # Documents may begin anew.
        ([[0, 1, 2, 0, 1, E]], None, [[1, 1, 1, 2, 2, 0]], 0),
        ([[0, 1, 2, 0, 1, 5]], None, [[1, 1, 1, 2, 2, 0]], 0),
        ([[0, 1, 3, 0, 1, E]], None, [[1, 1, 1, 2, 2, 0]], None),
        ([[0, 1, 9, 7, 8, 0]], None, [[1, 1, 0, 1, 1, 0]], None),
        ([[0, 1, 0, 1, 7, 8]], None, [[1, 1, 2, 2, 1, 1]], None),
    ],
)
def test_where_offsets_are_those_of_slots(queries, keys, segments, expected):
    sides = (Tokens(jnp.asarray(x), segments and jnp.asarray(segments)) for x in (queries, keys or queries))
    fits, shift = strips.slot_shift(Scoring(biases.ALiBi(jnp.ones(H)), *sides))
    assert (int(shift) if fits else None) == expected


@biases.bias
class LyingFormula(biases.Relative):
    """A formula that says it is relative, and looks at the query's position."""

    slope: jax.Array

    def __call__(self, i, j):
        return -self.slope * jnp.abs(i - j) - i * jnp.sin(j - i)


DOCUMENTS = ([[0, 1, 2, 3, 4, 0, 1, 2]], [[1, 1, 1, 1, 1, 2, 2, 2]])


@pytest.mark.parametrize(
    ("positions", "segments", "taken"),
    [
        ([range(8)], None, True),
        full(*DOCUMENTS, True),
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
        return slopes(run, q, k, v, table)

    arguments = *inputs, jnp.arange(32.0).reshape(H, 16) / 9
    formula = lambda table: LyingFormula(table[:, 3])
    for kind in (Lying, formula, biases.T5Distance) if taken else (Lying, formula):
        made, expected = (of(kind, backend, *arguments) for backend in ("pallas_tpu", "reference"))
        same = [np.allclose(a, b, atol=1e-4) for a, b in zip(made, expected, strict=True)]
        assert all(same) if kind is biases.T5Distance or not taken else not any(same)


def test_a_promise_of_consecutive_positions_is_taken_at_its_word(rng):
    """No formula beside the strips; whoever gives positions of their own promises nothing."""
    q, k, v = normals(rng, (1, 5, H, 4), (1, 8, H, 4), (1, 8, H, 4))
    prior = biases.GeneralisedGaussian(*(jnp.asarray([x, 0.7]) for x in (1.3, -0.2, 0.4)))

    def run(consecutive, backend, *x):
        queries, keys = (Tokens(jnp.arange(*span)[None], consecutive=consecutive) for span in ((3, 8), (0, 8)))
        return slopes(lambda q, k, v, bias: attention(q, k, v, Scoring(bias, queries, keys), backend=backend), *x)

    operands = q, k, v, prior
    close(*(jax.jit(run, static_argnums=(0, 1))(True, name, *operands) for name in ("pallas_tpu", "reference")), 1e-4)
    kernels = lambda f: str(jax.make_jaxpr(f)(*operands)).count("pallas_call")
    alone, both = (kernels(functools.partial(run, consecutive, "pallas_tpu")) for consecutive in (True, False))
    assert both == 2 * alone > 0
    forward = lambda **positions: kernels(lambda *x: attend(*x, backend="pallas_tpu", **positions))
    assert forward(positions=jnp.arange(8)) == forward(query_positions=jnp.arange(3, 8)) == 2 * forward() > 0


@biases.bias
class Growth(biases.Relative):
    """A formula of a user's own that overflows for later keys."""

    scale: jax.Array

    def __call__(self, i, j):
        return -jnp.exp(self.scale * (j - i))


def test_no_formula_is_asked_for_what_a_causal_mask_hides(rng):
    """Infinities of hidden diagonals would make the gradient NaN."""
    tokens = Tokens(jnp.arange(8)[None], consecutive=True)
    run = lambda q, k, v, scale: attention(q, k, v, Scoring(Growth(scale), tokens, tokens), backend="pallas_tpu")
    *_, d_scale = slopes(run, *normals(rng, *[(1, 8, H, 4)] * 3), jnp.full(H, 20.0))
    assert jnp.isfinite(d_scale).all()
