"""Attention with a positional bias inside other libraries' modules."""

from bam_jax.adapters.flax_modules import EncodedAttention, PriorAttention, attention_fn

__all__ = ["EncodedAttention", "PriorAttention", "attention_fn"]
