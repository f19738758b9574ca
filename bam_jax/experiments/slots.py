"""Where a sweep's processes run: a core each, or an accelerator each."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

_ONE_CHIP = {
    "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
    "TPU_PROCESS_BOUNDS": "1,1,1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Slot:
    """A core or an accelerator that one process at a time has for itself.

    Args:
        core: that it is pinned to; None: not pinned.
        environment: variables that show it no other accelerator.
    """

    core: int | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def find_slots(platform: str, devices: Path = Path("/dev")) -> list[Slot]:
    """All slots of this machine, found without touching an accelerator.

    Args:
        platform: as JAX_PLATFORMS: "cpu" means the cores; "" NVIDIA GPUs, else TPU chips, else one process left to JAX.
        devices: the folder in which the system shows accelerators.

    >>> [slot.core for slot in find_slots("", Path("/nowhere"))]
    [None]
    """
    if platform == "cpu":
        return [Slot(core) for core in _cores()]
    gpus = [path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*")]
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        gpus = [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    if gpus:
        return [Slot(environment={"CUDA_VISIBLE_DEVICES": name}) for name in sorted(gpus, key=lambda x: (len(x), x))]
    chips = [*devices.glob("accel[0-9]*"), *devices.glob("vfio/[0-9]*")]
    if chips:
        return [Slot(environment=_ONE_CHIP | {"TPU_VISIBLE_CHIPS": f"{k}"}) for k in range(len(chips))]
    return [Slot()]


def share_slots(slots: Sequence[Slot], count: int) -> list[Slot]:
    """Slots for a number of processes, which share accelerators in turn; more processes than cores are not pinned.

    Two processes that are pinned to one core would halve each other while another core may stand idle.

    Args:
        slots: as `find_slots` gives them.
        count: number of processes.

    >>> [slot.core for slot in share_slots([Slot(0), Slot(1)], 3)]
    [None, None, None]
    """
    if count > len(slots):
        slots = [dataclasses.replace(slot, core=None) for slot in slots]
    return [slots[number % len(slots)] for number in range(count)]


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
