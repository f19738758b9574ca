"""Compiles the training step, as `bam_jax.train` runs it, for devices that need not be present."""

import dataclasses
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bam_jax.config import Config
from bam_jax.config.sections import PACKED, TRIPLET
from bam_jax.models import layers
from bam_jax.parallel import sharding
from bam_jax.training.step import State, define_training, make_step, state_shardings, with_shardings


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The memory of one device as the compiler reports it, in bytes."""

    arguments: float = 0  # the state and the batch as laid out; TPUs pad the last axes to whole tiles
    temporaries: float = 0  # gradients, activations and scratch memory; the results reuse the state's memory
    program: float = 0
    seconds: float = 0  # time to compile
    refused: str = ""  # first line of the compiler's error if the step does not fit its memory; the bytes are then 0

    @property
    def total(self) -> float:
        """Bytes of the device's memory."""
        return self.arguments + self.temporaries + self.program


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step, lowered for the devices of a mesh but not run."""

    config: Config
    mesh: Mesh
    state: State  # shapes and shardings
    batch: dict[str, jax.ShapeDtypeStruct]
    item: int  # bytes of a number in matrix products
    lowered: jax.stages.Lowered

    @classmethod
    def of(cls, config: Config, vocab: int, mesh: Mesh) -> "Step":
        """The step of a configuration."""
        sharding.check(config, mesh)
        with jax.set_mesh(mesh):
            graph, init, tx = define_training(config, vocab)
            shapes, item = jax.eval_shape(init), layers.product_dtype(config.model.dtype).itemsize
        shardings = state_shardings(shapes, tx, mesh)
        state, batch = with_shardings(shapes, shardings), batch_of(config, mesh)
        with jax.set_mesh(mesh):
            step: Any = make_step(config, graph, tx, shardings)
            return cls(config, mesh, state, batch, item, step.lower(state, batch))

    def bytes(self) -> dict[str, int]:
        """Bytes of one device's share of the persistent arrays, by kind, without the compiler's padding."""
        return {
            "parameters": held(self.state["model"]),
            "optimizer": held(self.state["optimizer"]),
            "batch": held(self.batch),
        }

    def compile(self) -> Compiled:
        """Compile it, and read JAX's memory analysis."""
        return compiled(self.lowered)


def compiled(lowered: jax.stages.Lowered) -> Compiled:
    """Compile a program, and read JAX's memory analysis."""
    start = time.perf_counter()
    try:
        made = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        first = " ".join(str(error).splitlines()[0].split())
        return Compiled(refused=first, seconds=time.perf_counter() - start)
    memory: Any = made.memory_analysis()
    arguments = memory.argument_size_in_bytes
    return Compiled(
        arguments=arguments,
        temporaries=memory.total_allocation_bytes - arguments,  # libtpu's temp_size may be above the total
        program=memory.generated_code_size_in_bytes,
        seconds=time.perf_counter() - start,
    )


def held(tree: Any) -> int:
    """Bytes that one device holds of sharded arrays, or of their shapes with shardings."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def batch_of(config: Config, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the batches that `bam_jax.data.loader` gives for a configuration, if rows have several documents."""
    where = NamedSharding(mesh, sharding.TEXT)
    shape = config.batch, config.context
    if config.data.contrastive:
        rows = NamedSharding(mesh, PartitionSpec(sharding.BATCH))
        texts = {name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=where) for name in TRIPLET}
        lengths = {f"{name}_length": jax.ShapeDtypeStruct(shape[:1], jnp.int32, sharding=rows) for name in TRIPLET}
        return texts | lengths
    parts = [part for _, part in config.data.parts().values()]
    names = {"tokens": jnp.int32, "targets": jnp.int32, "weights": jnp.float32}
    packed = [part for part in parts if part.task in PACKED]
    if any(part.document_mask or part.packing == "first_fit" for part in packed):
        names["segment"] = jnp.int32
    if config.data.positions == "restart" and packed:
        names["position"] = jnp.int32
    return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=where) for name, dtype in names.items()}
