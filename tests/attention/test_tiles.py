"""Tiles that are left out lack nothing that could be seen in the result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax import biases
from bam_jax.attention import BACKENDS, Mask, Scoring, Tokens, attention, chunked, tiles

B, T, H, D = 2, 48, 2, 4
PRIORS = {
    "alibi": biases.ALiBi(jnp.array([3.0, 40.0])),
    "ggd": biases.GeneralisedGaussian(jnp.array([1.5, -0.5]), jnp.array([2.0, 0.0]), jnp.array([1.0, 0.0])),
    "rising": biases.ALiBi(jnp.array([-30.0, -20.0])),
}


@pytest.mark.parametrize(
    "mask", [Mask(), Mask(causal=False), Mask(window=9)], ids=["causal", "bidirectional", "window"]
)
@pytest.mark.parametrize("temperature", [None, (0.0, 3.0), (-1.0, 1.0)])
@pytest.mark.parametrize("prior", PRIORS)
def test_what_is_left_out_does_not_matter(prior, temperature, mask, rng, monkeypatch, x64):
    monkeypatch.setattr(chunked, "_block_sizes", lambda q, k: (8, 8))
    q, k, v = (jnp.asarray(rng.normal(size=(B, T, H, D))) for _ in range(3))
    tokens = Tokens(jnp.arange(T)[None], jnp.asarray(np.repeat([[1, 2]], T // 2, axis=1)))
    if temperature is not None:
        temperature = jnp.asarray(rng.uniform(*temperature, (1, H, T)))

    def run(backend):
        def loss(q, k, v, bias, temperature):
            out = attention(q, k, v, Scoring(bias, tokens, tokens, temperature, mask), backend=backend)
            return (out * jnp.cos(jnp.arange(D))).sum(), out

        return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(
            q, k, v, jax.tree.map(jnp.float64, PRIORS[prior]), temperature
        )

    expected = run("reference")
    for backend in set(BACKENDS) - {"reference"}:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-7 * max(1, np.abs(b).max())),
            run(backend),
            expected,
        )


def test_far_tiles_are_left_out_of_a_local_head():
    tokens = Tokens(jnp.arange(T)[None], coordinate=jnp.arange(float(T))[None, None])
    x = jnp.ones((B, T, 1, D))
    first, last = tiles.key_blocks(x, x, Scoring(biases.ALiBi(jnp.array([10.0])), tokens, tokens), 8, 8)
    assert (last == jnp.arange(1, T // 8 + 1)).all()
    assert first.tolist() == [0, 0, 0, 0, 1, 2]
    first, _ = tiles.key_blocks(x, x, Scoring(biases.ALiBi(jnp.array([0.01])), tokens, tokens), 8, 8)
    assert not first.any()
