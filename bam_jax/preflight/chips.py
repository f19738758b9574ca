"""Slices of accelerators by name, and the capabilities of their chips."""

import contextlib
import dataclasses
import importlib.util
import math
import os
from collections.abc import Iterator, Sequence

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from bam_jax.config import MeshConfig
from bam_jax.models.counts import BANDWIDTHS
from bam_jax.models.counts import CHIPS as PEAKS
from bam_jax.parallel.sharding import make_mesh
from bam_jax.system import extras
from bam_jax.system.errors import UserError, nearest

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """The capabilities of an accelerator."""

    memory: float  # bytes that the compiler gives to a program, from its message about one that needs more
    bandwidth: float  # of the memory, bytes per second
    links: float  # of the interconnect, bytes per second that a chip can send over all its ports together
    largest: tuple[int, ...]  # shape of the largest slice, in chips


# A Hopper GPU as XLA describes it, from the chip's published properties.
_HOPPER = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: %(bandwidth)d
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: %(memory)d
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 1 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "%(name)s"
"""
_HOPPERS = {"h100": ("NVIDIA H100 80GB HBM3", 84_942_979_072), "h200": ("NVIDIA H200", 150_754_820_096)}
"""The names and bytes of memory."""
_SHARE = 0.75  # fraction of a GPU's memory that JAX takes by default

CHIPS = {
    "v5e": Chip(15.75 * GIB, BANDWIDTHS["v5e"], 200e9, (16, 16)),
    "v5p": Chip(95.73 * GIB, BANDWIDTHS["v5p"], 600e9, (16, 20, 28)),
    "v6e": Chip(31.24 * GIB, BANDWIDTHS["v6e"], 400e9, (16, 16)),
    **{kind: Chip(_SHARE * memory, BANDWIDTHS[kind], 900e9, (8,)) for kind, (_, memory) in _HOPPERS.items()},
}
"""The chips. The rates of links, for both directions together, are from the makers' pages (cloud.google.com/tpu/docs/v5e, v5p,
v6e; nvidia.com: NVLink between the GPUs of one machine)."""

CPU = "cpu"


@dataclasses.dataclass(frozen=True)
class Slice:
    """Devices that a program is compiled for: of `jax.experimental.topologies`, or this machine's for "cpu"."""

    name: str  # as given, such as "v5e:4x4"
    kind: str  # a name in `CHIPS`, or "cpu"
    devices: Sequence[jax.Device] = dataclasses.field(repr=False)

    @property
    def chip(self) -> Chip | None:
        """The chip; None for a CPU, for which there are no numbers."""
        return None if self.kind == CPU else CHIPS[self.kind]

    @property
    def peak(self) -> float:
        """Dense bfloat16 operations per second of one chip (`bam_jax.models.counts.CHIPS`)."""
        return PEAKS[self.kind]

    def mesh(self, config: MeshConfig) -> Mesh:
        """The mesh of all devices that `config` asks for. If `fsdp` and `data` are both 0, `fsdp` takes all that is left."""
        if config.data == config.fsdp == 0:  # all links of a slice are fast, whichever host a chip belongs to
            config = dataclasses.replace(config, data=1)
        return make_mesh(config, self.devices)


def find(name: str) -> Slice:
    """The slice of a name: a chip and the slice's shape, "v5e:4x4"; or "cpu:8", that many devices of this machine's CPU."""
    kind, _, shape = name.partition(":")
    if kind not in (*CHIPS, CPU):
        raise UserError(f"--topology={name} is of an unknown chip; {nearest(kind, (*CHIPS, CPU))}")
    if kind == CPU:
        if not shape.isdecimal() or not 0 < int(shape) <= jax.device_count():
            raise UserError(
                f"--topology={name} must be cpu: and a number of devices, of which there are {jax.device_count()} here; "
                "set JAX_NUM_CPU_DEVICES in the environment for more"
            )
        return Slice(name, kind, jax.devices()[: int(shape)])
    if kind in _HOPPERS:
        most = math.prod(CHIPS[kind].largest)
        if not shape.isdecimal() or not 0 < int(shape) <= most:
            raise UserError(f"--topology={name} must be {kind}: and a number of GPUs of one machine, {most} at most")
        return Slice(name, kind, gpus(kind, int(shape)))
    sizes, largest = shape.split("x"), CHIPS[kind].largest  # checked before libtpu is loaded and asked
    example = f"{kind}:{'x'.join('4' * len(largest))}"
    numbers = [int(size) for size in sizes if size.isdecimal()]
    if not len(sizes) == len(numbers) == len(largest) or not 0 < math.prod(numbers) <= math.prod(largest):
        raise UserError(
            f"--topology={name}: slices of {kind} stand in {len(largest)} numbers, of {math.prod(largest):,} chips at most; "
            f"give for example {example}"
        )
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"--topology={name} needs libtpu, which is not installed: {extras.remedy('compilers')}, or give cpu:N"
        )
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # nothing is run, so others may use it
    try:
        with _silence_stderr():
            return Slice(name, kind, topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    except jax.errors.JaxRuntimeError as error:
        said = str(error).splitlines()[0]
        raise UserError(f"--topology={name} is no slice that there is; give for example {example} ({said})") from error


def gpus(kind: str, count: int) -> Sequence[jax.Device]:
    """Describe `count` GPUs of one machine, "h100" or "h200", which need not be present."""
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise UserError(f"the compiler for GPUs is not installed: {extras.remedy('compilers')}")
    name, memory = _HOPPERS[kind]
    config = _HOPPER % {"name": name, "memory": memory, "bandwidth": BANDWIDTHS[kind]}
    return topologies.get_topology_desc(
        platform="cuda", topology_name=kind, target_config=config, topology=f"1x1x{count}"
    ).devices


@contextlib.contextmanager
def _silence_stderr() -> Iterator[None]:
    """Drop what libtpu writes about a missing TPU to the descriptor of stderr when it starts."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
