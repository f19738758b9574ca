"""EasyDeL's MPT with a prior of one's own in place of ALiBi, as the table that its attention takes.

The table is an array [1, H, T, T]: right for short texts, and slow and large for long ones. Import this file before the model
is built.
"""

import jax.numpy as jnp
from easydel.modules.mosaic_mpt import modeling_mosaic

from bam_jax import biases


def prior_table(num_heads, sequence_length, alibi_bias_max=8):
    at = jnp.arange(sequence_length, dtype=jnp.float32)[None, None]
    shape, scale = jnp.full(num_heads, 0.5), jnp.linspace(-4.0, 0.0, num_heads)
    return biases.table(biases.GeneralisedGaussian(shape, scale, jnp.zeros(num_heads)), at, at)


modeling_mosaic.build_mpt_alibi_tensor = prior_table
