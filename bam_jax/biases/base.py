"""The interface of a bias, and `table`, which evaluates its formula for all heads, queries and keys."""

import dataclasses
import functools
from typing import Any, ClassVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# A coordinate is an array [#B, #H, T], or a tuple of such arrays.
type Coordinate = Any
# Two coordinates, low and high, of broadcastable shapes.
type Range = tuple[Any, Any]


class Bias:
    """A positional bias: parameters of one or all heads, and the formula `bias(i, j)` of one head.

    Decorate subclasses with `bias`. In `__call__`, fields are scalar parameters (or vectors, for tables and small networks), and
    coordinates have any broadcastable shapes. It returns the bias in nats, finite for finite coordinates. Use only exp, log,
    abs, min, max, where and arithmetic, so that every kernel compiler accepts the formula.

    Positions are passed as float32, which rounds them from 2^24 on. The offsets of a `Relative` bias are exact there, too.

    Class attributes:
        splits_positions: whether positions are passed as pairs (high, low) that add up to the position, for a formula that needs
            both offsets and positions: `difference` of two pairs is exact. The formula must accept plain numbers, too.
    """

    splits_positions: ClassVar[bool] = False

    def __call__(self, i: Coordinate, j: Coordinate) -> Array:
        """Bias between a query with coordinate `i` and a key with coordinate `j`, in nats."""
        raise NotImplementedError(f"{type(self).__name__} has no formula: define __call__(self, i, j)")

    def query_coordinate(self, position: Coordinate, own: Coordinate) -> Coordinate:
        """The coordinate `i` of the formula, from the query's position and the query's own coordinate (None: it has none)."""
        return position if own is None else own

    def cotangents(self, i: Coordinate, j: Coordinate, d_bias: Array) -> tuple["Bias", Coordinate, Coordinate]:
        """Cotangents of the parameters and of both coordinates from that of the bias, each summed to its own shape.

        Kernels call it on their tiles. A bias may override it if a closed form is cheaper than `jax.vjp`. For relative biases
        in strips, and on CPUs, the formula is differentiated by `jax.vjp` even so.
        """
        _, vjp = jax.vjp(lambda bias, i, j: bias(i, j), self, i, j)
        return vjp(d_bias)

    def bounds(self, i: Range, j: Range) -> tuple[Array, Array] | None:
        """Smallest and largest bias between any query in the range `i` and any key in the range `j`; None: not known.

        Attention uses the bounds to skip tiles whose mass is provably negligible. They must hold, but need not be tight.
        """
        return None

    @property
    def zero_from(self) -> int | None:
        """The distance in tokens from which on the bias is 0 for any parameters; None: there is no such distance."""
        return None

    def by_offset(self) -> "Relative | None":
        """The bias as a function of the offset in tokens, used to count keys that matter; None: it is no such function."""
        return None


class Relative(Bias):
    """A bias of the offset alone: bias(i, j) = bias(0, j - i).

    Where positions are contiguous, attention evaluates it once for each offset of a tile, not for each pair.
    """

    def by_offset(self) -> "Relative":
        """The bias itself."""
        return self


class Monotone(Relative):
    """A bias that only falls, or only rises, with the distance between the key and a centre near the query."""

    def centre(self) -> Any:
        """The offset from the query at which the distance is 0, in tokens."""
        return 0.0

    def bounds(self, i: Range, j: Range) -> tuple[Array, Array]:
        """The bias at the smallest and the largest distance, in ascending order; see `Bias.bounds`."""
        centre = self.centre()
        ahead, behind = j[1] - i[0] - centre, j[0] - i[1] - centre  # the ends of j - i - centre
        near = jnp.maximum(jnp.maximum(behind, -ahead), 0)
        far = jnp.maximum(jnp.abs(behind), jnp.abs(ahead))
        at_near, at_far = (self(jnp.zeros_like(distance), distance + centre) for distance in (near, far))
        return jnp.minimum(at_near, at_far), jnp.maximum(at_near, at_far)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def bias[T: type](cls: T) -> T:
    """Class decorator: make a `Bias` subclass a frozen dataclass and a JAX pytree.

    Args:
        cls: a class with annotated fields, each a parameter of shape [H] or [H, n]; fields made by `shared()` are common to all
            heads, fields made by `static()` are Python values known to the compiler.

    Example:
      >>> @bias
      ... class Gaussian(Bias):
      ...     precision: jax.Array
      ...     def __call__(self, i, j):
      ...         return -self.precision * (i - j) ** 2
      >>> Gaussian(2.0)(3.0, 1.0)
      -8.0
    """
    jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))
    scalars = [x.name for x in dataclasses.fields(cls) if getattr(x.type, "dim_str", "") == "*H"]
    formula = cls.__call__
    if not issubclass(cls, Bias):  # a row-wise method has all heads
        return cls

    @functools.wraps(formula)
    def of_one_head(self: Any, i: Coordinate, j: Coordinate) -> Array:
        heads = [jnp.shape(getattr(self, name)) for name in scalars]
        # In kernels, parameters are broadcast to the two axes of a tile; a single axis is that of heads.
        if any(len(x) == 1 < x[0] for x in heads) and any(jnp.ndim(x) > 1 for x in jax.tree.leaves((i, j))):
            raise ValueError(
                f"the formula of {cls.__name__} is that of one head, and its parameters are those of {max(heads)[0]}: "
                "biases.table(bias, i, j) evaluates it for all of them"
            )
        return formula(self, i, j)

    cls.__call__ = of_one_head  # type: ignore[method-assign]
    return cls


