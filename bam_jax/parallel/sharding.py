"""The mesh over which devices share a training step, and what each of its axes shards. No other file names mesh axes.

    data      the batch
    fsdp      the batch, and parameters with the optimiser's state; devices gather parameters where they need them
    tensor    heads, the MLP's width, the vocabulary
    context   every sequence, with attention over a ring of devices

In your own code, `jax.set_mesh` sets the mesh of a `jax.jit`:

>>> mesh = make_mesh(MeshConfig())
>>> with jax.set_mesh(mesh):
...     kernels = {"head": {"kernel": jax.numpy.ones((8, 16))}}
...     kernels = jax.device_put(kernels, parameter_shardings(kernels, mesh))
>>> mesh.axis_names, tuple(kernels["head"]["kernel"].sharding.spec)
(('data', 'fsdp', 'tensor', 'context'), ('fsdp', 'tensor'))

A model that is called without a mesh, on one device, or under axes with other names is not sharded.
"""

import contextlib
import logging
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from bam_jax import config as configs
from bam_jax.biases import Rowwise
from bam_jax.config import Config, MeshConfig
from bam_jax.encodings import Dims, sharpened, spec
from bam_jax.system.errors import UserError

log = logging.getLogger(__name__)

AXES = DATA, FSDP, TENSOR, CONTEXT = ("data", "fsdp", "tensor", "context")
BATCH = (DATA, FSDP)
TEXT = P(BATCH, CONTEXT)
"""The spec of the batch and of activations, [B, T, ...]."""

LARGE = 8 * 2**20
"""Bytes of a parameter above which an axis that does not divide it is an error, because every device would hold it whole."""

