"""Attention with a positional bias inside other libraries' modules."""

from bam_jax.adapters.flax_modules import EncodedAttention, LinenPriorAttention, PriorAttention, attention_fn

__all__ = ["EncodedAttention", "LinenPriorAttention", "PriorAttention", "attention_fn"]
