"""Operations of a model on each device's shard, where the compiler would partition them badly or not at all.

Without a mesh, each of these is the operation itself.

A cache is sharded along its slots. Each device stores its part of every chunk of text in its own slots, from the front, so
writing moves no data; `position` holds each slot's token index. `length` is the number of slots that each device has written.
Queries are then broadcast to the keys, because there are fewer of them. A rolling buffer, which is shorter than a device's part
of a whole cache, is stored whole on every device that shares a text. There each device has a part of the queries.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention import BACKENDS, EMPTY, Cache, Scoring, Tiling, Tokens, attention, choose
from bam_jax.attention.pruned import Bound, LayerCache, PrunedCache, RollingCache, attend_part
from bam_jax.attention.ring import ring, zigzag
from bam_jax.biases import head_axes
from bam_jax.biases.base import Coordinate
from bam_jax.encodings import Encoding
from bam_jax.models.layers import look_up
from bam_jax.parallel.sharding import CONTEXT, TENSOR, ambient_mesh, check_rowwise, text_cut
from bam_jax.system.errors import UserError


def embed(table: nnx.Embed, tokens: Int[Array, "B T"]) -> Float[Array, "B T E"]:
    """The tokens' embeddings; each device looks up its part of the vocabulary."""
    kernel, mesh = table.embedding[...].astype(table.dtype), ambient_mesh()
    if mesh is None:
        return look_up(kernel, tokens)
    cut = table.num_embeddings % mesh.shape[TENSOR] == 0

    def look_up_here(part: Array, tokens: Array) -> Array:
        if not cut:
            return look_up(part, tokens)
        index = tokens - jax.lax.axis_index(TENSOR) * part.shape[0]
        mine = (index >= 0) & (index < part.shape[0])
        # Each token is in one device's part, so the sum has a single term. The compiler would gather the whole table.
        return jax.lax.psum(jnp.where(mine[..., None], look_up(part, index), 0), TENSOR)

    rows, text = P(TENSOR) if cut else P(), text_cut(tokens.shape, mesh)
    return jax.shard_map(look_up_here, in_specs=(rows, text), out_specs=text, check_vma=False)(kernel, tokens)


def mesh_attention(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B T K D"],
    v: Float[Array, "B T K D"],
    scoring: Scoring,
    *,
    tiling: Tiling,
    backend: str = "auto",
) -> Float[Array, "B T H D"]:
    """`attention`; under a mesh, each device computes its shard of rows, heads and sequence.

    If there are as many queries as keys, keys travel around a ring. If there are fewer, as with a cache, every device attends
    from all queries to its own keys, and the results are merged by their normalisers.

    The compiler does not partition kernels, so this is done here. Under a mesh, call it inside `jax.jit`. If the mesh's axes
    are explicit, the result has the type of q.
    """
    mesh = ambient_mesh()
    if mesh is None:
        return attention(q, k, v, scoring, tiling=tiling, backend=backend)
    check_rowwise(scoring.rowwise, mesh)
    if scoring.dropout is not None and scoring.dropout.rate:  # devices count their rows and heads from 0
        scoring = dataclasses.replace(scoring, dropout=scoring.dropout.per_head(q.shape[0], q.shape[2]))
    (rows, text), around = text_cut(q.shape, mesh), q.shape[1] == k.shape[1]
    _, slots = text_cut(k.shape, mesh)
    merged = slots is not None and not (around and text) and mesh.shape[CONTEXT] > 1
    text = None if merged or not around else text
    if text and mesh.shape[CONTEXT] > 1:  # the blocks of a cache's summary may not align with the shards
        scoring = dataclasses.replace(scoring, keys=dataclasses.replace(scoring.keys, summary=None))

    def attend_locally(q: Array, k: Array, v: Array, scoring: Scoring) -> Array:
        if merged:
            return _merged(q, k, v, scoring, tiling, backend)
        if text is None or mesh.shape[CONTEXT] == 1:
            return attention(q, k, v, scoring, tiling=tiling, backend=backend)
        around = ring(BACKENDS[choose(q, k, v, scoring) if backend == "auto" else backend], CONTEXT)
        return attention(q, k, v, scoring, backend=zigzag(around, CONTEXT), tiling=tiling)

    heads, of_keys = P(rows, text, TENSOR), P(rows, slots, TENSOR)
    specs = (heads, of_keys, of_keys, _scoring_specs(scoring, rows, text, slots))
    explicit = bool(mesh.explicit_axes)
    operands = q, k, v, scoring
    if explicit:  # with explicit axes, `jax.shard_map` takes only operands whose types have exactly these specs
        operands = jax.sharding.reshard(operands, specs)
    out = jax.shard_map(attend_locally, in_specs=specs, out_specs=heads, check_vma=False)(*operands)
    return jax.sharding.reshard(out, jax.typeof(q).sharding) if explicit else out