def shared() -> Any:
    """A field whose parameter is common to all heads (FIRE's hidden layer)."""
    return dataclasses.field(metadata={"shared": True})


def static(default: Any = dataclasses.MISSING) -> Any:
    """A field that is a hashable Python value, not an array."""
    return dataclasses.field(default=default, metadata={"static": True})


def difference(i: tuple[Array, Array], j: tuple[Array, Array]) -> Array:
    """The difference of two numbers given as pairs (high, low), computed separately for high and low."""
    return (i[0] - j[0]) + (i[1] - j[1])


def sum_to(x: Array, like: Array) -> Array:
    """The sum of x over the axes that `like` lacks, or along which it has length one."""
    shape = jnp.shape(like)
    x = x.sum(tuple(range(x.ndim - len(shape))))
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 < x.shape[axis])
    return x.sum(axes, keepdims=True) if axes else x


def trial(bias: Bias, of_queries: Coordinate, of_keys: Coordinate) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a bias between 2 queries and 3 keys, which tests a formula without computing anything.

    Args:
        bias: as for `table`.
        of_queries, of_keys: coordinates, of which only the structure matters; None: the position.

    Raises:
        Exception: any that the formula raises.
    """

    # NumPy raises an error for the second row of an array with one row, whereas JAX returns the first row.
    two, three = (np.zeros((1, 1, count), np.float32) for count in (2, 3))
    i = bias.query_coordinate(two, jax.tree.map(lambda _: two, of_queries))
    j = three if of_keys is None else jax.tree.map(lambda _: three, of_keys)

    parameters = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), bias)
    return jax.eval_shape(lambda bias: table(bias, i, j), parameters)


def compares_pairs(shape: tuple[int, ...]) -> bool:
    """True if a shape found by `trial` is valid: [1, #H, #T, #S] for 2 queries and 3 keys."""
    return len(shape) == 4 and shape[0] == 1 and shape[2] in (1, 2) and shape[3] in (1, 3)


def head_axes(bias: Bias) -> Bias:
    """The bias with 0 in place of each per-head leaf and None in place of each shared one: `in_axes` of `jax.vmap`."""
    axes = {}
    for field in dataclasses.fields(bias):  # type: ignore[arg-type]  # every bias is one
        value = getattr(bias, field.name)
        if not field.metadata.get("static"):
            axis = None if field.metadata.get("shared") else 0
            value = jax.tree.map(lambda _, axis=axis: axis, value)
        axes[field.name] = value
    return dataclasses.replace(bias, **axes)  # type: ignore[type-var]


def table(bias: Bias, i: Coordinate, j: Coordinate) -> Float[Array, "#B #H T S"]:
    """Evaluate a bias between all queries and all keys.

        table[b, h, t, s] = bias_h(i[b, h, t], j[b, h, s])

    Args:
        bias: parameters with a leading head axis, [H] or [H, n] (shared ones without).
        i: query coordinate, [#B, #H, T] or a tuple of such.
        j: key coordinate, [#B, #H, S] or a tuple of such.

    Returns:
        [#B, #H, T, S] in nats; an axis that nothing depends on has length 1.

    Raises:
        ValueError: a coordinate has other axes, or the formula does not return a number for each pair.
    """
    for name, x in [(name, x) for name, of in (("i", i), ("j", j)) for x in jax.tree.leaves(of)]:
        if jnp.ndim(x) != 3:
            raise ValueError(
                f"biases.table takes coordinates [#B, #H, T], not {name} of the shape {jnp.shape(x)}; "
                f"positions jnp.arange(T) are jnp.arange(T)[None, None]"
            )

    def one_head(bias: Bias, i: Coordinate, j: Coordinate) -> Array:
        columns = jax.tree.map(lambda x: x[:, :, None], i)
        rows = jax.tree.map(lambda x: x[:, None, :], j)
        found = bias(columns, rows)
        if getattr(found, "ndim", None) != 3:
            made = f"an array {list(found.shape)}" if hasattr(found, "shape") else f"{found!r:.100}"
            raise ValueError(f"the formula of {type(bias).__name__} makes {made}, not a number for each query and key")
        return found

    # A head axis of length one is common to all heads: it is not mapped.
    axis = lambda tree: jax.tree.map(lambda x: None if x.shape[1] == 1 else 1, tree)
    value = lambda tree: jax.tree.map(lambda x: x[:, 0] if x.shape[1] == 1 else x, tree)
    axes = (head_axes(bias), axis(i), axis(j))
    if not jax.tree.leaves(axes):
        return one_head(bias, value(i), value(j))[:, None]
    return jax.vmap(one_head, axes, 1)(bias, value(i), value(j))
