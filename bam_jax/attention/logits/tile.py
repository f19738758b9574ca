"""The mathematics of one tile of logits, which the kernels share.

Queries vary along one axis of a tile and keys along the other, in either order. All data about tokens are arrays with an axis of
length one, [1, n] on one side and [n, 1] on the other.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bam_jax.attention.logits import dropout
from bam_jax.attention.logits.mask import Limits
from bam_jax.attention.logits.scoring import HIDDEN, Differentiable, Scoring, compared_coordinates, origin
from bam_jax.attention.logits.tokens import EMPTY
from bam_jax.biases import Bias, Mixture, Uniform
from bam_jax.biases.base import Coordinate, head_axes, sum_to


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Queries:
    """What the mask, the bias and dropout need of the queries of a tile."""

    limits: Limits  # the positions that each query sees
    segment: Array | None  # number of the document, -1 if none; None: one document
    coordinate: Coordinate  # what the bias compares; None: the highest position of the limits as a number
    temperature: Array | None  # None for 1
    code: Array | None  # a random number for dropout, and its rate; None: nothing is dropped
    rate: float = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Keys:
    """The same for the keys of a tile; without a coordinate, it is the position as a number."""

    position: Array
    segment: Array | None
    coordinate: Coordinate
    code: Array | None
    flaw: Array | None = None  # NaN where the key's value is not finite, else 0; None: the kernel finds it otherwise


def sides(scoring: Scoring) -> tuple[Queries, Keys]:
    """The tokens of a scoring as tiles take them: arrays [#B, #H, 1, T]."""
    queries, keys, mask = scoring.queries, scoring.keys, scoring.mask
    vector = lambda x: x.astype(jnp.int32)[:, None, None, :]
    segment_i, segment_j = queries.segment, keys.segment
    if segment_i is None or segment_j is None:
        segment_i = segment_j = None
    else:  # padding sees nothing: no key's document has the number -1
        segment_i, segment_j = vector(jnp.where(segment_i > 0, segment_i, -1)), vector(jnp.maximum(segment_j, 0))
    numbers = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32)[:, :, None, :], tree)
    own, others = queries.coordinate, keys.coordinate
    filled = queries.position < EMPTY
    start = origin(scoring)  # all positions here count from it, including those of the limits
    if scoring.bias.splits_positions and own is None and others is None:
        own, others = compared_coordinates(scoring, jnp.dtype(jnp.float32))
    # The highest limit of a causal query is its own position, which `coordinates` uses; other queries need theirs separately.
    elif own is None and (not mask.causal or queries.sees_to is not None):
        own = jnp.where(filled, queries.position - start, 0)[:, None]
    # The maximum keeps the difference within int32; such a limit is below all keys in any case.
    limits = jax.tree.map(lambda x: jnp.maximum(x, start - EMPTY) - start, mask.limits(queries))
    limits = limits._replace(highest=jnp.where(filled, limits.highest, -EMPTY))  # an empty slot sees nothing
    position = jnp.where(keys.position < EMPTY, keys.position - start, EMPTY)
    drops, rate, code_i, code_j = scoring.dropout, 0.0, None, None
    if drops is not None:
        rate, code_i, code_j = drops.rate, drops.query_code(queries)[:, :, None], dropout.key_code(keys)[:, :, None]
    return (
        Queries(
            jax.tree.map(vector, limits),
            segment_i,
            numbers(own),
            None if scoring.temperature is None else numbers(scoring.temperature),
            code_i,
            rate,
        ),
        Keys(vector(position), segment_j, numbers(others), code_j),
    )


def visible(queries: Queries, keys: Keys) -> Bool[Array, "..."]:
    """The keys of the tile that each query sees; see `mask.visible`."""
    seen = queries.limits.contain(keys.position)
    if queries.segment is not None:
        seen = seen & (keys.segment == queries.segment)
    return seen


def coordinates(queries: Queries, keys: Keys) -> tuple[Coordinate, Coordinate]:
    """The two coordinates that the bias compares."""
    own = lambda coordinate, position: position.astype(jnp.float32) if coordinate is None else coordinate
    return own(queries.coordinate, queries.limits.highest), own(keys.coordinate, keys.position)


def logits(
    scores: Float[Array, "..."], bias: Bias, queries: Queries, keys: Keys, whole: bool = False
) -> tuple[Array, Array]:
    """The tile's logits, and those before temperature and mask, from the content scores; see `scoring.Content`.

    `whole`: every query sees every key, so no mask is applied.
    """
    shown, raw = unmasked_logits(scores, bias, queries, keys)
    return shown if whole else jnp.where(visible(queries, keys), shown, HIDDEN), raw


