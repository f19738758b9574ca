"""Embeddings against the rows that the model gives for each text alone."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax.config import Config, ModelConfig
from bam_jax.models import transformer as models
from bam_jax.models.embedding import embed_texts

SIZES = ModelConfig(layers=2, width=16, heads=2, hidden=32, causal=False)


@pytest.fixture(scope="module")
def model():
    return models.build(Config(encoding="cable", context=8, model=SIZES), vocab=11, rngs=nnx.Rngs(0))


@pytest.mark.full
def test_an_embedding_is_the_mean_of_the_texts_own_rows(model):
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 11, (3, 8)))
    length = jnp.asarray([8, 3, 0])
    made = embed_texts(model, tokens, length)
    for n in (0, 1):
        alone = model.hidden(tokens[n : n + 1, : length[n]])[0][0]
        np.testing.assert_allclose(made[n], alone.mean(0), atol=1e-5)
    assert not made[2].any()


def test_what_stands_behind_a_text_does_not_matter(model):
    tokens = jnp.ones((1, 8), jnp.int32)
    np.testing.assert_array_equal(
        embed_texts(model, tokens, jnp.asarray([5])), embed_texts(model, tokens.at[:, 5:].set(7), jnp.asarray([5]))
    )
