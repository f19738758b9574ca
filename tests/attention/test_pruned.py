import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import EMPTY, Cache, Mask, PrunedCache, Scoring, Tiling, Tokens, attention
from bam_jax.attention.pruned import RollingCache, grouped
from tests.marks import full, longest

B, H, K, D = 2, 6, 3, 8
SLOTS = 1024
SLOPES = jnp.array([1.0, 0.9, 0.5, 0.4, 0.001, 0.002])
GROUPS = (((1, 0), 128), ((2,), 0))  # heads are not in order


def cable(rng, length):
    """Running sums of every query head and the weights of queries, as CABLE has them."""
    step = rng.uniform(0.3, 0.8, (B, H, length)) * np.array([1, 1, 1, 1, 0.01, 0.01])[:, None]
    total = jnp.asarray(np.cumsum(step, -1), jnp.float32)
    return (jnp.ones((B, H, length)), (total, jnp.zeros_like(total))), (total, jnp.zeros_like(total))


CASES = {
    "alibi": (biases.ALiBi(SLOPES), {}),
    "ggd": (biases.GeneralisedGaussian(jnp.array([1.0, 0.9, 1, 1, -0.5, 0.1]), jnp.zeros(H), jnp.full(H, -2.0)), {}),
    "window": (biases.Uniform(), {"mask": Mask(window=100)}),
    "temperature": (biases.ALiBi(SLOPES), {"temperature": jnp.linspace(1, 2, B * H * SLOTS).reshape(B, H, SLOTS)}),
    "sinks": (biases.ALiBi(SLOPES), {"sink_logits": jnp.linspace(-1, 1, H)}),
    "cable": (biases.CABLE(), {}),
}


class Steps:
    """A text that is read in pieces through both kinds of cache."""

    def __init__(self, rng, case="alibi", *, groups=GROUPS, length=600, pads=0, norm=1.0, dtype=jnp.float32):
        bias, more = CASES[case]
        self.scoring = Scoring(bias, Tokens(jnp.zeros((1, 1), jnp.int32)), Tokens(jnp.zeros((1, 1), jnp.int32)), **more)
        draw = lambda heads: jnp.asarray(rng.normal(size=(B, length, heads, D)) * norm, dtype)
        self.q, self.k, self.v = draw(H), draw(K), draw(K)
        position = np.arange(length)[None] - np.array([[0], [pads]])
        self.position = jnp.asarray(np.where(position < 0, EMPTY, position), jnp.int32)
        self.i, self.j = cable(rng, length) if case == "cable" else (None, None)
        first = Tokens(self.position[:, :1], coordinate=jax.tree.map(lambda x: x[..., :1], self.j))
        self.whole = Cache.empty(self.k[:, :1], first, SLOTS, v=self.v[:, :1])
        self.pruned = PrunedCache.empty(self.k[:, :1], first, SLOTS, groups, "exact", v=self.v[:, :1])
        self.at = 0
        self.step = jax.jit(lambda cache, q, k, v, scoring: cache.attend(q, k, v, scoring, tiling=Tiling()))

    def read(self, count, rows=None):
        """The results of both for the last `rows` of the next tokens."""
        piece, rows = slice(self.at, self.at + count), count if rows is None else rows
        tokens = Tokens(self.position[:, piece], coordinate=jax.tree.map(lambda x: x[..., piece], self.j))
        last = lambda x: x[..., count - rows :]
        queries = Tokens(last(tokens.position), coordinate=jax.tree.map(lambda x: last(x[..., piece]), self.i))
        temperature = self.scoring.temperature
        if temperature is not None:
            temperature = last(temperature[..., piece])
        scoring = dataclasses.replace(self.scoring, queries=queries, keys=tokens, temperature=temperature)
        q, k, v = self.q[:, piece][:, count - rows :], self.k[:, piece], self.v[:, piece]
        self.whole = self.whole.append(k, v, tokens)
        out, self.pruned = self.step(self.pruned, q, k, v, scoring)
        self.at += count
        scoring = dataclasses.replace(scoring, keys=dataclasses.replace(self.whole.tokens, summary=None))
        return out, attention(q, self.whole.k, self.whole.v, scoring, backend="reference")


@pytest.mark.parametrize(
    "case", ["alibi", full("cable"), *(longest(case) for case in CASES if case not in ("alibi", "cable"))]
)
def test_attention_is_that_of_all_keys(case, rng):
    steps = Steps(rng, case)
    for count in (1, 3, 200, 1, 3, 1, 200, 3, 1):  # pieces longer and shorter than the buffer of 128
        out, expected = steps.read(count)
        np.testing.assert_allclose(out, expected, atol=1e-5)
    assert not steps.pruned.missed.any()
    assert steps.pruned.parts[0].k.shape == (B, 128, 2, D) and isinstance(steps.pruned.parts[1], Cache)