def unmasked_logits(scores: Float[Array, "..."], bias: Bias, queries: Queries, keys: Keys) -> tuple[Array, Array]:
    """`logits` of a tile in which every query sees every key."""
    raw = scores if isinstance(bias, Uniform) else scores + bias(*coordinates(queries, keys))
    return raw if queries.temperature is None else raw * queries.temperature, raw


def dropout_factor(queries: Queries, keys: Keys) -> Float[Array, "..."] | None:
    """The factor of the tile's weights and of their cotangents; None: nothing is dropped. See `dropout.drop`."""
    if queries.code is None or keys.code is None:
        return None
    return dropout.factor(queries.code, keys.code, queries.rate, jnp.dtype(jnp.float32))


@jax.tree_util.register_pytree_node_class
class Vector:
    """A vector of parameters inside a kernel, whose numbers a formula reads one by one."""

    def __init__(self, numbers: tuple):
        self.numbers = tuple(numbers)

    @property
    def shape(self) -> tuple[int]:
        """(n,)"""
        return (len(self.numbers),)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, n: int) -> Array:
        if not isinstance(n, int):
            raise TypeError("looks a parameter up by a number that is computed")
        return self.numbers[n]

    def tree_flatten(self) -> tuple[tuple, None]:
        """See `jax.tree_util.register_pytree_node_class`."""
        return self.numbers, None

    @classmethod
    def tree_unflatten(cls, _: None, numbers: tuple) -> "Vector":
        """See `jax.tree_util.register_pytree_node_class`."""
        return cls(numbers)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Converts the parameters of a bias to one table [H, P] and back; shared parameters are repeated for each head."""

    tree: jax.tree_util.PyTreeDef
    shapes: tuple[tuple[int, ...], ...]  # of each leaf, for one head
    shared: tuple[bool, ...]

    @classmethod
    def of(cls, bias: Bias) -> "Parameters":
        """The parameters of a bias whose leaves are arrays or their shapes."""
        leaves, tree = jax.tree.flatten(bias)
        axes = jax.tree.leaves(head_axes(bias), is_leaf=lambda x: x is None)
        shapes = tuple(jnp.shape(x)[0 if axis is None else 1 :] for x, axis in zip(leaves, axes, strict=True))
        return cls(tree, shapes, tuple(axis is None for axis in axes))

    @property
    def sizes(self) -> list[int]:
        """Number of columns of each leaf."""
        return [math.prod(shape) for shape in self.shapes]

    def table(self, bias: Bias, heads: int) -> Float[Array, "H P"]:
        """All parameters in float32; one column of zeros if there are none."""
        columns = [
            jnp.broadcast_to(jnp.asarray(x, jnp.float32).reshape(1 if shared else heads, size), (heads, size))
            for x, size, shared in zip(jax.tree.leaves(bias), self.sizes, self.shared, strict=True)
        ]
        return jnp.concatenate(columns or [jnp.zeros((heads, 1), jnp.float32)], axis=1)

    def bias(self, columns: list) -> Bias:
        """The bias of one head from its numbers, one for each column."""
        rest = iter(columns)
        leaves = [
            Vector(tuple(next(rest) for _ in range(size))) if shape else next(rest)
            for shape, size in zip(self.shapes, self.sizes, strict=True)
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def cotangent(self, columns: Float[Array, "H P"], like: Bias) -> Bias:
        """A bias's cotangent from that of its table."""
        leaves, at = [], 0
        for x, size, shared in zip(jax.tree.leaves(like), self.sizes, self.shared, strict=True):
            part = columns[:, at : at + size]
            at += size
            if shared:
                part = part.sum(0)  # over the heads
            leaves.append(part.reshape(jnp.shape(x)).astype(jnp.result_type(x)))
        return jax.tree.unflatten(self.tree, leaves)


