"""The transformer of both papers: token embeddings, a stack of layers, and a head, for each model family."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key

from bam_jax.attention import Mask, Scoring, Tokens, UniqueKeys, document_count
from bam_jax.attention.cache import BLOCK
from bam_jax.attention.pruned import Groups, LayerCache
from bam_jax.config import Config, ModelConfig
from bam_jax.encodings import Dims, Encoding, Spec
from bam_jax.models import per_device
from bam_jax.models.blocks import Block, TokenInfo
from bam_jax.models.layers import FAMILIES, MaskedHead, head_logits, product_dtype, rngs_of
from bam_jax.models.pattern import alternatives, scan_periods, specs, table
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError

type Caches = tuple[LayerCache, ...]
"""One cache for each layer."""


def build(config: Config, *, vocab: int, rngs: nnx.Rngs) -> "Decoder":
    """The decoder that a config describes; `vocab` is the size of its vocabulary unless config.model.vocab states one."""
    return Decoder(config.model, specs(config), vocab=config.model.vocab or vocab, context=config.context, rngs=rngs)


class Decoder(nnx.Module):
    """A language model over token ids. Its layers are one stacked block, which is scanned. With `config.causal` off, an encoder.

    `norm` follows the embeddings in a post-norm family, and the last layer in other families.

    A pattern whose places differ only in numbers has the parameters of a single encoding (`alternatives`). For any other pattern,
    `layers` holds a stacked block for each run of equal places, "0", "1", ..., whose first axis has the layers of that run in all
    periods. A scan over periods then contains a scan over each run.

    Args:
        encoding: the positional encoding of every layer, or the pattern of encodings that they repeat.
        context: training context in tokens, which some encodings need.
    """

    def __init__(
        self, config: ModelConfig, encoding: Spec | Sequence[Spec], *, vocab: int, context: int, rngs: nnx.Rngs
    ):
        dtype = product_dtype(config.dtype)
        dims = Dims(config.heads, config.width, context, config.causal, config.head_dim)
        self.config = config
        family = FAMILIES[config.family]
        self.post_norm = family.post_norm
        init = nnx.initializers.normal(family.embedding_std)
        self.embed = nnx.Embed(vocab, config.width, dtype=dtype, embedding_init=init, rngs=rngs_of(rngs, "embed"))
        pattern = [encoding] if isinstance(encoding, Spec) else list(encoding)
        if all(place == pattern[0] for place in pattern):
            pattern = pattern[:1]
        if len(pattern) > 1 and any(place.encoding.embedding for place in pattern):
            raise UserError(
                "config.encoding: sinusoidal and learned add positions to the embeddings, for all layers at once; they "
                "stand alone, not in a pattern with others"
            )
        self.position = pattern[0].build_embedding(dims, rngs_of(rngs, "position"))
        found = alternatives(pattern, dims)
        self.alternatives = None if found is None else nnx.List(found)
        differs = [int(found is None and a != b) for a, b in itertools.pairwise(pattern)]
        self.stack_of = 0, *itertools.accumulate(differs)  # a run of equal places is a stack
        self.shared_encoding = pattern[0].shared
        keys = rngs_of(rngs, "layers").split(config.layers)

        def stack(number: int) -> Block:
            encoding = pattern[self.stack_of.index(number)]
            own = [n for n, (place, _) in enumerate(self.order()) if self.stack_of[place] == number]

            @nnx.vmap(in_axes=0, out_axes=0)
            def build(rngs: nnx.Rngs) -> Block:
                return Block(config, encoding, dims, dtype=dtype, rngs=rngs)

            made = build(nnx.Rngs(params=keys.params.key[...][np.array(own)]))
            if encoding.shared:  # one for all layers, instead of the stacked ones, without an axis of layers
                made.attention.encoding = encoding.build(dims, rngs_of(rngs, "encoding"))
            return made

        stacks = {str(number): stack(number) for number in sorted({*self.stack_of})}
        self.layers: Block | nnx.Dict[Block] = stacks["0"] if len(stacks) == 1 else nnx.Dict(stacks)
        norm = lambda: family.build_norm(config, dtype=dtype, rngs=rngs)
        self.norm = norm()
        self.embedding_norm = norm() if config.embedding_norm and not family.post_norm else None
        self.head = family.build_head(config, vocab, dtype=dtype, rngs=rngs_of(rngs, "head"))
        self.prune_cache: float | str = "off"  # see `models.generate`

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        *,
        segment: Int[Array, "#B T"] | None = None,
        position: Int[Array, "#B T"] | None = None,
        caches: Caches | None = None,
        read: int | None = None,
        layers: Sequence[nnx.State] | None = None,
    ) -> tuple[Float[Array, "B R V"], Caches | None]:
        """Logits of the next token, or in an encoder of the token itself, float32.

        Args:
            tokens: ids.
            segment: document numbers of packed rows, from 1; 0 is padding. Not together with caches.
            position: index of each token in its text (`EMPTY`: no token); None: 0 ... T - 1.
            caches: caches of the preceding tokens; returned with these tokens appended.
            read: number of last rows R whose logits are wanted; None: all. 0 fills the caches and computes no logits.
            layers: `layer_states()`, if the caller has them already; together with caches or read.

        Raises:
            UserError: a row longer than a learned position table, or caches together with segment or in an encoder.
        """
        x, caches = self.hidden(tokens, segment=segment, position=position, caches=caches, read=read, layers=layers)
        rows, kernel, bias = self.unembedding(x)
        return head_logits(rows, kernel.astype(rows.dtype), bias).astype(jnp.float32), caches

    def unembedding(
        self, hidden: Float[Array, "*B E"]
    ) -> tuple[Float[Array, "*B E"], Float[Array, "E V"], Float[Array, " V"] | None]:
        """The last linear map, as (rows, kernel, bias or None): logits = rows . kernel + bias."""
        match self.head:
            case None:
                return hidden, self.embed.embedding[...].T, None
            case MaskedHead():
                return self.head.transform(hidden), self.embed.embedding[...].T, self.head.bias[...]
            case nnx.Linear():
                return hidden, self.head.kernel[...], None

    def hidden(
        self,
        tokens: Int[Array, "B T"],
        *,
        segment: Int[Array, "#B T"] | None = None,
        position: Int[Array, "#B T"] | None = None,
        caches: Caches | None = None,
        read: int | None = None,
        layers: Sequence[nnx.State] | None = None,
    ) -> tuple[Float[Array, "B R E"], Caches | None]:
        """The last rows, which the head reads; arguments as in `__call__`."""
        if segment is not None and caches is not None:
            raise UserError("segment and caches do not go together: a cache holds one text a row; give one of the two")
        if caches is not None and not self.config.causal:
            raise UserError("an encoder (config.model.causal=False) sees the whole text at once: give it no caches")
        x, infos = self._embed(tokens, segment, position)
        if self.config.scan and caches is None and read is None:
            x = self._scan(x, infos)
        else:
            x, caches = self._unroll(x, infos, tokens, caches, read, layers or self.layer_states())
        return x if self.post_norm else self.norm(x), caches

    def stacks(self) -> list[Block]:
        """The stacked blocks of the layers, in the order of their places; usually there is one."""
        if isinstance(self.layers, Block):
            return [self.layers]
        return [self.layers[name] for name in sorted(self.layers, key=int)]

    def drop_weights(self, key: Key[Array, ""]) -> None:
        """From now on, drop attention weights at the rate `config.attention_dropout`, others in each layer; only for training."""
        for n, stack in enumerate(self.stacks()):
            layers = sum(self.stack_of[place] == n for place, _ in self.order())
            stack.attention.dropout_seed = nnx.Variable(jax.random.bits(jax.random.fold_in(key, n), (layers,)))

    def order(self) -> Iterator[tuple[int, int]]:
        """For each layer, its place in the pattern, and its index in the stack of that place."""
        seen = dict.fromkeys(self.stack_of, 0)
        for n in range(self.config.layers):
            place = n % len(self.stack_of)
            stack = self.stack_of[place]
            yield place, seen[stack]
            seen[stack] += 1

    def _scan(self, x: Array, infos: list[TokenInfo]) -> Array:
        """The rows after all layers; one layer of each stack is compiled."""
        remat = self._remat
        after = lambda layer, info, x: (sharding.shard_activations(layer(x, info)[0]), None)
        places = self._places()
        if self.alternatives is not None:
            numbers = table(self.alternatives, infos, self.config)

            def step_of_table(x: Array, own: tuple[nnx.State, Array]) -> tuple[Array, None]:
                layer = places[0][0](own[0])
                return after(layer, numbers.row(own[1]).put_into(layer.attention, infos[0].tokens), x)

            which = jnp.arange(self.config.layers) % len(places)
            return jax.lax.scan(remat(step_of_table), x, (places[0][1], which))[0]

        steps = [
            remat(lambda x, state, layer=layer, info=info: after(layer(state), info, x))
            for (layer, _), info in zip(places, infos, strict=True)
        ]
        if len(self.stacks()) == 1:
            return jax.lax.scan(steps[0], x, places[0][1])[0]
        return scan_periods(x, steps, [state for _, state in places], self.stack_of)

    def _remat(self, layer: Callable) -> Callable:
        """The layer, recomputed in the backward pass as the configuration specifies."""
        if not self.config.remat:
            return layer
        saved = jax.checkpoint_policies
        products = saved.save_from_both_policies(
            saved.dots_with_no_batch_dims_saveable, saved.save_only_these_names("attention_out", "attention_lse")
        )
        return jax.checkpoint(layer, policy=products if self.config.remat_keep == "products" else None)

    def _unroll(
        self,
        x: Array,
        infos: list[TokenInfo],
        tokens: Array,
        caches: Caches | None,
        read: int | None,
        layers: Sequence[nnx.State],
    ) -> tuple[Array, Caches | None]:
        """The last `read` rows after all layers, and their caches."""
        # Two things a scan could not do: the last layer computes only these rows, and each cache is updated in place, not copied.
        places = self._places()
        updated: list[LayerCache] = []
        for n, (state, (place, _)) in enumerate(zip(layers, self.order(), strict=True)):
            layer, _ = places[place]
            wanted = read if n == self.config.layers - 1 else None
            cache = None if caches is None else caches[n]
            own = self._with_kinds(infos[place], tokens) if n == 0 and cache is not None else infos[place]
            run = lambda state, x, cache, layer=layer, own=own, wanted=wanted: layer(state)(x, own, cache, wanted)
            x, cache = self._remat(run)(state, x, cache)
            x = sharding.shard_activations(x)
            if cache is not None:
                updated.append(cache)
        return x, tuple(updated) or None

    def layer_states(self) -> list[nnx.State]:
        """The parameters of each layer, unstacked.

        XLA's CPU backend copies a layer's weights out of the stacked ones whenever it multiplies by them. To decode many tokens,
        unstack them once.
        """
        places = self._places()
        return [jax.tree.map(lambda s, at=at: s[at], places[place][1]) for place, at in self.order()]

    def blocks(self) -> list[Block]:
        """The layers one by one."""
        makes = [make for make, _ in self._places()]
        return [makes[place](state) for state, (place, _) in zip(self.layer_states(), self.order(), strict=True)]

    def _places(self) -> list[tuple[Callable[[nnx.State], Block], nnx.State]]:
        """For each place, a function that makes a layer from its state, and the stacked states of its stack's layers."""
        shared = nnx.PathContains("encoding") if self.shared_encoding else False
        split = [nnx.split(stack, shared, ...) for stack in self.stacks()]

        def of(place: int, stack: int) -> tuple[Callable[[nnx.State], Block], nnx.State]:
            graph, common, stacked = split[stack]

            def layer(state: nnx.State) -> Block:
                block = nnx.merge(graph, common, state)
                if self.alternatives is not None:
                    self.alternatives[place].put_into(block.attention)
                return block

            return layer, stacked

        return [of(place, stack) for place, stack in enumerate(self.stack_of)]

    def scorings(
        self, tokens: Int[Array, "B T"], *, segment: Int[Array, "#B T"] | None = None
    ) -> list[tuple[Float[Array, "B T H D"], Float[Array, "B T K D"], Scoring]]:
        """Queries, keys and scoring of every layer, from which `bam_jax.theory` computes attention weights and their factors."""
        x, infos = self._embed(tokens, segment, None)
        layers = []
        for block, (place, _) in zip(self.blocks(), self.order(), strict=True):
            info = infos[place]
            q, k, _, scoring, _ = block.attention.inputs(block.attention_input(x), info)
            layers.append((q, k, scoring))
            x, _ = block(x, info)
        return layers

    def _embed(self, tokens: Array, segment: Array | None, position: Array | None) -> tuple[Array, list[TokenInfo]]:
        """The rows before the first layer, and for each place the information about them that its layers share."""
        consecutive = position is None
        if position is None:
            self.check_length(tokens.shape[1])
            position = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        at = Tokens(position, segment, consecutive=consecutive)
        masks = [Mask(causal=self.config.causal, window=encoding.window) for encoding in self._encodings()]
        count = {mask: document_count(at, mask) for mask in masks}
        infos = [TokenInfo(at, count[mask]) for mask in masks]
        x = per_device.embed(self.embed, tokens)
        if FAMILIES[self.config.family].scaled_embedding:
            x = x * jnp.asarray(math.sqrt(self.config.width), x.dtype)
        x = x if self.position is None else self.position(x, position)
        norm = self.norm if self.post_norm else self.embedding_norm
        return sharding.shard_activations(x if norm is None else norm(x)), infos

    def reach(self, slots: int) -> list[Int[Array, " K"]]:
        """For each layer, the tokens that each key head must keep in texts of `slots` tokens; see `Attention.reach`."""
        return [block.attention.reach(slots, self.prune_cache) for block in self.blocks()]

    def caches(
        self, batch: int, slots: int, *, common_positions: bool = True, groups: Sequence[Groups] | None = None
    ) -> Caches:
        """Empty caches for at least `slots` tokens in each of `batch` rows, whose positions are the same or each row's own.

        With `groups` for every layer, heads keep as many tokens as their group has (`attention.pruned`).

        On a mesh whose context axis shards texts, a chunk's slots are rounded up to a multiple of its size, so a single token
        takes one on each device.
        """
        parts = per_device.text_parts()
        if parts > 1:  # whole blocks on each device
            slots = parts * BLOCK * -(-slots // (parts * BLOCK))
        x = jnp.zeros((batch, 1, self.config.width), self.embed.dtype)
        tokens = Tokens(jnp.zeros((1 if common_positions else batch, 1), jnp.int32))
        of_first = self._with_kinds(TokenInfo(tokens, tokens.position), jnp.zeros((batch, 1), jnp.int32)).tokens
        blocks, groups = self.blocks(), groups or [()] * self.config.layers
        made = [
            block.attention.empty_cache(x, tokens if n else of_first, slots, groups[n], self.prune_cache)
            for n, block in enumerate(blocks)
        ]
        return tuple(map(per_device.place, made))

    def _with_kinds(self, info: TokenInfo, ids: Array) -> TokenInfo:
        """The info with the tokens' ids, if the first layer's keys and values depend on these alone and not on positions."""
        if self.position is not None or type(self._encodings()[0]).turn is not Encoding.turn:
            return info
        kinds = UniqueKeys(ids, self.embed.num_embeddings)
        return dataclasses.replace(info, tokens=dataclasses.replace(info.tokens, kinds=kinds))

    def _encodings(self) -> list[Encoding]:
        """The encoding of each place, stacked."""
        if self.alternatives is not None:
            return [place.encoding for place in self.alternatives]
        return [self.stacks()[stack].attention.encoding for stack in self.stack_of]

    @property
    def limit(self) -> int | None:
        """The longest text, in tokens, for which the encoding has positions; None: any."""
        limit: int | None = getattr(self.position, "limit", None)
        return limit

    def check_length(self, length: int) -> None:
        """Raise UserError where the encoding has no positions for `length` tokens."""
        if self.limit is not None and length > self.limit:
            raise UserError(
                f"{length} tokens are more than the learned position table holds ({self.limit}): "
                "use shorter texts (a passkey's answer counts), or train with encoding_options.length or another encoding"
            )


def split(decoder: nnx.Module) -> tuple[nnx.GraphDef, dict[str, dict[str, Any]]]:
    """A model as its structure and nested dictionaries of arrays: {'params': trained, 'frozen': the rest}.

    `nnx.merge(graph, tree['params'], tree['frozen'])` is the inverse.
    """
    graph, *states = nnx.split(decoder, nnx.Param, ...)
    params, frozen = map(nnx.to_pure_dict, states)
    return graph, {"params": params, "frozen": frozen}


def placed(decoder: Decoder, mesh: Mesh | None) -> Decoder:
    """The model with its parameters sharded over a mesh as in training; None: unchanged."""
    if mesh is None:
        return decoder
    graph, tree = split(decoder)
    tree = {name: jax.device_put(part, sharding.parameter_shardings(part, mesh)) for name, part in tree.items()}
    return nnx.merge(graph, tree["params"], tree["frozen"])
