import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax.attention import EMPTY


@pytest.fixture
def tokens(rng):
    """Two rows of 12 of 24 tokens, none of them repeated."""
    return jnp.asarray(np.stack([rng.permutation(24)[:12] for _ in range(2)]), jnp.int32)


@pytest.fixture
def slopes():
    """A loss of all of a model's logits, and its gradient."""

    def value_and_gradient(model, tokens, segment=None):
        graph, state = nnx.split(model)
        weigh = lambda logits: (logits * jnp.cos(jnp.arange(logits.shape[-1]))).sum()
        loss = lambda state: weigh(nnx.merge(graph, state)(tokens, segment=segment)[0])
        return jax.jit(jax.value_and_grad(loss))(state)

    return value_and_gradient


@pytest.fixture
def by_pieces():
    """Gives a model's logits of rows that its caches read: half behind two empty slots, the rest but two, then one by one."""

    def logits(model, tokens):
        rows, length = tokens.shape
        padded = jnp.pad(tokens, ((0, 0), (2, 0)))
        position = jnp.pad(jnp.arange(length), (2, 0), constant_values=EMPTY)[None]
        caches, pieces = model.caches(rows, length + 3), []
        for start, stop in ((0, length // 2), (length // 2, length), (length, length + 1), (length + 1, length + 2)):
            piece = slice(start, stop)
            out, caches = model(padded[:, piece], position=position[:, piece], caches=caches)
            pieces.append(out)
        return jnp.concatenate(pieces, 1)[:, 2:]

    return logits
