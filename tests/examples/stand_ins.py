"""The attention of other people's libraries, small and dense: their names, arguments, parameters and caches, our code.

`bias(i, j)`, where a test sets it, adds a table [B, H, T, S] for positions [B, T] and [B, S] to the logits.
"""

import dataclasses
import enum
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

HIDDEN = -2.4e38
NORMAL = nn.initializers.normal(0.3)


def dense(q, k, v, mask, table=0.0, soft_cap=None):
    """Attention [B, T, H, D] with grouped heads, a mask [B, T, S], and queries that are scaled already."""
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    logits = jnp.einsum("bthd,bshd->bhts", q, k)
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    logits = jnp.where(mask[:, None], logits + table, HIDDEN)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits), v)


def turned(x, position, base, factor):
    """RoPE in halves."""
    angles = position[..., None, None] / factor * base ** (-2 * jnp.arange(x.shape[-1] // 2) / x.shape[-1])
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1)


def within(mask, i, j, window):
    return mask & (i[:, :, None] - j[:, None] < window)


class AttentionType(enum.Enum):
    GLOBAL = 1
    LOCAL_SLIDING = 2


# google/flax, examples/gemma.


class NnxGemma(nnx.Module):
    bias = None

    def __init__(
        self,
        num_heads,
        num_kv_heads,
        features,
        head_dim,
        query_pre_attn_scalar,
        attn_type,
        *,
        rngs,
        rope_base_frequency=10_000,
        rope_scale_factor=1.0,
        attn_logits_soft_cap=None,
        sliding_window_size=None,
        use_qk_norm=False,
    ):
        self.head_dim, self.query_pre_attn_scalar, self.attn_type = head_dim, query_pre_attn_scalar, attn_type
        self.rope_base_frequency, self.rope_scale_factor = rope_base_frequency, rope_scale_factor
        self.attn_logits_soft_cap, self.sliding_window_size = attn_logits_soft_cap, sliding_window_size
        self.use_qk_norm, self.use_qkv_einsum = use_qk_norm, num_heads == num_kv_heads
        self.attn_vec_einsum = nnx.Einsum("BTNH,NHD->BTD", (num_heads, head_dim, features), rngs=rngs)
        if self.use_qkv_einsum:
            self.qkv_einsum = nnx.Einsum("BTD,SNDH->SBTNH", (3, num_heads, features, head_dim), rngs=rngs)
        else:
            self.q_einsum = nnx.Einsum("BTD,NDH->BTNH", (num_heads, features, head_dim), rngs=rngs)
            self.kv_einsum = nnx.Einsum("BTD,CKDH->CBTKH", (2, num_kv_heads, features, head_dim), rngs=rngs)
        if use_qk_norm:
            self._query_norm, self._key_norm = (nnx.RMSNorm(head_dim, rngs=rngs) for _ in range(2))

    def __call__(self, x, segment_pos, cache, attn_mask, rngs=None):
        q, k, v = self.qkv_einsum(x) if self.use_qkv_einsum else (self.q_einsum(x), *self.kv_einsum(x))
        if self.use_qk_norm:
            q, k = self._query_norm(q), self._key_norm(k)
        q, k = (turned(each, segment_pos, self.rope_base_frequency, self.rope_scale_factor) for each in (q, k))
        j = segment_pos
        if cache is not None:
            at = (0, cache["end_index"][0], 0, 0)
            k, v = (jax.lax.dynamic_update_slice(cache[name], new, at) for name, new in (("k", k), ("v", v)))
            j = jnp.broadcast_to(jnp.arange(k.shape[1]), k.shape[:2])
            cache = {"k": k, "v": v, "end_index": cache["end_index"] + x.shape[1]}
        if self.attn_type == AttentionType.LOCAL_SLIDING:
            attn_mask = within(attn_mask, segment_pos, j, self.sliding_window_size)
        table = 0.0 if self.bias is None else self.bias(segment_pos, j)
        out = dense(q * self.query_pre_attn_scalar, k, v, attn_mask, table, self.attn_logits_soft_cap)
        return cache, self.attn_vec_einsum(out)


def flax_gemma():
    rope = lambda x, position, *, head_dim, max_wavelength, scale_factor: turned(
        x, position, max_wavelength, scale_factor
    )
    modules = types.SimpleNamespace(Attention=NnxGemma, AttentionType=AttentionType)
    return {"modules": modules, "positional_embeddings": types.SimpleNamespace(apply_rope=rope)}


# google-deepmind/gemma.


class Einsum(nn.Module):
    shape: tuple[int, ...]

    @nn.compact
    def __call__(self, formula, x):
        return jnp.einsum(formula, x, self.param("w", NORMAL, self.shape))


class LinenGemma(nn.Module):
    num_heads: int
    num_kv_heads: int
    features: int
    head_dim: int
    attn_type: AttentionType
    query_pre_attn_scalar: float
    rope_base_frequency: int = 10_000
    rope_scale_factor: float = 1.0
    attn_logits_soft_cap: float | None = None
    sliding_window_size: int | None = None
    use_qk_norm: bool = False
    bias: Any = None

    @property
    def use_qkv_einsum(self):
        return self.num_heads == self.num_kv_heads

    def setup(self):
        self.attn_vec_einsum = Einsum((self.num_heads, self.head_dim, self.features))
        if self.use_qkv_einsum:
            self.qkv_einsum = Einsum((3, self.num_heads, self.features, self.head_dim))
        else:
            self.q_einsum = Einsum((self.num_heads, self.features, self.head_dim))
            self.kv_einsum = Einsum((2, self.num_kv_heads, self.features, self.head_dim))
        if self.use_qk_norm:
            self._query_norm, self._key_norm = nn.RMSNorm(), nn.RMSNorm()

    def __call__(self, x, segment_pos, cache, attn_mask):
        if self.use_qkv_einsum:
            q, k, v = self.qkv_einsum("BTD,SNDH->SBTNH", x)
        else:
            q, (k, v) = self.q_einsum("BTD,NDH->BTNH", x), self.kv_einsum("BSD,CKDH->CBSKH", x)
        if self.use_qk_norm:
            q, k = self._query_norm(q), self._key_norm(k)
        q, k = (turned(each, segment_pos, self.rope_base_frequency, self.rope_scale_factor) for each in (q, k))
        j = segment_pos
        if cache is not None:
            at = cache["end_index"][0]
            k, v = (jax.lax.dynamic_update_slice(cache[name], new, (0, at, 0, 0)) for name, new in (("k", k), ("v", v)))
            j = jax.lax.dynamic_update_slice(cache["positions"], segment_pos, (0, at))
            cache = {"k": k, "v": v, "positions": j, "end_index": cache["end_index"] + x.shape[1]}
        if self.attn_type == AttentionType.LOCAL_SLIDING:
            attn_mask = within(attn_mask, segment_pos, j, self.sliding_window_size)
        table = 0.0 if self.bias is None else self.bias(segment_pos, j)
        out = dense(q * self.query_pre_attn_scalar, k, v, attn_mask, table, self.attn_logits_soft_cap)
        return cache, self.attn_vec_einsum("BTNH,NHD->BTD", out)


def deepmind_gemma():
    rope = lambda x, position, *, base_frequency, scale_factor: turned(x, position, base_frequency, scale_factor)
    embeddings = types.SimpleNamespace(apply_rope=rope)
    modules = types.SimpleNamespace(Attention=LinenGemma, AttentionType=AttentionType)
    return {
        "gemma.gm.math": types.SimpleNamespace(_positional_embeddings=embeddings),
        "gemma.gm.nn": types.SimpleNamespace(_modules=modules),
    }


# google/flax, examples/lm1b.


@dataclasses.dataclass(frozen=True)
class LmConfig:
    num_heads: int = 4
    qkv_dim: int = 16
    dtype: Any = jnp.float32
    kernel_init: Any = NORMAL
    attention_dropout_rate: float = 0.0
    dropout_rate: float = 0.0
    deterministic: bool = True
    decode: bool = False


class Mlp(nn.Module):
    config: LmConfig

    @nn.compact
    def __call__(self, x):
        return nn.Dense(x.shape[-1])(nn.relu(nn.Dense(8)(x)))


class Block(nn.Module):
    config: LmConfig
    bias: Any = None

    @nn.compact
    def __call__(self, inputs, decoder_mask=None, encoder_decoder_mask=None):
        config = self.config
        at = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape[:2])
        table = None if self.bias is None else self.bias(at, at)
        x = nn.MultiHeadDotProductAttention(
            num_heads=config.num_heads,
            qkv_features=config.qkv_dim,
            kernel_init=config.kernel_init,
            use_bias=False,
            attention_fn=lambda q, k, v, mask=None, **_: nn.dot_product_attention(q, k, v, bias=table, mask=mask),
        )(nn.LayerNorm()(inputs), mask=decoder_mask)
        x = x + inputs
        return x + Mlp(config)(nn.LayerNorm()(x))