@dataclasses.dataclass(frozen=True)
class ScoringSums:
    """The sums that backward kernels compute besides dq, dk and dv, and the cotangent of the scoring made from them."""

    scoring: Scoring
    parameters: Parameters
    # whether a query's contribution is wanted for each number of the bias's table, the temperature, its coordinates
    of_queries: list[bool]
    of_keys: list[bool]  # whether a key's contribution is wanted for each of its coordinates

    @classmethod
    def of(cls, scoring: Scoring, parameters: Parameters, wanted: Differentiable) -> "ScoringSums":
        """The sums that the flags of `Residuals.wanted` ask for."""
        of_bias = [flag for flag, size in zip(wanted.bias, parameters.sizes, strict=True) for _ in range(size)]
        of_queries = [*of_bias, *wanted.temperature, *wanted.query_coordinate]
        return cls(scoring, parameters, of_queries, list(wanted.key_coordinate))

    def cotangent(self, of_queries: Float[Array, "n B H T"], of_keys: Float[Array, "m B H S"], heads: int) -> Scoring:
        """The cotangent of the scoring, summed over the batch and the rows where the arrays have no such axes."""
        parts, number = Differentiable.of(self.scoring), sum(self.parameters.sizes)
        flags, none = self.of_queries[:number], jnp.zeros((heads,), jnp.float32)
        # A bias's parameters have neither batch nor rows: the kernels' results for each row are summed here, in float32.
        table = _unstacked(of_queries[: sum(flags)].sum((1, 3)), flags)
        columns = [none if x is None else x for x in table]
        d_bias = self.parameters.cotangent(jnp.stack(columns, 1), parts.bias) if number else parts.bias
        rows = _unstacked(of_queries[sum(flags) :], self.of_queries[number:])
        d_temperature, d_i = refolded((parts.temperature, parts.query_coordinate), rows)
        d_j = refolded(parts.key_coordinate, _unstacked(of_keys, self.of_keys))
        return Differentiable(d_bias, d_temperature, d_i, d_j).cotangent(self.scoring)


def _unstacked(parts: Iterable[Array], flags: list[bool]) -> list[Array | None]:
    """The parts, one for each flag that is set, with None for the others."""
    rest = iter(parts)
    return [next(rest) if flag else None for flag in flags]


def refolded(tree: Any, parts: Sequence[Array | None]) -> Any:
    """The cotangent of a tree of arrays [#B, #H, T] from those of its leaves, [B, H, T or more]; None: zeros."""
    leaves, whole = jax.tree.flatten(tree)

    def refold(x: Array, part: Array | None) -> Array:
        return jnp.zeros_like(x) if part is None else sum_to(part[..., : x.shape[2]], x).astype(x.dtype)

    return jax.tree.unflatten(whole, [refold(x, part) for x, part in zip(leaves, parts, strict=True)])


# The primitives that Mosaic, the compiler of TPU kernels, can lower in a formula and its gradient.
LOWERED = frozenset(
    """abs add add_any and atan2 broadcast_in_dim ceil clamp convert_element_type copy cos custom_jvp_call custom_vjp_call
    div eq erf exp exp2 expand_dims floor ge gt integer_pow is_finite jit le log log1p log2 logistic lt max min mul ne neg
    not or pjit pow reduce_max reduce_min reduce_sum rem reshape round rsqrt select_n sign sin sqrt square squeeze
    stop_gradient sub tan tanh xor""".split()
)


def unsupported(scoring: Scoring, lowered: frozenset[str] = LOWERED) -> str | None:
    """The reason why a kernel cannot compute the bias, with the primitive's name, or None."""
    name, parameters = type(scoring.bias).__name__, Parameters.of(scoring.bias)
    if isinstance(scoring.bias, Mixture):
        return (
            f"its formula mixes no profiles by the query, as the bias {name} does: positions have to follow one another"
        )
    if any(len(shape) > 1 for shape in parameters.shapes):
        return f"the bias {name} has a parameter with more axes than [H, n]"
    number = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    along = lambda tree, *shape: jax.tree.map(lambda _: jax.ShapeDtypeStruct(shape, jnp.float32), tree)
    bias = parameters.bias([number] * sum(parameters.sizes))
    i, j = (0.0 if x.coordinate is None else x.coordinate for x in (scoring.queries, scoring.keys))
    i, j, d = along(i, 1, 8), along(j, 16, 1), along(0.0, 16, 8)

    def both(bias: Bias, i: Coordinate, j: Coordinate, d: Array) -> tuple:
        value = jnp.broadcast_to(bias(i, j), d.shape)
        return value, bias.cotangents(i, j, d.astype(value.dtype))  # a NumPy number makes it wider in 64-bit mode

    try:
        traced = jax.make_jaxpr(both)(bias, i, j, d)
    except (AttributeError, TypeError) as error:
        return f"the formula of {name} takes its parameters otherwise than one by one: {error}"
    if any(jnp.size(x) > 1 for x in traced.consts):
        return f"the formula of {name} holds an array that is no parameter"
    foreign = sorted(_primitives(traced.jaxpr) - lowered)
    return f"the formula of {name} or its gradient needs {', '.join(foreign)}" if foreign else None


def _primitives(jaxpr: Any) -> set[str]:
    """Names of all primitives in a jaxpr, inner ones included."""
    names = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            names |= _primitives(inner)
    return names
