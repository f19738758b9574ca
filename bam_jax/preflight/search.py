"""Other ways to share a step among the same devices: the smallest change that fits, and the quickest mesh."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from bam_jax import config as configs
from bam_jax.config import Config, MeshConfig
from bam_jax.parallel import sharding
from bam_jax.parallel.sharding import FSDP, TENSOR
from bam_jax.preflight import estimate
from bam_jax.preflight.chips import Slice
from bam_jax.preflight.step import Model, Step
from bam_jax.system.errors import UserError

MARGIN = 0.9
"""Share of the memory that a sum may fill: it may be wrong by a tenth."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A configuration that fits by the sum.

    Args:
        config: the configuration.
        bytes: of a device, all kinds together.
        seconds: of a step: the longer of computing and reading, and sending on top of it.
        changes: what is to be changed, values by dotted names.
    """

    config: Config
    bytes: float
    seconds: float
    changes: dict[str, Any]

    def arguments(self) -> str:
        """The arguments to add to the command line."""
        return " ".join(configs.arguments(self.changes))


def proposals(
    config: Config,
    model: Model,
    where: Slice,
    utilisation: float,
    *,
    mesh: dict[str, int] | None = None,
) -> list[Proposal]:
    """Propose what fits by the sum, the best first.

    It tries remat, numbers of micro-batches, and all meshes that the devices can form.

    Args:
        config: the run's.
        model: of it.
        where: the slice.
        utilisation: see `estimate.estimate`.
        mesh: the axes' sizes that do not fit, of which the least change is wanted, with no fewer micro-batches and the same
            tensor axis; None: the quickest is wanted.
    """
    found = []
    for axes in _meshes(len(where.devices), None if mesh is None else mesh[TENSOR]):
        abstract = jax.sharding.AbstractMesh(dataclasses.astuple(axes), sharding.AXES)
        placed = None
        for other in _others(config, axes, 1 if mesh is None else config.optimizer.accumulate):
            try:
                placed = placed or Step.of(other, abstract, model)
            except UserError:  # axes that do not divide this model
                break
            tried = dataclasses.replace(placed, config=other)
            total = sum(tried.bytes().values())
            if where.chip is None or total <= MARGIN * where.chip.memory:
                changes = _changes(config, mesh, other)
                found.append(Proposal(other, total, seconds(tried, where, utilisation), changes))
    if mesh is None:
        return sorted(found, key=lambda each: (each.seconds, len(each.changes)))
    return sorted(found, key=lambda each: (len(each.changes), each.seconds))


def seconds(step: Step, where: Slice, utilisation: float) -> float:
    """Seconds of a step by sums alone: the longer of computing and reading, and sending on top of it; 0 for a CPU.

    Args:
        step: the step.
        where: the slice.
        utilisation: see `estimate.estimate`.
    """
    mesh, share = dict(step.mesh.shape), step.share
    read = estimate.traffic(step.config, step.state, share, mesh[FSDP])
    sent = estimate.sent(step.config, step.state, share, mesh)
    found = estimate.estimate(where, step.operations, read, sent, utilisation)
    return 0.0 if found is None else max(found.compute, found.memory) + found.links


def _others(config: Config, mesh: MeshConfig, least: int) -> Iterator[Config]:
    """Numbers of micro-batches from `least` on, and remat."""
    for count in _divisors(config.batch):
        if count < least or config.batch // count % (mesh.data * mesh.fsdp):
            continue
        for remat in sorted({True, config.model.remat}):
            yield dataclasses.replace(
                config,
                mesh=mesh,
                model=dataclasses.replace(config.model, remat=remat),
                optimizer=dataclasses.replace(config.optimizer, accumulate=count),
            )


def _meshes(devices: int, tensor: int | None) -> Iterator[MeshConfig]:
    for context in _divisors(devices):
        for cut in _divisors(devices // context):
            if tensor in (None, cut):
                left = devices // context // cut
                yield from (MeshConfig(left // fsdp, fsdp, cut, context) for fsdp in _divisors(left))


def _changes(config: Config, mesh: dict[str, int] | None, other: Config) -> dict[str, Any]:
    """The changes that turn one configuration into the other."""
    given = dataclasses.asdict(config.mesh) if mesh is None else mesh
    axes = [(f"mesh.{name}", given[name], getattr(other.mesh, name)) for name in sharding.AXES]
    rest = [
        ("model.remat", config.model.remat, other.model.remat),
        ("optimizer.accumulate", config.optimizer.accumulate, other.optimizer.accumulate),
    ]
    return {name: now for name, before, now in (*axes, *rest) if now != before}


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]