class Positions(nn.Module):
    config: LmConfig
    decode: bool = False

    @nn.compact
    def __call__(self, x, inputs_positions=None):
        return x + self.param("table", nn.initializers.ones, (1, 1, x.shape[-1]))


def flax_lm1b():
    names = {
        "EncoderDecoder1DBlock": Block,
        "AddPositionEmbs": Positions,
        "MlpBlock": Mlp,
        "TransformerConfig": LmConfig,
    }
    return {"models": types.SimpleNamespace(**names)}


# MaxText.


class AttentionOp(nnx.Module):
    def __init__(
        self,
        config,
        mesh,
        *,
        num_query_heads,
        attn_logits_soft_cap=None,
        sliding_window_size=None,
        bias=None,
        rngs=None,
    ):
        self.bias = bias
        self.config, self.mesh, self.num_query_heads = config, mesh, num_query_heads
        self.attn_logits_soft_cap, self.sliding_window_size = attn_logits_soft_cap, sliding_window_size

    def _logical_to_mesh_axes(self, names):
        return P(*[{"batch": "data", "heads": "tensor"}.get(name) for name in names])

    def apply_attention(self, query, key, value, decoder_segment_ids, segment_positions, lengths, model_mode, **_):
        at = segment_positions
        document = decoder_segment_ids
        mask = (at[:, :, None] >= at[:, None]) & (document[:, :, None] == document[:, None])
        if self.sliding_window_size is not None:
            mask = within(mask, at, at, self.sliding_window_size)
        table = 0.0 if self.bias is None else self.bias(at, at)
        return dense(query, key, value, mask, table, self.attn_logits_soft_cap), None, None

    def __call__(self, q, k, v, segments, positions, model_mode):
        return self.apply_attention(
            query=q,
            key=k,
            value=v,
            decoder_segment_ids=segments,
            segment_positions=positions,
            lengths=None,
            model_mode=model_mode,
            sinks=None,
        )


def maxtext():
    axes = {"BATCH_ATTN": "batch", "LENGTH": "length", "HEAD": "heads", "D_KV": "width", "MODEL_MODE_TRAIN": "train"}
    op = types.SimpleNamespace(AttentionOp=AttentionOp)
    return {
        "maxtext.common.common_types": types.SimpleNamespace(**axes),
        "maxtext.layers": types.SimpleNamespace(
            attention_op=op, attentions=types.SimpleNamespace(AttentionOp=AttentionOp)
        ),
    }


# EasyDeL.


def easydel():
    slopes = lambda heads, length, alibi_bias_max=8: jnp.zeros((1, heads, 1, length))
    modeling = types.SimpleNamespace(build_mpt_alibi_tensor=slopes)
    return {"easydel.modules.mosaic_mpt": types.SimpleNamespace(modeling_mosaic=modeling)}
