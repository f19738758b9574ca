"""Attention with a differentiable positional bias that is evaluated on the fly.

>>> import jax.numpy as jnp
>>> from bam_jax import biases
>>> from bam_jax.attention import Scoring, Tokens, attention
>>> x = jnp.ones((1, 5, 2, 8))                                     # [B, T, H, D]
>>> tokens = Tokens(jnp.arange(5)[None])
>>> attention(x, x, x, Scoring(biases.ALiBi(biases.alibi_slopes(2)), tokens, tokens)).shape
(1, 5, 2, 8)
"""

from bam_jax.attention.cache import Cache
from bam_jax.attention.logits.dropout import Dropout
from bam_jax.attention.logits.mask import Mask, document_count
from bam_jax.attention.logits.scoring import Scoring
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.attention.logits.tokens import EMPTY, Tokens, UniqueKeys
from bam_jax.attention.op import BACKENDS, Backend, Unsupported, attention, choose
from bam_jax.attention.pruned import PrunedCache
from bam_jax.attention.shorthand import attend

__all__ = [
    "BACKENDS",
    "EMPTY",
    "Backend",
    "Cache",
    "Dropout",
    "Mask",
    "PrunedCache",
    "Scoring",
    "Tiling",
    "Tokens",
    "UniqueKeys",
    "Unsupported",
    "attend",
    "attention",
    "choose",
    "document_count",
]