def _merged(q: Array, k: Array, v: Array, scoring: Scoring, tiling: Tiling, backend: str) -> Array:
    """Attention from all queries to the keys of all devices; this device computes its own keys' part."""
    if scoring.sink_logits is not None:  # it takes its share once
        mine = jnp.where(jax.lax.axis_index(CONTEXT) == 0, scoring.sink_logits, -1e30)
        scoring = dataclasses.replace(scoring, sink_logits=mine)
    out, lse = attention(q, k, v, scoring, tiling=tiling, backend=backend, return_lse=True)
    share = jnp.exp(lse - jax.lax.pmax(jax.lax.stop_gradient(lse), CONTEXT))
    share = (share / jax.lax.psum(share, CONTEXT)).swapaxes(1, 2)[..., None]
    return jax.lax.psum(out * share, CONTEXT).astype(out.dtype)


def _cut(rows: Any, text: Any) -> Callable[[Array], P]:
    """(array) -> its spec: [#B, T] or [#B, #H, T]; axes of length one, common to all rows or heads, are not sharded."""

    def spec(x: Array) -> P:
        own = rows if x.shape[0] > 1 else None
        return P(own, text) if x.ndim == 2 else P(own, TENSOR if x.shape[1] > 1 else None, text)

    return spec


def _scoring_specs(scoring: Scoring, rows: Any, text: Any, slots: Any) -> Scoring:
    """The specs of a scoring."""
    of_queries, of_keys = _cut(rows, text), _cut(rows, slots)
    per_head = lambda axis: P() if axis is None else P(TENSOR)
    return dataclasses.replace(
        scoring,
        bias=jax.tree.map(per_head, head_axes(scoring.bias), is_leaf=lambda axis: axis is None),
        queries=jax.tree.map(of_queries, scoring.queries),
        keys=jax.tree.map(of_keys, scoring.keys),
        temperature=jax.tree.map(of_queries, scoring.temperature),
        rowwise=jax.tree.map(lambda _: P(), scoring.rowwise),
        sink_logits=jax.tree.map(lambda _: P(TENSOR), scoring.sink_logits),
        dropout=jax.tree.map(lambda _: P(rows, TENSOR), scoring.dropout),
    )


def on_all[Rows](rows: Rows) -> Rows:
    """Replicate the last rows of a text, [#B, R] or [#B, #H, R], on all devices that share it.

    The compiler would shard them like the text, and then what it computes from them like the heads.
    """
    if ambient_mesh() is None:
        return rows
    whole = lambda x: P(*[P.UNCONSTRAINED] * (x.ndim - 1), None)
    return jax.lax.with_sharding_constraint(rows, jax.tree.map(whole, rows))


def text_parts() -> int:
    """The number of devices that share a text, each with a part of it."""
    mesh = ambient_mesh()
    return 1 if mesh is None else mesh.shape[CONTEXT]


def head_parts() -> int:
    """The number of devices that share the heads."""
    mesh = ambient_mesh()
    return 1 if mesh is None else mesh.shape[TENSOR]


@dataclasses.dataclass(frozen=True)
class OnHost:
    """An array in host memory, as the shards of this process."""

    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding
    shards: list[tuple[jax.Device, np.ndarray]]

    @classmethod
    def of(cls, x: Array) -> "OnHost":
        return cls(x.shape, x.sharding, [(shard.device, np.array(shard.data)) for shard in x.addressable_shards])

    def array(self) -> Array:
        """The array on its devices again."""
        placed = [jax.device_put(data, device) for device, data in self.shards]
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, placed)


def cache_specs(cache: Cache, mesh: Mesh | AbstractMesh) -> Cache:
    """The specs of a cache that is sharded over heads, rows and slots."""
    rows, _ = text_cut(cache.k.shape, mesh)
    vectors = P(rows, CONTEXT, TENSOR)
    tokens = jax.tree.map(_cut(rows, CONTEXT), cache.tokens)
    specs: Any = {"k": vectors, "v": vectors, "tokens": tokens, "length": P()}
    return dataclasses.replace(cache, **specs, state=jax.tree.map(lambda _: P(), cache.state))