def test_rows_of_different_lengths_and_some_rows_only(rng):
    steps = Steps(rng, pads=150)
    for count, rows in ((200, 3), (1, 1), (200, 0), (1, 1)):
        out, expected = steps.read(count, rows)
        np.testing.assert_allclose(out, expected, atol=1e-5)
    assert not steps.pruned.missed.any()


@pytest.mark.parametrize(
    "count", [1, pytest.param(3, marks=pytest.mark.full), pytest.param(200, marks=pytest.mark.full)]
)
def test_a_key_that_outweighs_its_prior_is_missed(count, rng):
    """A dropped key, aligned with a later query: the norms bound it, and the head that must keep more is named."""
    steps = Steps(rng)
    steps.k = steps.k.at[:, 10, 1].set(200 * steps.q[:, 400 + count - 1, 3])
    steps.read(200), steps.read(200)
    steps.pruned = dataclasses.replace(steps.pruned, missed=jnp.zeros(K, bool))  # its norm alone was suspect before
    out, expected = steps.read(count)
    assert float(jnp.abs(out - expected).max()) > 0.1
    np.testing.assert_array_equal(steps.pruned.missed, [False, True, False])


@pytest.mark.parametrize("case", ["alibi", pytest.param("cable", marks=pytest.mark.full)])
def test_a_buffer_that_is_too_short_is_noticed(case, rng):
    steps = Steps(rng, case, groups=(((0, 1, 2), 128),))
    for piece in (128, 1):  # one key is gone, and head 2 sees far
        steps.read(piece)
    np.testing.assert_array_equal(steps.pruned.missed, [False, False, True])


@pytest.mark.full
@pytest.mark.parametrize("name", ["k", "v"])
def test_what_is_not_finite_is_missed(name, rng):
    steps = Steps(rng)
    setattr(steps, name, getattr(steps, name).at[0, 3, 0, 0].set(jnp.nan))
    for piece in (150, 1):
        steps.read(piece)
    assert steps.pruned.missed[0] and not steps.pruned.missed[2]


@pytest.mark.full
def test_a_share_of_the_mass_is_tolerated(rng):
    """Head 2 has a slope of 1/1000 nats: a key at 128 of 129 tokens holds a hundredth of its mass."""
    missed = []
    for tolerance in ("exact", 0.9):
        steps = Steps(rng, groups=(((0, 1, 2), 128),), norm=0.01)
        steps.pruned = dataclasses.replace(steps.pruned, tolerance=tolerance, slots=1)
        for piece in (128, 1):
            steps.read(piece)
        missed.append(bool(steps.pruned.missed[2]))
    assert missed == [True, False]


@pytest.mark.full
def test_a_rewound_cache_goes_on_as_if_nothing_had_followed(rng):
    steps = Steps(rng, "cable")
    steps.read(300)
    saved, before = steps.pruned.to_save, steps.whole
    steps.read(1), steps.read(200)
    steps.pruned, steps.whole, steps.at = steps.pruned.rewound(300, saved), before, 300
    for count in (1, 150):
        out, expected = steps.read(count)
        np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.full
def test_halves_are_kept_as_they_are(rng):
    steps = Steps(rng, dtype=jnp.bfloat16)
    for count in (200, 1, 1):
        out, expected = steps.read(count)
        assert out.dtype == jnp.bfloat16
        np.testing.assert_allclose(out.astype(jnp.float32), expected.astype(jnp.float32), atol=0.02)
    assert isinstance(steps.pruned.parts[0], RollingCache) and steps.pruned.parts[0].k.dtype == jnp.bfloat16


def test_heads_of_similar_reach_share_a_buffer():
    assert grouped([5000, 5000], 4096) == (((0, 1), 0),)
    assert grouped([100, 5000, 130], 4096) == (((0,), 128), ((2,), 256), ((1,), 0))
    assert grouped([1000, 1100, 2000, 100], 4096) == (((3,), 128), ((0, 1), 1152), ((2,), 2048))
    reach = [100 * 2**n for n in range(8)]
    groups = grouped(reach, 2**20)
    assert sorted(head for heads, _ in groups for head in heads) == list(range(8))
    assert all(reach[head] <= slots for heads, slots in groups for head in heads)
    assert sum(len(heads) * slots for heads, slots in groups) < 1.15 * sum(reach) and len(groups) < 7


def test_what_needs_dropped_keys_is_refused(rng):
    steps = Steps(rng)
    steps.scoring = dataclasses.replace(steps.scoring, mask=Mask(window=100, sink_tokens=4))
    with pytest.raises(ValueError, match="sink tokens and row-wise biases"):
        steps.read(1)
