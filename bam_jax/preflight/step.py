"""The training step as `bam_jax.train` runs it, lowered for devices that need not be there."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from bam_jax.config import Config
from bam_jax.config.sections import PACKED, TRIPLET
from bam_jax.models import counts
from bam_jax.parallel import sharding
from bam_jax.preflight import memory
from bam_jax.training.step import State, define_training, make_step, state_shardings, with_shardings


@dataclasses.dataclass(frozen=True)
class Model:
    """A configuration as training sets it up, without arrays.

    Args:
        graph: the decoder's structure.
        tx: the optimiser.
        state: shapes of the training state.
        item: bytes of a number in matrix products.
        tiles: whether the devices keep arrays in whole tiles, as TPUs do.
        operations: floating-point ones of a step without remat (`bam_jax.models.counts.training_operations`).
    """

    graph: nnx.GraphDef
    tx: optax.GradientTransformation
    state: State
    item: int
    tiles: bool
    operations: float

    @classmethod
    def of(cls, config: Config, vocab: int, mesh: jax.sharding.Mesh) -> "Model":
        """The model of a configuration.

        Args:
            config: the run's.
            vocab: entries of the vocabulary.
            mesh: of the devices: their kind decides the type of matrix products.
        """
        with jax.set_mesh(mesh):
            graph, init, tx = define_training(config, vocab)
            state = jax.eval_shape(init)
            decoder: Any = nnx.merge(graph, state["model"]["params"], state["model"]["frozen"])
        tiles = mesh.devices.flat[0].platform == "tpu"
        return cls(
            graph, tx, state, decoder.embed.dtype.itemsize, tiles, counts.training_operations(config) / config.steps
        )


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that is not run.

    Args:
        config: the run's.
        mesh: a `Mesh` of the devices; for sums alone an `AbstractMesh` will do.
        model: of the configuration, or of one with another mesh, remat or number of micro-batches if there are only sums.
        state: shapes and shardings of the training state.
        batch: the same of a batch.
    """

    config: Config
    mesh: Any
    model: Model
    state: State
    batch: dict[str, jax.ShapeDtypeStruct]

    @classmethod
    def of(cls, config: Config, mesh: Any, model: Model) -> "Step":
        """The step of a configuration under a mesh.

        Args:
            config, mesh, model: as in the class.

        Raises:
            UserError: the mesh's axes do not divide what they cut.
        """
        sharding.check(config, mesh)
        state = with_shardings(model.state, state_shardings(model.state, model.tx, mesh))
        return cls(config, mesh, model, state, _batch(config, mesh))

    @property
    def share(self) -> memory.Share:
        """One device's share of it."""
        return memory.Share.of(self.config, self.mesh, item=self.model.item, tiles=self.model.tiles)

    @property
    def operations(self) -> float:
        """Floating-point operations of all devices: a third more where layers are computed again."""
        return self.model.operations * (4 / 3 if self.config.model.remat else 1)

    def bytes(self) -> dict[str, float]:
        """Bytes of a device by kind, as a sum: see `memory.kinds`."""
        return memory.kinds(self.config, self.state, self.batch, self.share)

    @property
    def phase(self) -> str:
        """The name of the one of `memory.phases` in which a device holds most."""
        found = memory.phases(self.config, self.state, self.share)
        return max(found, key=lambda name: sum(found[name].values()))

    def lower(self) -> jax.stages.Lowered:
        """Lowered for the mesh's devices, with the shardings of training."""
        shardings = jax.tree.map(lambda x: x.sharding, self.state)
        with jax.set_mesh(self.mesh):
            step: Any = make_step(self.config, self.model.graph, self.model.tx, shardings)
            return step.lower(self.state, self.batch)


def _batch(config: Config, mesh: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the batches that `bam_jax.data.loader` gives for such a configuration, of rows with several documents."""
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
