"""Attention with a positional bias inside Flax's own modules, as their `attention_fn`.

A bias whose parameters are fixed, or belong to the surrounding module, in NNX and linen:

    nnx.MultiHeadAttention(..., attention_fn=attention_fn(biases.ALiBi(slopes), Mask(causal=True)), rngs=rngs)
    nn.MultiHeadDotProductAttention(..., attention_fn=attention_fn(bias, Mask(causal=True)))

A learned prior, whose parameters become parameters of the NNX module:

    prior = encodings.BAM(encodings.Dims(heads, width, context), rngs=rngs)
    nnx.MultiHeadAttention(..., attention_fn=PriorAttention(prior, Mask(causal=True)), rngs=rngs)

The same in linen, where the arrays of the bias become parameters:

    prior = lambda key: biases.GeneralisedGaussian(jnp.linspace(-1.0, 1.0, heads), jnp.zeros(heads), jnp.zeros(heads))
    nn.MultiHeadDotProductAttention(heads, attention_fn=LinenPriorAttention(prior, Mask(causal=True)))

An encoding that reads the layer's input or rotates queries and keys, such as CABLE and RoPE, inside your own layer:

    self.attend = EncodedAttention("cable", encodings.Dims(heads, width, context), rngs=rngs)
    out = self.attend(x, q, k, v)
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bam_jax.attention import EMPTY, Dropout, Mask, Scoring, Tiling, Tokens, Unsupported, attention
from bam_jax.biases import Bias
from bam_jax.encodings import Dims, Encoding, spec


def attention_fn(
    bias: Bias,
    mask: Mask,
    *,
    segments: Int[Array, "#B T"] | None = None,
    backend: str = "auto",
    tiling: Tiling | None = None,
) -> Callable[..., Float[Array, "... T H D"]]:
    """The `attention_fn` of `flax.nnx.MultiHeadAttention` and of linen's `MultiHeadDotProductAttention`.

        out_i = sum_j softmax_j(q_i . k_j / sqrt(D) + bias(i, j)) v_j,   j visible from i

    The position of a token is its index. Causality and windows come from `mask` (`is_causal` of the call adds causality); a dense
    mask would take O(T S) memory. A mask of keys alone, [..., 1, 1, S], is accepted: it hides padding, and a row that sees no key
    gives 0. In decode mode it marks the cache slots that are written, and the query is at the last of them.

    Dropout of weights is that of the module: `dropout_rate`, `deterministic`, and random numbers from its stream "dropout". As
    there, rows and heads drop the same weights unless `broadcast_dropout=False`. See `attention.Dropout`.

    Args:
        bias: a bias of positions, with parameters [H] or [H, n]; gradients flow to the arrays that it was made from.
        mask: causality and window.
        segments: document numbers from 1, in packed rows; 0 is padding. None: each row is one text.
        backend, tiling: see `attention.attention`.

    Returns:
        A function of queries [..., T, H, D], keys and values [..., S, K, D] and Flax's other arguments. It raises Unsupported
        for arguments that it does not support: a dense mask or bias, sown weights, a precision, custom einsums or positions,
        and T different from S, except for a single query whose position follows from a mask of keys.

    Source: the arguments that flax 0.12's modules pass.
    """
    return _Attention(bias, mask, segments, backend, Tiling() if tiling is None else tiling)


class PriorAttention(nnx.Module):
    """The `attention_fn` of `flax.nnx.MultiHeadAttention` with a learned prior; see `attention_fn`.

    Args:
        prior: an encoding of this package that consists of its bias only.
        mask, backend, tiling: see `attention_fn`.

    Raises:
        Unsupported: the encoding uses another hook, which Flax's module would not call.
    """

    def __init__(self, prior: Encoding, mask: Mask, *, backend: str = "auto", tiling: Tiling | None = None):
        hooks = {"embed": prior.embedding is not None, "window": prior.window is not None}
        for name in ("turn", "coordinate", "rowwise"):
            hooks[name] = getattr(type(prior), name) is not getattr(Encoding, name)
        for name, used in hooks.items():
            if used:
                raise Unsupported(f"{type(prior).__name__} is more than a bias of positions: it has the hook {name!r}")
        self.prior = prior
        self.mask, self.backend, self.tiling = mask, backend, tiling

    def __call__(self, query: Array, key: Array, value: Array, **options: Any) -> Float[Array, "... T H D"]:
        """See `attention_fn`."""
        attend = attention_fn(self.prior.bias(), self.mask, backend=self.backend, tiling=self.tiling)
        return attend(query, key, value, **options)


class EncodedAttention(nnx.Module):
    """Self-attention, between a layer's projections, with any encoding of this package except those that add to the embeddings.

    Parameters of the encoding, such as CABLE's w, belong to this module. In linen: `nnx.bridge.to_linen(EncodedAttention,
    "cable", dims)`, which is called in the same way.

    Args:
        encoding: its name, such as "cable" or "rope".
        dims: heads and width of the model, the training context, and whether attention is causal.
        options: options of the encoding, such as {"base": 500000.0}; and window, the tokens that a query sees, itself included.
        backend, tiling: see `attention.attention`.

    Raises:
        Unsupported: the encoding adds to the embeddings.
        UserError: there is no such encoding or option.
    """

    def __init__(
        self,
        encoding: str,
        dims: Dims,
        *,
        options: Mapping[str, Any] = {},
        backend: str = "auto",
        tiling: Tiling | None = None,
        rngs: nnx.Rngs,
    ):
        self.encoding = spec(encoding, options).build(dims, rngs)
        if self.encoding.embedding is not None:
            raise Unsupported(f"{encoding} adds to the embeddings, and attention does not see it; add it there")
        self.mask = Mask(causal=dims.causal, window=self.encoding.window)
        self.backend, self.tiling = backend, Tiling() if tiling is None else tiling

    def __call__(
        self,
        x: Float[Array, "B T E"],
        q: Float[Array, "B T H D"],
        k: Float[Array, "B T K D"],
        v: Float[Array, "B T K D"],
        segments: Int[Array, "#B T"] | None = None,
    ) -> Float[Array, "B T H D"]:
        """Attends within each text of a batch.

        Args:
            x: the layer's normalised input, from which q, k and v are computed; encodings of positions do not read it.
            q, k, v: before the encoding rotates them.
            segments: document numbers from 1; 0 is padding. None: each row is one text.
        """
        tokens = Tokens(jnp.arange(q.shape[1], dtype=jnp.int32)[None], segments, consecutive=True)
        i, j = self.encoding.coordinate(x, tokens.position < EMPTY, None)
        width, state = q.shape[-1], self.encoding.initial_state(len(x))
        q, k, _ = self.encoding.turn(q, k, x, tokens, state)
        queries, keys = (dataclasses.replace(tokens, coordinate=own) for own in (i, j))
        rowwise = self.encoding.rowwise()
        scoring = Scoring(self.encoding.bias(), queries, keys, None, self.mask, rowwise, scale=1 / math.sqrt(width))
        return attention(q, k, v, scoring, backend=self.backend, tiling=self.tiling)


@dataclasses.dataclass(frozen=True, eq=False)
class _Attention:
    """The function that `attention_fn` makes."""

    bias: Bias
    mask: Mask
    segments: Array | None
    backend: str
    tiling: Tiling

    # Linen passes only those arguments that the signature names.
    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        *,
        broadcast_dropout: bool = True,
        dropout_rng: Any = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        is_causal: bool = False,
        force_fp32_for_softmax: bool = True,  # always so here
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
        input_positions: Any = None,
    ) -> Array:
        unsupported = {
            "bias": bias is not None,
            "precision": precision is not None,
            "sow_weights": module is not None,
            "qk_attn_weights_einsum": qk_attn_weights_einsum is not None,
            "attn_weights_value_einsum": attn_weights_value_einsum is not None,
            "input_positions": input_positions is not None,
        }
        for name, asked in unsupported.items():
            if asked:
                raise Unsupported(f"attention that never holds its weights cannot do this of Flax's: {name}")
        dtype = jnp.result_type(query, key, value) if dtype is None else dtype
        flat = lambda x: x.reshape(-1, *x.shape[-3:])
        q, k, v = (flat(x.astype(dtype)) for x in (query, key, value))
        queries, keys = _tokens(q, k, query.shape[:-3], mask)
        if self.segments is not None:
            if k.shape[1] != self.segments.shape[-1] or q.shape[1] != k.shape[1]:
                raise Unsupported(
                    f"documents of {self.segments.shape[-1]} tokens, and {q.shape[1]} queries among {k.shape[1]} keys"
                )
            queries, keys = (dataclasses.replace(side, segment=self.segments) for side in (queries, keys))
        own = dataclasses.replace(self.mask, causal=self.mask.causal or is_causal)
        dropout = None
        if not deterministic:
            dropout = _dropout(dropout_rate, dropout_rng, broadcast_dropout, q.shape[0], q.shape[2])
        scoring = Scoring(self.bias, queries, keys, mask=own, dropout=dropout)
        out = attention(q, k, v, scoring, backend=self.backend, tiling=self.tiling)
        return out.reshape(query.shape)


class LinenPriorAttention(nn.Module):
    """The `attention_fn` of `flax.linen.MultiHeadDotProductAttention` with a learned prior; see `attention_fn`.

    Each array of the bias is a parameter under the name of its field. To keep one fixed, mask it in the optimiser.

    Args:
        prior: (key) -> the bias with its initial parameters, [H] or [H, n]: an initializer, which may ignore the key.
        mask, backend, tiling: see `attention_fn`.

    Example:
      >>> from bam_jax import biases
      >>> attend = LinenPriorAttention(lambda key: biases.ALiBi(jnp.ones(2)), Mask(causal=True))
      >>> layer = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=attend)
      >>> variables = layer.init(jax.random.key(0), jnp.ones((1, 4, 6)))
      >>> variables["params"]["attention_fn"]["slope"].shape
      (2,)
    """

    prior: Callable[[Array], Bias]
    mask: Mask
    backend: str = "auto"
    tiling: Tiling | None = None

    @nn.compact
    @functools.wraps(_Attention.__call__)  # linen passes the arguments in its signature
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        initial = lambda key, path: dict(jax.tree.leaves_with_path(self.prior(key)))[path]
        of = lambda path, _: self.param(path[-1].name, initial, path)
        bias = jax.tree.map_with_path(of, jax.eval_shape(self.prior, jax.random.key(0)))
        attend = attention_fn(bias, self.mask, backend=self.backend, tiling=self.tiling)
        return attend(*arguments, **options)


def _dropout(rate: float, key: Any, broadcast: bool, batch: int, heads: int) -> Dropout:
    """Dropout with a key from Flax, which all rows and heads share if it is broadcast."""
    if rate == 0 or key is None:
        return Dropout(rate)
    seed = jax.random.bits(key)
    # In `jax.shard_map`, keys differ between devices only if the caller makes them differ, as in Flax's own modules.
    return Dropout(rate, jnp.broadcast_to(seed, (batch, heads)) if broadcast else seed).per_head(batch, heads)


def _tokens(q: Array, k: Array, batch: tuple[int, ...], mask: Array | None) -> tuple[Tokens, Tokens]:
    """The tokens of queries [B, T, H, D] and keys [B, S, K, D], from a mask that broadcasts to [*batch, H, T, S]."""
    length, slots = q.shape[1], k.shape[1]
    index = jnp.arange(slots, dtype=jnp.int32)[None]
    if mask is None:
        if length != slots:
            raise Unsupported(f"{length} queries among {slots} keys: nothing says where they stand")
        return Tokens(index, consecutive=True), Tokens(index, consecutive=True)
    if mask.ndim < 3 or mask.shape[-3:] != (1, 1, slots):
        raise Unsupported(
            f"a dense mask {mask.shape}: causality and windows belong to the adapter's Mask, padding to a mask of keys alone, "
            f"{(*batch, 1, 1, slots)}"
        )
    shown = jnp.broadcast_to(mask[..., 0, 0, :].astype(bool), (*batch, slots)).reshape(-1, slots)
    keys = Tokens(jnp.where(shown, index, EMPTY))
    if length == slots:
        return Tokens(index), keys
    if length != 1:
        raise Unsupported(f"{length} queries among {slots} keys: nothing says where they stand")
    return Tokens(jnp.where(shown, index, 0).max(1, keepdims=True)), keys
