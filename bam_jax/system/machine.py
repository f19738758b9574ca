"""The machine that a time was measured on."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

import jax

from bam_jax.system.fields import Line, Natural

_PACKAGES = ("jax", "jaxlib", "bam_jax", "tokamax", "torch", "libtpu", "jax-cuda13-plugin")


class Machine(TypedDict):
    """What records contain of a machine, because times depend on it; `machine` returns more."""

    device: Line
    processor: Line
    cores: Natural | None
    versions: dict[str, Line]


def machine() -> dict[str, Any]:
    """Describe the devices and their number, the processor and the cores that this process may use, and package versions."""
    device = jax.local_devices()[0]
    installed = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in metadata.distributions()}
    key = lambda name: name.replace("_", "-")  # metadata has either spelling
    return {
        "device": device.device_kind,
        "devices": jax.local_device_count(),
        "platform": device.platform,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: installed[key(name)] for name in _PACKAGES if key(name) in installed},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
