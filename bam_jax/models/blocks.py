"""The layers that a decoder stacks: attention with a positional encoding, an MLP, and norms before or after both."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention import EMPTY, Cache, Dropout, Mask, PrunedCache, Scoring, Tiling, Tokens
from bam_jax.attention.cache import BLOCK
from bam_jax.attention.logits.skipping import log_share
from bam_jax.attention.pruned import Groups, LayerCache
from bam_jax.biases.base import Bias, head_axes
from bam_jax.config import ModelConfig
from bam_jax.encodings import Dims, Encoding, Spec, SSMax, sharpened
from bam_jax.models import per_device
from bam_jax.models.layers import FAMILIES, rngs_of
from bam_jax.system.errors import UserError

CONTENT = 10.0
"""The bound of content scores, in nats, that is first assumed when a `PrunedCache` is sized."""
CONTENT_AWARE = 1024
"""Tokens that a head keeps at first if its bias depends on the text."""


@dataclasses.dataclass(frozen=True)
class TokenInfo:
    """The tokens' positions and documents, which all layers share, and the number of keys that each token sees in a layer."""

    tokens: Tokens
    visible: Int[Array, "#B T"]


class Attention(nnx.Module):
    """Multi-head attention with a positional encoding, and the options of the spec and the model's config.

    The order of operations: queries and keys are normalised per head (`qk_norm`) and rotated by the encoding. Queries are
    multiplied by the log-length temperature and, if the prior is outside, by Scalable Softmax. Their products with keys are
    capped, and the bias is added. If the prior is inside, Scalable Softmax multiplies the sum. The softmax may have a sink.
    The output is multiplied by sigmoid(gate(x)).
    """

    def __init__(self, config: ModelConfig, encoding: Spec, dims: Dims, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.heads, self.kv_heads = config.heads, config.kv_heads or config.heads
        head_width, linear = config.head_width, FAMILIES[config.family].linear
        self.causal = config.causal
        projection = lambda heads, name: linear(
            config.width, heads * head_width, bias=config.qkv_bias, dtype=dtype, rngs=rngs_of(rngs, name)
        )
        self.query = projection(self.heads, "query")
        self.key = projection(self.kv_heads, "key")
        self.value = projection(self.kv_heads, "value")
        self.out = linear(
            self.heads * head_width, config.width, dtype=dtype, rngs=rngs_of(rngs, "out"), residual_layers=config.layers
        )
        self.encoding: Encoding = encoding.build(dims, rngs_of(rngs, "encoding"))
        self.ssmax_prior = encoding.ssmax
        self.ssmax = encoding.build_ssmax(dims, self.encoding.bias(), rngs)
        self.log_temperature = encoding.build_log_temperature(dims)
        epsilon = config.norm_epsilon or 1e-6
        self.query_norm, self.key_norm = (
            nnx.RMSNorm(head_width, epsilon=epsilon, dtype=dtype, rngs=rngs) if config.qk_norm else None
            for _ in range(2)
        )
        self.gate = (
            linear(config.width, self.heads * head_width, dtype=dtype, rngs=rngs_of(rngs, "gate"))
            if config.gate
            else None
        )
        if config.sinks and self.ssmax_prior in ("entmax", "asentmax"):
            raise UserError(f"config.ssmax={self.ssmax_prior} leaves a sink no share; set config.model.sinks=False")
        self.sink_logits = nnx.Param(jnp.zeros(self.heads)) if config.sinks else None
        self.soft_cap = config.soft_cap or None
        self.dropout_rate = config.attention_dropout
        self.dropout_seed: nnx.Variable | None = nnx.data(None)  # see `Decoder.drop_weights`
        self.tiling, self.backend = Tiling(), "auto"

    @property
    def mask(self) -> Mask:
        """The keys that a query may see."""
        return Mask(causal=self.causal, window=self.encoding.window)

    def __call__(
        self, x: Float[Array, "B T E"], info: TokenInfo, cache: LayerCache | None, read: int | None
    ) -> tuple[Float[Array, "B R E"], LayerCache | None]:
        """Attend from the last `read` rows (None: all) to all rows and the cache, and return the cache with these rows."""
        q, k, v, scoring, cache = self.inputs(x, info, cache, read)
        if isinstance(cache, PrunedCache):
            out, cache = per_device.pruned_attention(cache, q, k, v, scoring, tiling=self.tiling, backend=self.backend)
        elif read != 0:
            out = per_device.mesh_attention(q, k, v, scoring, tiling=self.tiling, backend=self.backend)
        if read == 0:
            return x[:, :0], cache
        out = out.reshape(*out.shape[:2], -1)
        if self.gate is not None:
            out = out * jax.nn.sigmoid(self.gate(x[:, x.shape[1] - out.shape[1] :]))
        return self.out(out), cache

    def inputs(
        self, x: Float[Array, "B T E"], info: TokenInfo, cache: LayerCache | None = None, read: int | None = None
    ) -> tuple[Float[Array, "B R H D"], Float[Array, "B S K D"], Float[Array, "B S K D"], Scoring, LayerCache | None]:
        """Queries, keys, values and scoring for `attention`, and the cache with these rows appended.

        Keys are computed from all rows, queries only from the last `read`. A `PrunedCache` is returned without the new rows,
        because it needs the queries before it drops keys; keys are then those of the new rows.
        """
        position = info.tokens.position
        filled = position < EMPTY
        before = None if cache is None else per_device.last_coordinate(cache)
        i, j = per_device.coordinate(self.encoding, x, filled, before)
        keys = dataclasses.replace(info.tokens, coordinate=j, sees_from=None, sees_to=None)  # for queries only
        last = lambda y, axis=1: y if read is None else jax.lax.slice_in_dim(y, y.shape[axis] - read, None, axis=axis)
        q, k, v = self.project(last(x), x)
        width, unread = q.shape[3], x.shape[1] - q.shape[1]
        q = jnp.pad(q, ((0, 0), (unread, 0), (0, 0), (0, 0)))  # an encoding rotates both sides alike
        state = self.encoding.initial_state(len(x)) if cache is None else cache.state
        q, k, state = self.encoding.turn(q, k, x, info.tokens, state)
        if isinstance(cache, PrunedCache):
            cache = dataclasses.replace(cache, state=state)
        elif cache is not None:
            cache = per_device.append(cache, k, v, keys, state)
            k, v, keys = cache.k, cache.v, cache.tokens

        q, i = last(q), jax.tree.map(lambda y: last(y, 2), i)
        info = TokenInfo(jax.tree.map(last, info.tokens), last(info.visible))
        if read is not None:
            info = TokenInfo(*per_device.on_all((info.tokens, info.visible)))
        if self.log_temperature is not None:
            q = (q * self.log_temperature(info.visible)[..., None, None]).astype(q.dtype)
        temperature = None
        if self.ssmax is not None:
            temperature = self.ssmax(info.visible, self.encoding.bias(), last(x))
            if self.ssmax_prior != "inside":  # the temperature scales q.k and leaves the prior as it is
                q, temperature = (q * temperature.transpose(0, 2, 1)[..., None]).astype(q.dtype), None
        scoring = Scoring(
            bias=self.encoding.bias(),
            queries=dataclasses.replace(info.tokens, coordinate=i),
            keys=keys,
            temperature=temperature,
            mask=self.mask,
            rowwise=sharpened(self.encoding.rowwise(), self.ssmax_prior),
            scale=1 / math.sqrt(width),
            soft_cap=self.soft_cap,
            sink_logits=None if self.sink_logits is None else self.sink_logits[...],
            dropout=None if self.dropout_seed is None else Dropout(self.dropout_rate, self.dropout_seed[...]),
        )
        return q, k.astype(q.dtype), v.astype(q.dtype), scoring, cache

    def project(
        self, x: Float[Array, "B R E"], of_keys: Float[Array, "B T E"]
    ) -> tuple[Float[Array, "B R H D"], Float[Array, "B T K D"], Float[Array, "B T K D"]]:
        """Queries of rows x, and keys and values of rows `of_keys`, before the encoding rotates them."""
        split = lambda y, heads: y.reshape(*y.shape[:2], heads, y.shape[2] // heads)
        k, v = (split(project(of_keys), self.kv_heads) for project in (self.key, self.value))
        q = split(self.query(x), self.heads)
        q = q if self.query_norm is None else self.query_norm(q)
        return q, k if self.key_norm is None else self.key_norm(k), v

    def empty_cache(
        self,
        x: Float[Array, "B 1 E"],
        tokens: Tokens,
        slots: int,
        groups: Groups = (),
        tolerance: float | str = "exact",
    ) -> LayerCache:
        """A cache of this layer with room for at least `slots` tokens, whose positions have as many rows as those of `tokens`.

        With `groups`, a `PrunedCache`, which keeps fewer tokens in some heads.
        """
        _, coordinate = self.encoding.coordinate(x, jnp.ones((1, 1), bool), None)
        q, k, v = self.project(x, x)
        state = self.encoding.initial_state(len(x))
        _, k, _ = self.encoding.turn(q, k, x, tokens, state)
        tokens = dataclasses.replace(tokens, coordinate=coordinate)
        if groups:
            return PrunedCache.empty(k, tokens, slots, groups, tolerance, v=v, state=state)
        return Cache.empty(k, tokens, slots, v=v, state=state)

    def reach(self, slots: int, tolerance: float | str) -> Int[Array, " K"]:
        """Tokens that each key head must keep because of its prior, if content scores are at most `CONTENT` nats from 0.

        This is an estimate, because content scores are unbounded; a `PrunedCache` checks each step. `slots` if the prior does
        not determine it.
        """
        bias, window = self.encoding.bias(), self.encoding.window
        step = BLOCK * math.ceil(slots / (BLOCK * 8192))  # a few thousand candidates, however long the text
        candidates = jnp.arange(step, slots + step, step)
        far = jnp.full((self.kv_heads, len(candidates)), False)
        if self.encoding.rowwise() is None and self.ssmax_prior not in ("entmax", "asentmax", "adaptive"):
            by_offset = bias if type(self.encoding).coordinate is Encoding.coordinate else bias.by_offset()
            if by_offset is not None:
                far = far | self._negligible_beyond(by_offset, candidates, slots, tolerance)
            elif type(bias).bounds is not Bias.bounds:
                far = far | (candidates >= CONTENT_AWARE)
            if window is not None:
                far = far | (candidates >= window)
        return jnp.where(far.any(1), candidates[far.argmax(1)], slots)

    def _negligible_beyond(
        self, bias: Bias, distance: Int[Array, " N"], slots: int, tolerance: float | str
    ) -> Bool[Array, "K N"]:
        """Whether all keys at or beyond each distance together weigh less than the tolerated share of the query's own key."""
        axes = head_axes(bias)
        here, x = jnp.zeros(()), distance.astype(jnp.float32)
        bounds = lambda j: jax.vmap(lambda bias: bias.bounds((here, here), j), (axes,))(bias)
        if jax.tree.leaves(axes) and bounds((here, here)) is not None:
            (least, _), (_, most) = bounds((here, here)), bounds((jnp.full_like(x, -slots), -x))
            temperature = jnp.ones((1, 1))
            if isinstance(self.ssmax, SSMax) and self.ssmax_prior == "inside":
                temperature = self.ssmax(distance[None], bias)[0]  # rows that drop keys see more than they keep
            lost = math.log(slots) + 2 * CONTENT + temperature * (most - least[:, None])
            far = (lost < log_share(tolerance, lost.dtype)) & (temperature > 0)
            return far.reshape(self.kv_heads, -1, len(distance)).all(1)
        return jnp.full((self.kv_heads, len(distance)), False)


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)).

    In a post-norm family a norm follows each sum: norm(x + attention(x)), then norm(x + mlp(x)). Source: Vaswani et al. 2017,
    section 3.1; Devlin et al. 2019. In a sandwich family there is a norm on either side: x + norm(attention(norm(x))).
    """

    def __init__(self, config: ModelConfig, encoding: Spec, dims: Dims, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        family = FAMILIES[config.family]
        self.post_norm = family.post_norm
        self.attention_norm = family.build_norm(config, dtype=dtype, rngs=rngs)
        self.attention = Attention(config, encoding, dims, dtype=dtype, rngs=rngs_of(rngs, "attention"))
        self.mlp_norm = family.build_norm(config, dtype=dtype, rngs=rngs)
        norm = lambda: family.build_norm(config, dtype=dtype, rngs=rngs) if family.sandwich else None
        self.attention_out_norm, self.mlp_out_norm = norm(), norm()
        self.mlp = family.mlp(
            config.width, config.hidden, config.layers, family=family, dtype=dtype, rngs=rngs_of(rngs, "mlp")
        )

    def attention_input(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """The rows that attention reads, from the rows before this layer."""
        return x if self.post_norm else self.attention_norm(x)

    def __call__(
        self, x: Float[Array, "B T E"], info: TokenInfo, cache: LayerCache | None = None, read: int | None = None
    ) -> tuple[Float[Array, "B R E"], LayerCache | None]:
        """The rows after this layer, or only the last `read` of them."""
        attended, cache = self.attention(self.attention_input(x), info, cache, read)
        if self.attention_out_norm is not None:
            attended = self.attention_out_norm(attended)
        x = x[:, x.shape[1] - attended.shape[1] :] + attended
        if self.post_norm:
            x = self.attention_norm(x)
            return self.mlp_norm(x + self.mlp(x)), cache
        y = self.mlp(self.mlp_norm(x))
        return x + (y if self.mlp_out_norm is None else self.mlp_out_norm(y)), cache
