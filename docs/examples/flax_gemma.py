"""Gemma of google/flax (examples/gemma, NNX) with a learned prior on its logits.

Import this file in `main.py` before the model is built. Every layer then has the parameters of a BAM prior.
"""

import jax
import jax.numpy as jnp
import modules
import positional_embeddings

from bam_jax import attend, encodings
from bam_jax.attention import EMPTY


class Attention(modules.Attention):
    def __init__(self, num_heads, num_kv_heads, features, *others, rngs, **named):
        super().__init__(num_heads, num_kv_heads, features, *others, rngs=rngs, **named)
        self.prior = encodings.BAM(encodings.Dims(num_heads, features, context=1024), rngs=rngs)

    def __call__(self, x, segment_pos, cache, attn_mask, rngs=None):
        if self.use_qkv_einsum:
            q, k, v = self.qkv_einsum(x)
        else:
            q, (k, v) = self.q_einsum(x), self.kv_einsum(x)
        if self.use_qk_norm:
            q, k = self._query_norm(q), self._key_norm(k)
        # Leave these three lines out for a model whose only positions are the prior's.
        base, factor = self.rope_base_frequency, self.rope_scale_factor
        turn = lambda x: positional_embeddings.apply_rope(
            x, segment_pos, head_dim=self.head_dim, max_wavelength=base, scale_factor=factor
        )
        q, k = turn(q), turn(k)

        if cache is None:  # in packed rows a position of 0 begins the next document
            where = {"segments": jnp.cumsum(segment_pos == 0, axis=1)}
        else:  # the mask is false at the cache's empty slots
            at = (0, cache["end_index"][0] % cache["v"].shape[1], 0, 0)
            k, v = (jax.lax.dynamic_update_slice(cache[name], new, at) for name, new in (("k", k), ("v", v)))
            slots = jnp.where(attn_mask.any(1), jnp.arange(k.shape[1]), EMPTY)
            where = {"positions": slots, "query_positions": segment_pos}
            cache = {"k": k, "v": v, "end_index": cache["end_index"] + x.shape[1]}

        local = self.attn_type == modules.AttentionType.LOCAL_SLIDING
        out = attend(
            *(q, k, v, self.prior.bias()),
            window=self.sliding_window_size if local else None,
            scale=self.query_pre_attn_scalar,
            soft_cap=self.attn_logits_soft_cap,
            **where,
        )
        return cache, self.attn_vec_einsum(out)


modules.Attention = Attention  # the blocks find it here
