"""Attention with a positional bias inside other libraries' modules."""

from bam_jax.adapters.flax_modules import PriorAttention, attention_fn

__all__ = ["PriorAttention", "attention_fn"]
