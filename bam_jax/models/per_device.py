"""Operations of a model on each device's share, where the compiler would cut them badly or not at all.

Without a mesh each of these is the operation itself.
"""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention import BACKENDS, Scoring, Tiling, attention, choose
from bam_jax.attention.ring import ring, zigzag
from bam_jax.biases import head_axes
from bam_jax.biases.base import Coordinate
from bam_jax.encodings import Encoding
from bam_jax.models.layers import look_up
from bam_jax.parallel.sharding import BATCH, CONTEXT, TENSOR, TEXT, ambient_mesh, check_rowwise
from bam_jax.system.errors import UserError


def embed(table: nnx.Embed, tokens: Int[Array, "B T"]) -> Float[Array, "B T E"]:
    """The tokens' embeddings; each device looks in its part of the vocabulary."""
    kernel, mesh = table.embedding[...].astype(table.dtype), ambient_mesh()
    if mesh is None:
        return look_up(kernel, tokens)
    cut = table.num_embeddings % mesh.shape[TENSOR] == 0

    def look_up_here(part: Array, tokens: Array) -> Array:
        if not cut:
            return look_up(part, tokens)
        index = tokens - jax.lax.axis_index(TENSOR) * part.shape[0]
        mine = (index >= 0) & (index < part.shape[0])
        # Each token is in one device's part, so that the sum has a single term. The compiler would gather the whole table.
        return jax.lax.psum(jnp.where(mine[..., None], look_up(part, index), 0), TENSOR)

    rows = P(TENSOR) if cut else P()
    return jax.shard_map(look_up_here, in_specs=(rows, TEXT), out_specs=TEXT, check_vma=False)(kernel, tokens)


def mesh_attention(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B T K D"],
    v: Float[Array, "B T K D"],
    scoring: Scoring,
    *,
    tiling: Tiling,
    backend: str = "auto",
) -> Float[Array, "B T H D"]:
    """`attention`, and under a mesh the same on every device's share: rows, heads, and a ring of parts of each text.

    Kernels are not cut by the compiler, so that it is done here. Under a mesh call it inside `jax.jit`. Where the mesh's
    axes are explicit, the result has the type of q.
    """
    mesh = ambient_mesh()
    if mesh is None:
        return attention(q, k, v, scoring, tiling=tiling, backend=backend)
    check_rowwise(scoring.rowwise, mesh)
    if scoring.dropout is not None and scoring.dropout.rate:  # devices count their rows and heads from 0
        scoring = dataclasses.replace(scoring, dropout=scoring.dropout.per_head(q.shape[0], q.shape[2]))
    if mesh.shape[CONTEXT] > 1:  # a cache's blocks may not be cut where its slots are
        scoring = dataclasses.replace(scoring, keys=dataclasses.replace(scoring.keys, summary=None))

    def attend_locally(q: Array, k: Array, v: Array, scoring: Scoring) -> Array:
        if mesh.shape[CONTEXT] == 1:
            return attention(q, k, v, scoring, tiling=tiling, backend=backend)
        around = ring(BACKENDS[choose(q, k, v, scoring) if backend == "auto" else backend], CONTEXT)
        return attention(q, k, v, scoring, backend=zigzag(around, CONTEXT), tiling=tiling)

    heads = P(BATCH, CONTEXT, TENSOR)
    specs = (heads, heads, heads, _scoring_specs(scoring))
    explicit = bool(mesh.explicit_axes)
    operands = q, k, v, scoring
    if explicit:  # `jax.shard_map` takes operands of explicit axes only where their types name these very specs
        operands = jax.sharding.reshard(operands, specs)
    out = jax.shard_map(attend_locally, in_specs=specs, out_specs=heads, check_vma=False)(*operands)
    return jax.sharding.reshard(out, jax.typeof(q).sharding) if explicit else out


def _scoring_specs(scoring: Scoring) -> Scoring:
    """The specs of a scoring; axes of length one, common to all rows or heads, are whole."""

    def cut(x: Array) -> P:
        rows = BATCH if x.shape[0] > 1 else None
        return P(rows, CONTEXT) if x.ndim == 2 else P(rows, TENSOR if x.shape[1] > 1 else None, CONTEXT)

    per_head = lambda axis: P() if axis is None else P(TENSOR)
    return dataclasses.replace(
        scoring,
        bias=jax.tree.map(per_head, head_axes(scoring.bias), is_leaf=lambda axis: axis is None),
        queries=jax.tree.map(cut, scoring.queries),
        keys=jax.tree.map(cut, scoring.keys),
        temperature=jax.tree.map(cut, scoring.temperature),
        rowwise=jax.tree.map(lambda _: P(), scoring.rowwise),
        sink_logits=jax.tree.map(lambda _: P(TENSOR), scoring.sink_logits),
        dropout=jax.tree.map(lambda _: P(BATCH, TENSOR), scoring.dropout),
    )


def coordinate(
    encoding: Encoding, x: Float[Array, "B T E"], filled: Bool[Array, "#B T"], before: Coordinate
) -> tuple[Coordinate, Coordinate]:
    """`encoding.coordinate`, on each device's part of the texts where a mesh cuts them: activations stay where they are."""
    mesh = ambient_mesh()
    own = type(encoding).coordinate is not Encoding.coordinate
    if mesh is None or mesh.shape[CONTEXT] == 1 or before is not None or not own:
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
        axis_names={CONTEXT},  # the compiler cuts rows and heads
        check_vma=False,
    )(state, x, filled)
