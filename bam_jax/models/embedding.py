"""The embedding of a text, which an encoder is trained to place near those of related texts."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bam_jax.models.transformer import Decoder


def embed_texts(model: Decoder, tokens: Int[Array, "B T"], length: Int[Array, " B"]) -> Float[Array, "B E"]:
    """The mean of the last hidden rows of a text's first `length` tokens, in float32; it is not normalised."""
    filled = jnp.arange(tokens.shape[1]) < length[:, None]
    hidden, _ = model.hidden(tokens, segment=filled.astype(jnp.int32))
    return mean_rows(hidden, length)


def mean_rows(rows: Float[Array, "B T E"], length: Int[Array, " B"]) -> Float[Array, "B E"]:
    """The mean of the first `length` rows of each text, in float32; 0 where there are none."""
    filled = jnp.arange(rows.shape[1]) < length[:, None]
    return jnp.where(filled[..., None], rows.astype(jnp.float32), 0).sum(1) / jnp.maximum(length, 1)[:, None]