LAYERS = r"layers/(\d+/)?"
"""The stacked layers. A number stands for a run of equal places in a pattern."""
ENCODING = f"{LAYERS}attention/encoding/(.+/)?"
RULES = (
    ("embed/embedding", P("tensor", "fsdp")),
    ("head/kernel", P("fsdp", "tensor")),
    ("head/dense/kernel", P("fsdp", None)),
    ("head/bias", P("tensor")),
    ("head/(dense/bias|norm/scale|norm/bias)", P()),
    ("position/(.+/)?embedding", P(None, "fsdp")),
    (f"{LAYERS}attention/(query|key|value|gate)/kernel", P("fsdp", "tensor")),
    (f"{LAYERS}attention/(query|key|value|gate)/bias", P("tensor")),
    (f"{LAYERS}attention/out/kernel", P("tensor", "fsdp")),
    (f"{LAYERS}mlp/(gate|up)/kernel", P("fsdp", "tensor")),
    (f"{LAYERS}mlp/(gate|up)/bias", P("tensor")),
    (f"{LAYERS}mlp/down/kernel", P("tensor", "fsdp")),
    (f"{LAYERS}(attention/out|mlp/down)/bias", P()),
    (f"({LAYERS}(attention|mlp)_(out_)?norm|(embedding_)?norm)/(scale|bias)", P()),
    (f"{LAYERS}attention/(ssmax/scale|(query|key)_norm/scale|sink_logits)", P()),
    (f"{LAYERS}attention/ssmax/(slope|power)/kernel", P("fsdp", "tensor")),
    (f"{LAYERS}attention/ssmax/(slope|power)/bias", P()),
    (f"{ENCODING}kernel", P("fsdp", "tensor")),
    (f"{ENCODING}table", P("tensor", None)),
    (f"{ENCODING}(?!kernel$|table$)[^/]+", P()),  # a prior's parameters per head, which are small as a whole
)
"""Path of a parameter -> the mesh axes that shard its last axes. Axes before those (the stack of layers), and all axes under an
empty rule, are not sharded.

tensor shards the outputs of projections into heads and into the MLP's width, and the inputs of the projections back. Nothing is
sent between the two, and one sum over devices follows the second. fsdp shards the other axis, so each parameter is gathered
where it is used.
"""


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh that a configuration asks for, with axes `AXES` that the compiler shards along (`AxisType.Auto`).

    Axes at 0 are chosen here. On a CPU in a single process they are 1, and devices beyond the mesh stay idle, so that training on
    a laptop is sharded only on request. Everywhere else, all devices take part. With `data` and `fsdp` both at 0, fsdp is the
    largest common divisor of two numbers: the devices that tensor and context leave of all, and those that they leave of one
    slice (TPUs) or one host, whose links are the fast ones.
    """
    present = jax.devices() if devices is None else list(devices)
    stated = {name: getattr(config, name) for name in AXES}
    fixed = math.prod(size for size in stated.values() if size)
    free = [name for name in AXES if not stated[name]]
    says = ", ".join(f"{name}={size}" for name, size in stated.items() if size)
    if present[0].platform == "cpu" and len({device.process_index for device in present}) == 1:
        if fixed > len(present):
            raise UserError(
                f"config.mesh with {says} needs {fixed} devices, and this CPU is {len(present)}; "
                f"set JAX_NUM_CPU_DEVICES={fixed}, or make the mesh smaller"
            )
        present = present[:fixed]
    if len(present) % fixed or (not free and len(present) != fixed):
        fits = len(present) % fixed == 0
        remedy = (
            "set config.mesh.data=0 to have it take what is left" if fits else "choose axes whose product divides it"
        )
        raise UserError(f"config.mesh with {says} does not fit the {len(present)} devices present; {remedy}")
    left = len(present) // fixed
    if free == ["data", "fsdp"]:
        stated["fsdp"] = math.gcd(left, max(1, _count_near(present) // fixed))
        stated["data"] = left // stated["fsdp"]
    elif free:
        stated[free[0]] = left
    return arrange(tuple(stated.values()), present)


def arrange(shape: Sequence[int], devices: Sequence[jax.Device]) -> Mesh:
    """The mesh of a shape, with devices of one slice or several; outer axes are the first to cross slices.

    For JAX, a slice is what fast links join: a slice of TPUs, or each host of CPUs or GPUs.
    """
    types = (AxisType.Auto,) * len(AXES)
    slices = Counter(getattr(device, "slice_index", 0) for device in devices)
    if len(slices) == 1:  # jax.make_mesh refuses several
        return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)
    sizes = sorted(set(slices.values()))
    if len(sizes) > 1:
        raise UserError(
            f"some of the {len(slices)} hosts or slices have {sizes[0]} devices and some {sizes[-1]}; start as many on each"
        )
    across, left = list[int](), len(slices)  # `left` ends at 1, since the slices divide the devices
    for size in shape:
        across.append(math.gcd(size, left))
        left //= across[-1]
    within = [size // count for size, count in zip(shape, across, strict=True)]
    placed = mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    return Mesh(placed, AXES, axis_types=types)


def _count_near(devices: Sequence[jax.Device]) -> int:
    """The number of devices to which the first one has fast links, itself included."""
    where = "slice_index" if devices[0].platform == "tpu" and hasattr(devices[0], "slice_index") else "process_index"
    return sum(getattr(device, where) == getattr(devices[0], where) for device in devices)


def take_mesh(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], Mesh | None]:
    """Split overrides into those that do not concern `config.mesh`, and the mesh that the rest asks for; None: one device.

    The mesh is for a trained model: axes that are not stated are 1, and further devices stay idle.
    """
    stated = {name: value for name, value in overrides.items() if name.startswith("mesh.")}
    others = {name: value for name, value in overrides.items() if name not in stated}
    if not stated:
        return others, None
    sizes = configs.override(Config(), {"mesh.data": 1, "mesh.fsdp": 1} | stated).mesh
    devices = jax.devices()
    wanted = math.prod(getattr(sizes, name) for name in AXES)
    return others, make_mesh(sizes, devices[:wanted] if 0 < wanted <= len(devices) else devices)


def active(mesh: Mesh | None) -> contextlib.AbstractContextManager:
    """A context in which computation is sharded over the mesh; None: no sharding."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def check(config: Config, mesh: Mesh) -> None:
    """Check that a mesh's axes divide what they shard of a training step."""
    check_model(config, mesh)
    size = dict(mesh.shape)
    if config.context % size["context"]:
        raise UserError(
            f"config.context={config.context} must be a multiple of the mesh's context={size['context']}; "
            "set config.mesh.context to a divisor of it"
        )
    if config.model.causal and size["context"] > 1 and config.context // size["context"] % 2:
        each = config.context // size["context"]
        log.info(f"mesh: the {each} tokens of each device are an odd number, so that the ring's work is not balanced")
    rows, sharing = config.batch // config.optimizer.accumulate, size["data"] * size["fsdp"]
    if rows % sharing:
        fits = [n for n in range(config.batch // sharing, 0, -1) if config.batch % (n * sharing) == 0]
        near = min(fits, key=lambda n: abs(n - config.optimizer.accumulate), default=None)
        raise UserError(
            f"the {rows} rows of a (micro-)batch, config.batch={config.batch} over config.optimizer.accumulate="
            f"{config.optimizer.accumulate}, must be a multiple of the mesh's data x fsdp = {sharing}; "
            + (f"set config.optimizer.accumulate={near}" if near else "set config.batch to a multiple of it")
        )


def check_model(config: Config, mesh: Mesh) -> None:
    """Check that a mesh's axes divide what they shard of a model, and do not shard what must be whole."""
    size = dict(mesh.shape)
    for name in ("heads", "kv_heads", "hidden"):
        number = getattr(config.model, name)
        if number % size["tensor"]:
            raise UserError(
                f"config.model.{name}={number} must be a multiple of the mesh's tensor={size['tensor']}; "
                "set config.mesh.tensor to a divisor of it"
            )
    model = config.model
    dims = Dims(model.heads, model.width, config.context, model.causal, model.head_dim)
    for place in (spec(**place) for place in config.layer_pattern()):
        made = lambda place=place: sharpened(place.build(dims, nnx.Rngs(0)).rowwise(), place.ssmax)
        check_rowwise(jax.eval_shape(made), mesh)


def parameter_shardings(tree: Any, mesh: Mesh) -> Any:
    """The sharding of each parameter, by the one of `RULES` that matches its path.

    An axis of the mesh that does not divide an array's axis does not shard it. This is logged; for an array of more than
    `LARGE` bytes, it is an error.
    """

    name = lambda keys: jax.tree_util.keystr(keys, simple=True, separator="/")
    return jax.tree.map_with_path(lambda keys, x: NamedSharding(mesh, _fit_to_shape(name(keys), x, mesh)), tree)


def rule(name: str) -> P:
    """The spec of the last axes of the parameter `name`.

    >>> tuple(rule("layers/mlp/down/kernel"))
    ('tensor', 'fsdp')
    """
    found = [spec for pattern, spec in RULES if re.fullmatch(pattern, name)]
    if len(found) != 1:
        many = "no rule" if not found else f"{len(found)} rules"
        raise UserError(
            f"{many} of bam_jax.parallel.sharding.RULES say how the parameter {name} is cut; there must be one"
        )
    return found[0]


def _fit_to_shape(name: str, leaf: Any, mesh: Mesh) -> P:
    """The spec for all axes of a parameter, without mesh axes that do not divide what they would shard."""
    spec = rule(name)
    if leaf.ndim < len(spec):
        raise UserError(
            f"the rule {spec} of bam_jax.parallel.sharding.RULES is for more axes than {name} {leaf.shape} has"
        )
    wanted = [None] * (leaf.ndim - len(spec)) + list(spec)
    for n, (axis, size) in enumerate(zip(wanted, leaf.shape, strict=True)):
        if axis is not None and size % mesh.shape[axis]:
            wanted[n] = None
            says = f"the mesh's {axis}={mesh.shape[axis]} does not divide the {size} of {name} {leaf.shape}"
            if leaf.size * leaf.dtype.itemsize > LARGE:
                raise UserError(f"{says}, which is large; change one of the two (config.model.vocab may be rounded up)")
            log.info(f"mesh: {says}: it is not cut there")
    return P(*wanted)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays that every device has whole, such as counters."""
    return NamedSharding(mesh, P())


def shard_batch(arrays: dict[str, np.ndarray], mesh: Mesh) -> dict[str, Array]:
    """Make global arrays from a batch, with rows sharded over data and fsdp, and tokens over context.

    Each input is [B, T] or [B], with the rows of this process (`host_share`) and all their tokens.
    """
    shardings = {name: NamedSharding(mesh, _text_spec(x.ndim)) for name, x in arrays.items()}
    if replicated(mesh).is_fully_addressable:
        return jax.device_put(arrays, shardings)
    host, count = host_share(mesh)

    def globalise(x: np.ndarray, sharding: NamedSharding) -> Array:
        first, shape = host * x.shape[0], (count * x.shape[0], *x.shape[1:])

        def take(index: Any) -> np.ndarray:
            rows, *tokens = index  # of the global array; this process has its rows from `first` on
            start, stop, _ = rows.indices(shape[0])
            return x[(slice(start - first, stop - first), *tokens)]

        return jax.make_array_from_callback(shape, sharding, take)

    return {name: globalise(x, shardings[name]) for name, x in arrays.items()}


def _text_spec(axes: int) -> P:
    """The spec of an array of rows: [B] or [B, T, ...]."""
    return P(*tuple(TEXT)[:axes])


def host_share(mesh: Mesh) -> tuple[int, int]:
    """The share of a batch's rows that this process's devices hold: (host, hosts), as `data.loader.batches` takes them.

    Processes that share rows, along tensor or context, get the same numbers.
    """
    sharing = mesh.devices.reshape(math.prod(mesh.shape[axis] for axis in BATCH), -1)
    owners = [{device.process_index for device in row} for row in sharing]
    mine = [n for n, row in enumerate(owners) if jax.process_index() in row]
    host, rest = divmod(mine[0], len(mine))
    if rest or len(owners) % len(mine) or mine != list(range(mine[0], mine[0] + len(mine))):
        raise UserError(
            f"process {jax.process_index()} holds the parts {mine} of {len(owners)} of a batch, not a run of equal share; "
            "choose config.mesh.data and fsdp so that each host's devices stand together"
        )
    return host, len(owners) // len(mine)


def ambient_mesh() -> AbstractMesh | None:
    """The mesh under `jax.set_mesh` if it has axes `AXES`, none of which is manual already, and several devices."""
    mesh = jax.sharding.get_abstract_mesh()
    ours = set(AXES) <= set(mesh.axis_names) and mesh.size > 1
    return mesh if ours and not set(AXES) & set(mesh.manual_axes) else None


def shard_activations(x: Float[Array, "B T *E"]) -> Float[Array, "B T *E"]:
    """Activations, constrained to be sharded by rows and tokens under a mesh."""
    # Otherwise the compiler would choose its own sharding for each layer, and move the activations in between.
    mesh = ambient_mesh()
    return x if mesh is None else jax.lax.with_sharding_constraint(x, text_cut(x.shape, mesh))


def text_cut(shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> P:
    """The spec of texts [B, T, ...]: `TEXT`, except for axes that the mesh does not divide, as with one token in decoding."""
    rows = math.prod(mesh.shape[axis] for axis in BATCH)
    return P(BATCH if shape[0] % rows == 0 else None, CONTEXT if shape[1] % mesh.shape[CONTEXT] == 0 else None)


def micro_batches(arrays: Any, count: int) -> Any:
    """Each [B, ...] as [count, B / count, ...], with every device's rows dealt out to all micro-batches.

    If the first B / count rows were the first micro-batch, they would be on a few devices and be sent to all others.
    """

    def cut(x: Array) -> Array:
        x = x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1)
        return x if ambient_mesh() is None else jax.lax.with_sharding_constraint(x, P(None, *_text_spec(x.ndim - 1)))

    return jax.tree.map(cut, arrays)


def join_micro_batches(x: Array) -> Array:
    """The inverse of `micro_batches`: [count, B / count, ...] as [B, ...], rows in the order of the batch."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])


def check_rowwise(rowwise: Rowwise | None, mesh: Mesh | AbstractMesh) -> None:
    """Check that a mesh does not shard the rows of logits that a rowwise method needs whole."""
    for axis, needed in (("context", "whole rows of logits"), ("tensor", "the logits of all heads")):
        if rowwise is not None and mesh.shape[axis] > 1 and (axis == "context" or rowwise.mixes_heads):
            raise UserError(
                f"{type(rowwise).__name__} needs {needed}, which the mesh's {axis}={mesh.shape[axis]} cuts; "
                f"set config.mesh.{axis}=1"
            )
