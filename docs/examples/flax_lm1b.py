"""The language model of google/flax (examples/lm1b, linen) with learned ALiBi slopes and no embeddings of positions.

Import this file in `train.py` before the model is built. The prior's parameters are parameters of each block. The example's
dropout of attention weights stays.
"""

import flax.linen as nn
import jax.numpy as jnp
import models

from bam_jax import biases
from bam_jax.adapters import attention_fn
from bam_jax.attention import Mask


class Block(models.EncoderDecoder1DBlock):
    @nn.compact
    def __call__(self, inputs, decoder_mask=None, encoder_decoder_mask=None):
        config = self.config
        slopes = self.param("slopes", lambda _: jnp.asarray(biases.alibi_slopes(config.num_heads)))
        x = nn.LayerNorm(dtype=config.dtype)(inputs)
        x = nn.MultiHeadDotProductAttention(
            num_heads=config.num_heads,
            dtype=config.dtype,
            qkv_features=config.qkv_dim,
            kernel_init=config.kernel_init,
            use_bias=False,
            dropout_rate=config.attention_dropout_rate,
            deterministic=config.deterministic,
            decode=config.decode,
            attention_fn=attention_fn(biases.ALiBi(slopes), Mask(causal=True), segments=documents(decoder_mask)),
        )(x)
        x = inputs + nn.Dropout(rate=config.dropout_rate)(x, deterministic=config.deterministic)
        return x + models.MlpBlock(config=config)(nn.LayerNorm(dtype=config.dtype)(x))


class NoPositions(nn.Module):
    """In place of the embeddings of positions: they would say where a token stands a second time."""

    config: models.TransformerConfig
    decode: bool = False

    def __call__(self, x, inputs_positions=None):
        return x


def documents(mask):
    """Numbers of documents [B, T] from their causal mask [B, 1, T, T]: a token that cannot see the one before begins one."""
    if mask is None:
        return None
    begins = jnp.diagonal(mask[:, 0], -1, 1, 2) == 0
    return 1 + jnp.pad(jnp.cumsum(begins, axis=1), ((0, 0), (1, 0)))


models.EncoderDecoder1DBlock, models.AddPositionEmbs = Block, NoPositions  # the decoder finds them here