def place(cache: LayerCache) -> LayerCache:
    """The cache, sharded over heads, rows and slots."""
    mesh = ambient_mesh()
    if mesh is None:
        return cache
    specs = cache_specs(cache, mesh) if isinstance(cache, Cache) else _pruned_specs(cache, mesh)
    return jax.lax.with_sharding_constraint(cache, specs)


def append(cache: Cache, k: Array, v: Array, tokens: Tokens, state: Any) -> Cache:
    """`Cache.append`; if texts are sharded, each device writes its part of the tokens, and an empty slot if it has none."""
    mesh = ambient_mesh()
    if mesh is None:
        return cache.append(k, v, tokens, state)
    missing = -k.shape[1] % mesh.shape[CONTEXT]
    if missing:  # in front: the last device always has the last token
        pad = lambda x, axis, value=0: jnp.pad(
            x, [(missing * (n == axis), 0) for n in range(x.ndim)], constant_values=value
        )
        k, v, position = pad(k, 1), pad(v, 1), pad(tokens.position, 1, EMPTY)
        coordinate, kinds = (
            jax.tree.map(lambda x: pad(x, 2), tokens.coordinate),
            jax.tree.map(lambda x: pad(x, 1), tokens.kinds),
        )
        tokens = dataclasses.replace(tokens, position=position, coordinate=coordinate, kinds=kinds, consecutive=False)
    rows, _ = text_cut(cache.k.shape, mesh)
    specs, vectors = cache_specs(cache, mesh), P(rows, CONTEXT, TENSOR)
    write = jax.shard_map(
        lambda cache, k, v, tokens: cache.append(k, v, tokens, cache.state),
        in_specs=(specs, vectors, vectors, jax.tree.map(_cut(rows, CONTEXT), tokens)),
        out_specs=specs,
        check_vma=False,
    )
    return dataclasses.replace(write(cache, k, v, tokens), state=state)


def _pruned_specs(cache: PrunedCache, mesh: Mesh | AbstractMesh) -> PrunedCache:
    """The specs of a pruned cache: as in a whole one for heads that keep everything; others have all slots on each device."""
    parts: Any = tuple(
        cache_specs(part, mesh) if isinstance(part, Cache) else _rolling_specs(part, mesh) for part in cache.parts
    )
    rows, _ = text_cut(cache.parts[0].k.shape, mesh)
    last, state = jax.tree.map(_cut(rows, None), cache.last), jax.tree.map(lambda _: P(), cache.state)
    return dataclasses.replace(cache, parts=parts, last=last, missed=P(), state=state)  # type: ignore[arg-type]


def _rolling_specs(cache: RollingCache, mesh: Mesh | AbstractMesh) -> RollingCache:
    """The specs of a rolling buffer, which is sharded over heads and rows."""
    rows, _ = text_cut(cache.k.shape, mesh)
    vectors, (tokens, dropped) = P(rows, None, TENSOR), jax.tree.map(_cut(rows, None), (cache.tokens, cache.dropped))
    specs: Any = {"k": vectors, "v": vectors, "tokens": tokens, "length": P(), "dropped": dropped}
    return RollingCache(**specs)


def pruned_attention(
    cache: PrunedCache, q: Array, k: Array, v: Array, scoring: Scoring, *, tiling: Tiling, backend: str
) -> tuple[Array, PrunedCache]:
    """`PrunedCache.attend`; on a mesh, every device computes its share of each part."""
    out, cache = cache.attend(q, k, v, scoring, tiling=tiling, backend=backend, of_part=_attend_part)
    return out, place(cache)  # type: ignore[return-value]


