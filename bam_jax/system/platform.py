"""The device that a trace is for, which need not be this machine's."""

import jax


def platform() -> str:
    """ "cpu", "gpu" or "tpu": of the mesh under `jax.set_mesh`, else of this process's devices.

    >>> platform() == jax.default_backend()
    True
    """
    device = _described()
    name = jax.default_backend() if device is None else device.platform
    return "gpu" if name in ("cuda", "rocm") else name  # the names in descriptions of devices


def device_kind() -> str:
    """The model of that device, as JAX names it."""
    device = _described()
    return jax.devices()[0].device_kind if device is None else device.device_kind


def _described() -> jax.sharding.AbstractDevice | None:
    return jax.sharding.get_abstract_mesh().abstract_device
