"""Compiles the reading of a chunk of a long text through the cache, as in evaluations, for devices that need not be present."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bam_jax.config import Config
from bam_jax.models import generate, per_device, transformer
from bam_jax.parallel import sharding
from bam_jax.preflight.chips import Slice
from bam_jax.preflight.report import fits
from bam_jax.preflight.step import compiled, held
from bam_jax.training.step import with_shardings


@dataclasses.dataclass(frozen=True)
class Reading:
    """The reading of the last chunk of a text, lowered for the devices of a mesh but not run.

    Args:
        model, caches: shapes and shardings.
        tokens: length of the text, in whole chunks.
        chunk: number of tokens that are read at once.
    """

    mesh: Mesh
    model: nnx.State
    caches: transformer.Caches
    tokens: int
    chunk: int
    lowered: jax.stages.Lowered

    @classmethod
    def of(cls, config: Config, vocab: int, mesh: Mesh, tokens: int, chunk: int = generate.CHUNK) -> "Reading":
        """The reading of a text of `tokens` tokens by a configuration's model."""
        sharding.check_model(config, mesh)
        chunk = min(chunk, tokens)
        slots = -(-tokens // chunk) * chunk
        with jax.set_mesh(mesh):
            graph, tree = transformer.split(
                nnx.eval_shape(lambda: transformer.build(config, vocab=vocab, rngs=nnx.Rngs(0)))
            )
            tree = {name: with_shardings(part, sharding.parameter_shardings(part, mesh)) for name, part in tree.items()}
            decoder, state = nnx.split(nnx.merge(graph, tree["params"], tree["frozen"]))
            shapes = jax.eval_shape(lambda state: nnx.merge(decoder, state).caches(1, slots), state)
            specs = [per_device.cache_specs(cache, mesh) for cache in shapes]
            named = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
            caches = tuple(map(with_shardings, shapes, named))
            text = jax.ShapeDtypeStruct((1, chunk), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
            lowered = generate._read.lower(decoder, state, text, text, caches, 1)
        return cls(mesh, state, caches, slots, chunk, lowered)

    def record(self, where: Slice) -> dict[str, Any]:
        """The record of this reading on a slice; bytes are those of one device."""
        made = compiled(self.lowered)
        return {
            "topology": where.name,
            "devices": len(where.devices),
            "mesh": dict(self.mesh.shape),
            "tokens": self.tokens,
            "chunk": self.chunk,
            "bytes": {"parameters": held(self.model), "cache": held(self.caches)},
            "compiled": {**dataclasses.asdict(made), "total": made.total},
            "memory": None if where.chip is None else where.chip.memory,
            "fits": fits(made, where),
        }
