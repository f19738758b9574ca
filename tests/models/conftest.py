"""A row read piece by piece, for the tests of models."""

import jax.numpy as jnp
import pytest

from bam_jax.attention import EMPTY


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
