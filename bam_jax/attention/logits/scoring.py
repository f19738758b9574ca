"""How a query scores a key: bias, temperature, positions, documents and mask, as one pytree."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bam_jax.biases import Bias, Rowwise, Uniform, table
from bam_jax.biases.base import Coordinate

EMPTY = np.iinfo(np.int32).max
"""The position of a slot that holds no token: it sees nothing and is seen by nothing."""

HIDDEN = -1e30
"""Added to the logit of a hidden pair. It absorbs any logit: biases are at least -exp(CAP)."""

FLOOR = -1e20
"""Where a running maximum starts: far below every logit, far above `HIDDEN`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kinds:
    """Which tokens have the same key and the same value: those of one kind, whatever their positions.

    Args:
      of: [#B, T], the kind of each token, from 0.
      count: of kinds.
    """

    of: Int[Array, "#B T"]
    count: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """What attention must know of the tokens on one side besides q, k and v; it is packed, sharded and cached with them.

    Args:
      position: [#B, T], index of the token in its row or document, ascending within a document; `EMPTY`: no token.
      segment: [#B, T] or None, number of the token's document from 1, ascending; 0 pads. None: one document a row.
      coordinate: what the bias compares, [#B, #H, T] or a tuple of such; None: the position itself.
      kinds: of keys that repeat, which backends may make use of; None: each has a key and a value of its own.
    """

    position: Int[Array, "#B T"]
    segment: Int[Array, "#B T"] | None = None
    coordinate: Coordinate = None
    kinds: Kinds | None = None


@dataclasses.dataclass(frozen=True)
class Mask:
    """Which keys a query may see, besides those of its own document: a static description, never an array.

    Args:
      causal: no key after the query.
      window: only keys fewer than this many tokens away, the query itself included; None: no limit.
    """

    causal: bool = True
    window: int | None = None

    def __post_init__(self) -> None:
        if type(self.causal) is not bool:
            raise ValueError(f"a mask is causal or not: got causal={self.causal!r}")
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise ValueError(f"a window is a number of tokens, at least the token itself: got window={self.window!r}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scoring:
    """The score of every query and key.

        logit[h, i, j] = temperature[h, i] * (q_i . k_j / sqrt(D) + bias_h(u_i, u_j))   where j is visible from i

    Args:
      bias: a `Bias` with parameters [H] or [H, n].
      queries, keys: the tokens on either side.
      temperature: [#B, H, T] (SSMax with the prior inside) or None for 1.
      mask: causality and window.
      rowwise: what makes logits of whole rows of scores and biases, before the temperature; None: their sum.
    """

    bias: Bias
    queries: Tokens
    keys: Tokens
    temperature: Float[Array, "#B H T"] | None = None
    mask: Mask = dataclasses.field(default=Mask(), metadata={"static": True})
    rowwise: Rowwise | None = None


def coordinate(tokens: Tokens, dtype: jnp.dtype) -> Coordinate:
    """The tokens' coordinate, [#B, #H, T]: their own, or the position as a number."""
    if tokens.coordinate is None:
        return tokens.position[:, None, :].astype(dtype)
    return tokens.coordinate


def visible(queries: Tokens, keys: Tokens, mask: Mask) -> Bool[Array, "#B T S"]:
    """Which keys each query sees."""
    i, j = queries.position[:, :, None], keys.position[:, None, :]
    seen = (i < EMPTY) & (j < EMPTY)
    if mask.causal:
        seen = seen & (j <= i)
    if mask.window is not None:
        seen = seen & (jnp.abs(i - j) < mask.window)
    if queries.segment is not None and keys.segment is not None:
        a, b = queries.segment[:, :, None], keys.segment[:, None, :]
        seen = seen & ((a == b) & (b > 0))
    return seen


def bias_table(scoring: Scoring, dtype: jnp.dtype) -> Float[Array, "#B #H T S"]:
    """The bias between all queries and keys, in `dtype`."""
    if isinstance(scoring.bias, Uniform):
        return jnp.zeros((1, 1, 1, 1), dtype)
    return table(scoring.bias, coordinate(scoring.queries, dtype), coordinate(scoring.keys, dtype))


def document_count(tokens: Tokens, mask: Mask) -> Int[Array, "#B T"]:
    """Number of keys that each token of a packed row sees, itself included: SSMax's n_i.

        causal: n_i = position_i - position of its document's first token + 1;   else the document's length;
        at most the window's. Empty slots and padding count 1.

    Source: BAM section 2.5 (the input vector's size), and the authors' code, which counts the mask's row.
    """
    position = tokens.position
    filled = position < EMPTY
    if tokens.segment is None:
        first = jnp.zeros_like(position)
        last = jnp.max(jnp.where(filled, position, 0), axis=1, keepdims=True)
    else:
        segment = tokens.segment
        filled = filled & (segment > 0)
        change = segment[:, 1:] != segment[:, :-1]
        edge = jnp.ones_like(filled[:, :1])
        starts = jnp.concatenate([edge, change], axis=1)
        ends = jnp.concatenate([change, edge], axis=1)
        first = jax.lax.cummax(jnp.where(starts & filled, position, 0), axis=1)
        last = jax.lax.cummin(jnp.where(ends, position, EMPTY), axis=1, reverse=True)
    last = position if mask.causal else last
    if mask.window is not None:
        first = jnp.maximum(first, position - mask.window + 1)
        last = jnp.minimum(last, position + mask.window - 1)
    return jnp.where(filled, last - first + 1, 1)


def sealed(k: Float[Array, "... D"], v: Float[Array, "... D"]) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    """Keys that are NaN where their value is not finite, and values that are 0 there.

    A weight of 0 does not hide a value that is NaN; the mask does hide a key that is, and stands for both.

    Args:
      k, v: alike.
    """
    finite = jnp.isfinite(v).all(-1, keepdims=True)
    return jnp.where(finite, k, jnp.nan), jnp.where(finite, v, 0)


def split(scoring: Scoring) -> tuple:
    """The differentiable parts of a scoring, and the function that puts them back.

    They are the bias, the temperature, both coordinates and, where there is one, what is rowwise.
    """
    parts: tuple = (scoring.bias, scoring.temperature, scoring.queries.coordinate, scoring.keys.coordinate)
    if scoring.rowwise is not None:
        parts = (*parts, scoring.rowwise)

    def join(parts: tuple) -> Scoring:
        bias, temperature, i, j, *rowwise = parts
        return dataclasses.replace(
            scoring,
            bias=bias,
            temperature=temperature,
            queries=dataclasses.replace(scoring.queries, coordinate=i),
            keys=dataclasses.replace(scoring.keys, coordinate=j),
            rowwise=rowwise[0] if rowwise else None,
        )

    return parts, join


def cotangent(scoring: Scoring, d_parts: tuple) -> Scoring:
    """The cotangent of a scoring from that of its differentiable parts."""
    _, join = split(jax.tree.map(lambda x: None, scoring))
    return join(d_parts)