def _attend_part(
    part: Cache | RollingCache,
    q: Array,
    k: Array,
    v: Array,
    scoring: Scoring,
    bound: Bound,
    tiling: Tiling,
    backend: str,
) -> tuple[Cache | RollingCache, Array, Array]:
    """`attend_part` on a mesh."""
    mesh = ambient_mesh()
    if mesh is None:
        return attend_part(part, q, k, v, scoring, bound, tiling, backend)
    if isinstance(part, Cache):
        part = append(part, k, v, scoring.keys, None)
        scoring = dataclasses.replace(scoring, keys=part.tokens)
        operands = q, part.k.astype(q.dtype), part.v.astype(q.dtype), scoring
        nothing = jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype)
        out = mesh_attention(*operands, tiling=tiling, backend=backend) if q.shape[1] else nothing
        return part, out, jnp.zeros(k.shape[2], bool)
    # Each device has all keys of its heads and rows, and a part of the queries.
    rows, text = text_cut(q.shape, mesh)
    sharing = (*(rows or ()), *([text] if text else []))

    def attend_locally(part: RollingCache, q: Array, k: Array, v: Array, scoring: Scoring) -> tuple:
        extended, out, missed = attend_part(part, q, k, v, scoring, bound, tiling, backend)
        return extended, out, jax.lax.pmax(missed.astype(jnp.int32), sharing) > 0 if sharing else missed

    of_queries, of_keys, specs = P(rows, text, TENSOR), P(rows, None, TENSOR), _rolling_specs(part, mesh)
    return jax.shard_map(
        attend_locally,
        in_specs=(specs, of_queries, of_keys, of_keys, _scoring_specs(scoring, rows, text, None)),
        out_specs=(specs, of_queries, P(TENSOR)),
        check_vma=False,
    )(part, q, k, v, scoring)


def rewound(cache: LayerCache, length: Array | int, saved: Any) -> LayerCache:
    """`Cache.rewound` to a number of tokens of which all devices have written equally many."""
    if ambient_mesh() is None:
        return cache.rewound(length, saved)
    if isinstance(cache, PrunedCache):
        return cache.rewound(length, saved, functools.partial(_rewound, saved=None))
    return _rewound(cache, length, saved)


def _rewound(cache: Cache, length: Array | int, saved: Any) -> Cache:
    """`Cache.rewound` on a mesh."""
    mesh = ambient_mesh()
    assert mesh is not None
    specs, slots = cache_specs(cache, mesh), jnp.asarray(length, jnp.int32) // mesh.shape[CONTEXT]
    back = lambda cache, slots: cache.rewound(slots, cache.state)
    back = jax.shard_map(back, in_specs=(specs, P()), out_specs=specs, check_vma=False)
    return dataclasses.replace(back(cache, slots), state=saved)


def last_coordinate(cache: LayerCache) -> Coordinate:
    """`Cache.last_coordinate`: that of the last device, which has the last token."""
    mesh = ambient_mesh()
    if mesh is None or isinstance(cache, PrunedCache) or not jax.tree.leaves(cache.tokens.coordinate):
        return cache.last_coordinate()

    def last(cache: Cache) -> Coordinate:
        of_last = jax.lax.axis_index(CONTEXT) == jax.lax.axis_size(CONTEXT) - 1
        return jax.tree.map(lambda x: jax.lax.psum(jnp.where(of_last, x, 0), CONTEXT), cache.last_coordinate())

    specs = cache_specs(cache, mesh)
    rows, _ = text_cut(cache.k.shape, mesh)
    out = jax.tree.map(_cut(rows, None), cache.tokens.coordinate)
    return jax.shard_map(last, in_specs=(specs,), out_specs=out, check_vma=False)(cache)


def coordinate(
    encoding: Encoding, x: Float[Array, "B T E"], filled: Bool[Array, "#B T"], before: Coordinate
) -> tuple[Coordinate, Coordinate]:
    """`encoding.coordinate`; if a mesh shards the texts, on each device's part, so activations stay where they are."""
    mesh = ambient_mesh()
    own = type(encoding).coordinate is not Encoding.coordinate
    if mesh is None or mesh.shape[CONTEXT] == 1 or before is not None or not own or text_cut(x.shape, mesh)[1] is None:
        return encoding.coordinate(x, filled, before)
    if "axis" not in inspect.signature(type(encoding).coordinate).parameters:
        raise UserError(
            f"the mesh's context={mesh.shape['context']} cuts texts, and {type(encoding).__name__}.coordinate takes no "
            "axis to go along; set config.mesh.context=1, or see Encoding.coordinate"
        )
    graph, state = nnx.split(encoding)
    coordinate_of_part = lambda state, x, filled: nnx.merge(graph, state).coordinate(x, filled, None, axis=CONTEXT)
    tokens = P(None, CONTEXT)
    return jax.shard_map(
        coordinate_of_part,
        in_specs=(P(), tokens, tokens),
        out_specs=P(None, None, CONTEXT),
        axis_names={CONTEXT},  # the compiler partitions rows and heads
        check_vma=False,
    )(state, x, filled)
