"""The mesh axes of the calling code: manual ones inside `jax.shard_map`, and explicit ones in the arrays' types."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array


def varying[T](tree: T, like: Any = None) -> T:
    """Cast arrays to vary over every manual mesh axis that any of them, or of `like`, varies over.

    With its default check, `jax.shard_map` requires a loop's inputs and outputs to have the same type, and likewise both
    branches of a condition. But constants vary over no axis, and the text is sharded where parameters are not. The gradient of
    a parameter that is cast here is summed over the devices.

    >>> varying({"a": jax.numpy.ones(2)})
    {'a': Array([1., 1.], dtype=float32)}
    """
    over = frozenset[Any]().union(*(_axes(x) for x in jax.tree.leaves((tree, like))))

    def cast(x: Array) -> Array:
        missing = tuple(axis for axis in over if axis not in _axes(x))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def typed(tree: Any, like: Array) -> Any:
    """Shapes and dtypes of a kernel's outputs, each varying over the mesh axes that `like` varies over."""
    varies = jax.typeof(like).manual_axis_type
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=varies), tree)


def _axes(x: Array) -> frozenset[Any]:
    return jax.typeof(x).manual_axis_type.varying


def auto(function: Callable[..., Any], like: Array, *axes: tuple[int, ...]) -> Callable[..., Any]:
    """The function, sharded by the compiler if the mesh of `like` has explicit axes.

    The types of explicit axes do not allow slicing a text into blocks. The function returns a tuple of arrays; for each of them,
    `axes` lists the axis of `like` as which each of its own axes is sharded.
    """
    sharding = jax.typeof(like).sharding
    explicit = sharding.mesh.explicit_axes
    if not explicit:
        return function
    spec = (*sharding.spec, *[None] * (like.ndim - len(sharding.spec)))
    cut = tuple(sharding.update(spec=jax.P(*(spec[axis] for axis in own))) for own in axes)
    return jax.sharding.auto_axes(function, axes=explicit, out_sharding=cut)
