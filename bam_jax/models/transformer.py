"""The pre-norm transformer of both papers: attention with a positional encoding, and the parts of a family of decoders."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bam_jax.attention import EMPTY, Cache, Kinds, Mask, Scoring, Tiling, Tokens, document_count
from bam_jax.config import Config, ModelConfig
from bam_jax.encodings import Dims, Encoding, Spec, spec
from bam_jax.models import per_device
from bam_jax.models.layers import FAMILIES, product_dtype, rngs_of
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError

type Caches = tuple[Cache, ...]
"""One cache for each layer."""


def build(config: Config, *, vocab: int, rngs: nnx.Rngs) -> "Decoder":
    """The decoder that a config describes.

    Args:
        config: its model, its encoding with what belongs to it, and its context are read.
        vocab: size of the vocabulary, unless config.model.vocab states one.
    """
    encoding = spec(config.encoding, config.encoding_options, config.ssmax, shared=config.shared_encoding)
    return Decoder(config.model, encoding, vocab=config.model.vocab or vocab, context=config.context, rngs=rngs)


def parameter_count(model: nnx.Module) -> int:
    """The number of a model's parameters, frozen ones included."""
    return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Variable)) if jnp.issubdtype(x.dtype, jnp.floating))


@dataclasses.dataclass(frozen=True)
class _TokenInfo:
    """The tokens' positions and documents, which all layers share, and the number of keys that each token sees."""

    tokens: Tokens
    visible: Int[Array, "#B T"]


