"""The kind of device that a trace is for, which need not be this machine's."""

import jax


def platform() -> str:
    """ "cpu", "gpu" or "tpu": of the mesh under `jax.set_mesh`, else of this process's devices.

    >>> platform() == jax.default_backend()
    True
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    name = jax.default_backend() if device is None else device.platform
    return "gpu" if name in ("cuda", "rocm") else name  # as a description of a device may have it
