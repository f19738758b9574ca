"""MaxText, training with learned ALiBi slopes on its logits. Import this file before the model is built.

MaxText's prefill and decoding keep their own attention, which has no bias: they raise an error here. A mesh may cut rows and
heads, not the text.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from maxtext.common.common_types import BATCH_ATTN, D_KV, HEAD, LENGTH, MODEL_MODE_TRAIN
from maxtext.layers import attention_op, attentions

from bam_jax import attend, biases


class AttentionOp(attention_op.AttentionOp):
    def __init__(self, *others, num_query_heads, **named):
        super().__init__(*others, num_query_heads=num_query_heads, **named)
        self.slopes = nnx.Param(jnp.asarray(biases.alibi_slopes(num_query_heads)), out_sharding=(None,))

    def apply_attention(self, query, key, value, decoder_segment_ids, segment_positions, lengths, model_mode, **_):
        if model_mode != MODEL_MODE_TRAIN:
            raise NotImplementedError(f"attention with a bias in mode {model_mode!r}")

        def here(q, k, v, slopes, segments):
            # MaxText folds 1 / sqrt(D) into the query's weights or multiplies the query by it.
            bias, window = biases.ALiBi(slopes), self.sliding_window_size
            return attend(
                q, k, v, bias, segments=segments, window=window, scale=1.0, soft_cap=self.attn_logits_soft_cap
            )

        # The compiler cannot cut a kernel, so each device gets its rows and heads.
        rows, text, heads, width = self._logical_to_mesh_axes((BATCH_ATTN, LENGTH, HEAD, D_KV))
        if text is not None:
            raise NotImplementedError(f"attention with a bias over texts cut along {text!r}")
        each = P(rows, None, heads, width)
        where = each, each, each, P(heads), P(rows)
        attend_here = jax.shard_map(here, mesh=self.mesh, in_specs=where, out_specs=each, check_vma=False)
        return attend_here(query, key, value, self.slopes[...], decoder_segment_ids), None, None


attentions.AttentionOp = AttentionOp  # the layers find it here