class Attention(nnx.Module):
    """Multi-head attention with a positional encoding, and Scalable Softmax if the spec says so."""

    def __init__(self, config: ModelConfig, encoding: Spec, dims: Dims, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.heads, self.kv_heads = config.heads, config.kv_heads or config.heads
        head_width, linear = config.width // config.heads, FAMILIES[config.family].linear
        self.causal = config.causal
        self.query = linear(config.width, self.heads * head_width, dtype=dtype, rngs=rngs_of(rngs, "query"))
        self.key = linear(config.width, self.kv_heads * head_width, dtype=dtype, rngs=rngs_of(rngs, "key"))
        self.value = linear(config.width, self.kv_heads * head_width, dtype=dtype, rngs=rngs_of(rngs, "value"))
        self.out = linear(
            self.heads * head_width,
            config.width,
            dtype=dtype,
            rngs=rngs_of(rngs, "out"),
            residual_layers=config.layers,
        )
        self.encoding: Encoding = encoding.build(dims, rngs_of(rngs, "encoding"))
        self.ssmax_prior = encoding.ssmax
        self.ssmax = encoding.build_ssmax(dims, self.encoding.bias(), rngs)
        self.tiling = Tiling()

    @property
    def mask(self) -> Mask:
        """The keys that a query may see."""
        return Mask(causal=self.causal, window=self.encoding.window)

    def __call__(
        self, x: Float[Array, "B T E"], info: _TokenInfo, cache: Cache | None, read: int | None
    ) -> tuple[Float[Array, "B R E"], Cache | None]:
        """Attend from the last `read` rows (None: all) to all rows and the cache, which is returned with them."""
        q, k, v, scoring, cache = self.inputs(x, info, cache, read)
        if read == 0:
            return x[:, :0], cache
        out = per_device.attend(q, k, v, scoring, tiling=self.tiling)
        return self.out(out.reshape(*out.shape[:2], -1)), cache

    def inputs(
        self, x: Float[Array, "B T E"], info: _TokenInfo, cache: Cache | None = None, read: int | None = None
    ) -> tuple[Float[Array, "B R H D"], Float[Array, "B S K D"], Float[Array, "B S K D"], Scoring, Cache | None]:
        """Queries, keys, values and scoring for `attention`, and the cache with these rows behind it.

        Keys are made of all rows, queries of the last `read` alone.
        """
        position = info.tokens.position
        filled = position < EMPTY
        before = None if cache is None else cache.last_coordinate()
        i, j = per_device.coordinate(self.encoding, x, filled, before)
        split = lambda y, heads: y.reshape(*y.shape[:2], heads, y.shape[2] // heads)
        k = self.encoding.rotate(split(self.key(x), self.kv_heads), position)
        v = split(self.value(x), self.kv_heads)
        keys = dataclasses.replace(info.tokens, coordinate=j)
        if cache is not None:
            cache = cache.append(k, v, keys)
            k, v, keys = cache.k, cache.v, cache.tokens

        if read is not None:
            last = lambda y, axis: jax.lax.slice_in_dim(y, y.shape[axis] - read, None, axis=axis)
            x, i = last(x, 1), jax.tree.map(lambda y: last(y, 2), i)
            info = _TokenInfo(jax.tree.map(lambda y: last(y, 1), info.tokens), last(info.visible, 1))
        q = self.encoding.rotate(split(self.query(x), self.heads), info.tokens.position)
        temperature = None
        if self.ssmax is not None:
            temperature = self.ssmax(info.visible, self.encoding.bias())
            if self.ssmax_prior != "inside":  # the temperature scales q.k and leaves the prior as it is
                q, temperature = (q * temperature.transpose(0, 2, 1)[..., None]).astype(q.dtype), None
        scoring = Scoring(
            bias=self.encoding.bias(),
            queries=dataclasses.replace(info.tokens, coordinate=i),
            keys=keys,
            temperature=temperature,
            mask=self.mask,
            rowwise=self.encoding.rowwise(),
        )
        return q, k.astype(q.dtype), v.astype(q.dtype), scoring, cache


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, encoding: Spec, dims: Dims, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        family = FAMILIES[config.family]
        self.attention_norm = family.norm(config.width, dtype=dtype, rngs=rngs)
        self.attention = Attention(config, encoding, dims, dtype=dtype, rngs=rngs_of(rngs, "attention"))
        self.mlp_norm = family.norm(config.width, dtype=dtype, rngs=rngs)
        self.mlp = family.mlp(
            config.width, config.hidden, config.layers, family=family, dtype=dtype, rngs=rngs_of(rngs, "mlp")
        )

    def __call__(
        self, x: Float[Array, "B T E"], info: _TokenInfo, cache: Cache | None = None, read: int | None = None
    ) -> tuple[Float[Array, "B R E"], Cache | None]:
        """The rows after this layer; only the last `read` of them, if it is given."""
        attended, cache = self.attention(self.attention_norm(x), info, cache, read)
        x = x[:, x.shape[1] - attended.shape[1] :] + attended
        return x + self.mlp(self.mlp_norm(x)), cache


class Decoder(nnx.Module):
    """A language model over token ids; its layers are one stacked block, scanned. With `config.causal` off, an encoder.

    Args:
        config: sizes.
        encoding: the positional encoding of every layer.
        vocab: token ids.
        context: training context in tokens, which some encodings need to know.
    """

    def __init__(self, config: ModelConfig, encoding: Spec, *, vocab: int, context: int, rngs: nnx.Rngs):
        dtype = product_dtype(config.dtype)
        dims = Dims(config.heads, config.width, context, config.causal)
        self.config = config
        family = FAMILIES[config.family]
        init = nnx.initializers.normal(family.embedding_std)
        self.embed = nnx.Embed(vocab, config.width, dtype=dtype, embedding_init=init, rngs=rngs_of(rngs, "embed"))
        self.position = encoding.build_embedding(dims, rngs_of(rngs, "position"))

        @nnx.split_rngs(splits=config.layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(config, encoding, dims, dtype=dtype, rngs=rngs)

        self.layers = stack(rngs_of(rngs, "layers"))
        self.shared_encoding = encoding.shared
        if encoding.shared:  # one for all layers, in the place of the stacked ones, without their axis of layers
            self.layers.attention.encoding = encoding.build(dims, rngs_of(rngs, "encoding"))
        self.norm = family.norm(config.width, dtype=dtype, rngs=rngs)
        self.head = None if family.tied else family.linear(config.width, vocab, dtype=dtype, rngs=rngs_of(rngs, "head"))

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        *,
        segment: Int[Array, "#B T"] | None = None,
        position: Int[Array, "#B T"] | None = None,
        caches: Caches | None = None,
        read: int | None = None,
    ) -> tuple[Float[Array, "B R V"], Caches | None]:
        """Logits of the next token, float32.

        Args:
            tokens: ids.
            segment: document numbers of packed rows, from 1; 0 pads. Not together with caches.
            position: index of each token in its text (`EMPTY`: no token); None: 0 ... T - 1.
            caches: of the tokens that came before; given back with these behind them.
            read: number of last rows R whose logits are wanted; None: all. 0 fills the caches and computes no logits.

        Raises:
            UserError: a row longer than a learned position table, or caches together with segment or in an encoder.
        """
        x, caches = self.hidden(tokens, segment=segment, position=position, caches=caches, read=read)
        logits = self.embed.attend(x) if self.head is None else self.head(x)
        return logits.astype(jnp.float32), caches

    def unembedding(self) -> Float[Array, "E V"]:
        """The kernel of the head, which makes logits of what `hidden` gives."""
        return self.embed.embedding[...].T if self.head is None else self.head.kernel[...]

    def hidden(
        self,
        tokens: Int[Array, "B T"],
        *,
        segment: Int[Array, "#B T"] | None = None,
        position: Int[Array, "#B T"] | None = None,
        caches: Caches | None = None,
        read: int | None = None,
    ) -> tuple[Float[Array, "B R E"], Caches | None]:
        """The rows after the final norm, before the head; arguments as in `__call__`."""
        if segment is not None and caches is not None:
            raise UserError("segment and caches do not go together: a cache holds one text a row; give one of the two")
        if caches is not None and not self.config.causal:
            raise UserError("an encoder (config.model.causal=False) sees the whole text at once: give it no caches")
        x, info = self._embed(tokens, segment, position)
        if self.config.scan and caches is None and read is None:
            x = self._scan(x, info)
        else:
            x, caches = self._unroll(x, info, tokens, caches, read)
        return self.norm(x), caches

    def _scan(self, x: Array, info: _TokenInfo) -> Array:
        """The rows after all layers, of which one is compiled and run as often as there are layers."""
        layer, stacked = self._split_layers()

        def step(x: Array, state: nnx.State) -> tuple[Array, None]:
            return sharding.shard_activations(layer(state)(x, info)[0]), None

        x, _ = jax.lax.scan(jax.checkpoint(step) if self.config.remat else step, x, stacked)
        return x

    def _unroll(
        self, x: Array, info: _TokenInfo, tokens: Array, caches: Caches | None, read: int | None
    ) -> tuple[Array, Caches | None]:
        """The last `read` rows after all layers, and their caches.

        A scan could do neither: the last layer computes no rows but those, and each cache is updated in place, not copied.
        """
        layer, stacked = self._split_layers()
        updated: list[Cache] = []
        for n in range(self.config.layers):
            wanted = read if n == self.config.layers - 1 else None
            cache = None if caches is None else caches[n]
            own = self._with_kinds(info, tokens) if n == 0 and cache is not None else info

            def run(
                state: nnx.State, x: Array, cache: Cache | None, own: _TokenInfo = own, wanted: int | None = wanted
            ) -> tuple[Array, Cache | None]:
                return layer(state)(x, own, cache, wanted)

            state = jax.tree.map(lambda s, n=n: s[n], stacked)
            x, cache = (jax.checkpoint(run) if self.config.remat else run)(state, x, cache)
            x = sharding.shard_activations(x)
            if cache is not None:
                updated.append(cache)
        return x, tuple(updated) or None

    def blocks(self) -> list[Block]:
        """The layers one by one."""
        layer, stacked = self._split_layers()
        return [layer(jax.tree.map(lambda s, n=n: s[n], stacked)) for n in range(self.config.layers)]

    def _split_layers(self) -> tuple[Callable[[nnx.State], Block], nnx.State]:
        """A function that makes a layer of its state, and the states of all layers, stacked."""
        shared = nnx.PathContains("encoding") if self.shared_encoding else False
        graph, common, stacked = nnx.split(self.layers, shared, ...)
        return lambda state: nnx.merge(graph, common, state), stacked

    def scorings(
        self, tokens: Int[Array, "B T"], *, segment: Int[Array, "#B T"] | None = None
    ) -> list[tuple[Float[Array, "B T H D"], Float[Array, "B T K D"], Scoring]]:
        """Queries, keys and scoring of every layer: with `bam_jax.theory`, its attention weights and their factors.

        Args:
            tokens: ids.
            segment: document numbers of packed rows; see `__call__`.
        """
        x, info = self._embed(tokens, segment, None)
        layers = []
        for block in self.blocks():
            q, k, _, scoring, _ = block.attention.inputs(block.attention_norm(x), info)
            layers.append((q, k, scoring))
            x, _ = block(x, info)
        return layers

    def _embed(self, tokens: Array, segment: Array | None, position: Array | None) -> tuple[Array, _TokenInfo]:
        """The rows before the first layer, and what all layers share about them."""
        if position is None:
            self.check_length(tokens.shape[1])
            position = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        at = Tokens(position, segment)
        info = _TokenInfo(at, document_count(at, self.layers.attention.mask))
        x = per_device.embed(self.embed, tokens)
        return sharding.shard_activations(x if self.position is None else self.position(x, position)), info

    def caches(self, batch: int, slots: int, *, common_positions: bool = True) -> Caches:
        """Empty caches for `slots` tokens in each of `batch` rows, whose positions are the same or each row's own."""
        x = jnp.zeros((batch, 1, self.config.width), self.embed.dtype)

        def make(attend: Attention) -> Cache:
            _, coordinate = attend.encoding.coordinate(x, jnp.ones((1, 1), bool), None)
            k = attend.key(x).reshape(batch, 1, attend.kv_heads, -1)
            position = jnp.zeros((1 if common_positions else batch, 1), jnp.int32)
            return Cache.empty(k, Tokens(position, coordinate=coordinate), slots)

        first, *others = (make(block.attention) for block in self.blocks())
        tokens = self._with_kinds(_TokenInfo(first.tokens, first.length), jnp.zeros((batch, slots), jnp.int32)).tokens
        return (dataclasses.replace(first, tokens=tokens), *others)

    def _with_kinds(self, info: _TokenInfo, ids: Array) -> _TokenInfo:
        """The info with the tokens' ids, where the first layer's keys and values go by those alone.

        Without positions in x and in k, each occurrence of an id has the same key and the same value there, which attention over
        a long cache makes use of.
        """
        if self.position is not None or type(self.layers.attention.encoding).rotate is not Encoding.rotate:
            return info
        kinds = Kinds(ids, self.embed.num_embeddings)
        return dataclasses.replace(info, tokens=dataclasses.replace(info.tokens, kinds=kinds))

    def check_length(self, length: int) -> None:
        """Raise UserError where the encoding has no positions for `length` tokens."""
        limit = getattr(self.position, "limit", None)
        if limit is not None and length > limit:
            raise UserError(
                f"{length} tokens are more than the learned position table holds ({limit}): "
                "use shorter texts (a passkey's answer counts), or train with encoding_options.length or another encoding"
            )


def split(decoder: nnx.Module) -> tuple[nnx.GraphDef, dict[str, dict[str, Any]]]:
    """A model as its structure and nested dictionaries of arrays: {'params': trained, 'frozen': the rest}.

    `nnx.merge(graph, tree['params'], tree['frozen'])` is the inverse.

    Args:
        decoder: any NNX module; what is trained is `nnx.Param`.
    """
    graph, *states = nnx.split(decoder, nnx.Param, ...)
    params, frozen = map(nnx.to_pure_dict, states)
    return graph, {"params": params, "frozen": frozen}
