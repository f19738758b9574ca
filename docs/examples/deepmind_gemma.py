"""Gemma of google-deepmind/gemma (linen) with learned ALiBi slopes on its logits, its cache included.

Import this file before `gm.nn.Gemma3_1B()` is initialised. Images, whose tokens see each other both ways, are left out.
"""

import jax
import jax.numpy as jnp
from gemma.gm.math import _positional_embeddings
from gemma.gm.nn import _modules

from bam_jax import attend, biases
from bam_jax.attention import EMPTY


class Attention(_modules.Attention):
    def setup(self):
        super().setup()
        self.slopes = self.param("slopes", lambda _: jnp.asarray(biases.alibi_slopes(self.num_heads)))

    def __call__(self, x, segment_pos, cache, attn_mask):
        if self.use_qkv_einsum:
            q, k, v = self.qkv_einsum("BTD,SNDH->SBTNH", x)
        else:
            q, (k, v) = self.q_einsum("BTD,NDH->BTNH", x), self.kv_einsum("BSD,CKDH->CBSKH", x)
        if self.use_qk_norm:
            q, k = self._query_norm(q), self._key_norm(k)
        turn = lambda x: _positional_embeddings.apply_rope(
            x, segment_pos, base_frequency=self.rope_base_frequency, scale_factor=self.rope_scale_factor
        )
        q, k = turn(q), turn(k)

        places = segment_pos
        if cache is not None:
            at = (0, cache["end_index"][0] % cache["v"].shape[1], 0, 0)
            new = {"k": k, "v": v, "positions": segment_pos}
            cache = {
                **{
                    name: jax.lax.dynamic_update_slice(cache[name], each, at[: each.ndim]) for name, each in new.items()
                },
                "end_index": cache["end_index"] + x.shape[1],
            }
            k, v, places = cache["k"], cache["v"], cache["positions"]

        local = self.attn_type == _modules.AttentionType.LOCAL_SLIDING
        out = attend(
            *(q, k, v, biases.ALiBi(self.slopes)),
            positions=jnp.where(attn_mask.any(1), places, EMPTY),  # neither padding nor empty slots
            query_positions=segment_pos,
            window=self.sliding_window_size if local else None,
            scale=self.query_pre_attn_scalar,
            soft_cap=self.attn_logits_soft_cap,
        )
        return cache, self.attn_vec_einsum("BTNH,NHD->BTD", out)


_modules.Attention = Attention  # the blocks find it here
