"""The score of a query and a key as one pytree, and the argument and the result of every backward pass."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention.logits.dropout import Dropout
from bam_jax.attention.logits.mask import Mask, visible
from bam_jax.attention.logits.tokens import Tokens
from bam_jax.biases import Bias, Mixture, Relative, Rows, Rowwise, Uniform, table
from bam_jax.biases.base import Coordinate

HIDDEN = -1e30
"""The logit of a hidden pair, below any that is not: biases are at least -exp(CAP).

It is finite, since the difference of two infinities is NaN: a row that sees nothing has no other logit.
"""

FLOOR = -1e20
"""The start of a running maximum: far below every logit, so that the first visible one replaces it, and so far above
`HIDDEN` that exp(HIDDEN - FLOOR) is exactly 0: a row that has seen nothing yet has a normaliser of 0."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scoring:
    """The score of every query and key.

        logit[h, i, j] = temperature[h, i] * (cap(scale * q_i . k_j) + bias_h(u_i, u_j))   where j is visible from i
        cap(x) = soft_cap * tanh(x / soft_cap)

    Args:
        bias: a `Bias` with parameters [H] or [H, n].
        queries, keys: the tokens on either side.
        temperature: [#B, H, T] (SSMax with the prior inside) or None for 1.
        mask: causality and window.
        rowwise: what makes logits of whole rows of scores and biases, before the temperature; None: their sum.
        scale: of the products of queries and keys, a number of Python; None: 1 / sqrt(D).
        soft_cap: below which the scaled products stay; None: no cap.
        sink_logits: [H], of one key more that every row sees, whose value is 0: it only takes its share. No temperature
            multiplies it. None: no such key.
        dropout: of the weights that the softmax makes of the logits; None: all are kept.

    Source of `soft_cap`: Gemma 2. Of `sink_logits`: gpt-oss, after Xiao et al. 2024.
    """

    bias: Bias
    queries: Tokens
    keys: Tokens
    temperature: Float[Array, "#B H T"] | None = None
    mask: Mask = dataclasses.field(default=Mask(), metadata={"static": True})
    rowwise: Rowwise | None = None
    scale: float | None = dataclasses.field(default=None, metadata={"static": True})
    soft_cap: float | None = dataclasses.field(default=None, metadata={"static": True})
    sink_logits: Float[Array, " H"] | None = None
    dropout: Dropout | None = None

    def content(self, width: int) -> "Content":
        """The scores of content of heads that are so wide."""
        return Content(1 / math.sqrt(width) if self.scale is None else self.scale, self.soft_cap)


@dataclasses.dataclass(frozen=True)
class Content:
    """The scores of content, to which a bias is added: products of queries and keys, scaled and softly capped.

    All is computed in the products' own type, float32, where scaling rounds nothing to two bytes.
    """

    scale: float
    soft_cap: float | None  # see `Scoring`

    def scaled(self, product: Array) -> Array:
        """The products of queries and keys, or what gradients sum of them, times the scale."""
        return product if self.scale == 1 else product * self.scale

    def scores(self, product: Array) -> Array:
        """The scores that products of queries and keys make."""
        scaled = self.scaled(product)
        return scaled if self.soft_cap is None else self.soft_cap * jnp.tanh(scaled / self.soft_cap)

    def d_scaled(self, d_scores: Array, scores: Array) -> Array:
        """The cotangent of scaled products from that of their scores: the slope of tanh is 1 - tanh^2."""
        if self.soft_cap is None:
            return d_scores
        share = scores * (1 / self.soft_cap)
        return d_scores * (1 - share * share)


def compares_offsets(scoring: Scoring) -> bool:
    """Tell whether the bias sees positions by their offset alone; a `Mixture` sees numbers of the query besides."""
    if isinstance(scoring.bias, Mixture):
        return scoring.keys.coordinate is None
    none = scoring.queries.coordinate is None and scoring.keys.coordinate is None
    return none and isinstance(scoring.bias, Relative)


def origin(scoring: Scoring) -> Int[Array, "#B 1"]:
    """The position from which each row counts the positions that a bias compares.

    Float32 has no odd number above 2^24. A bias of offsets alone counts from the row's first query, in integers, so that
    offsets of its neighbours are exact wherever the text begins. No difference of two positions leaves int32.
    """
    position = scoring.queries.position
    if compares_offsets(scoring):
        return jnp.maximum(position.min(1, keepdims=True), 0)
    return jnp.zeros((1, 1), position.dtype)


def numbers(bias: Bias, position: Int[Array, "..."], dtype: jnp.dtype) -> Coordinate:
    """Positions as the coordinates of a bias: one number each, or (high, low) for one that splits positions."""
    if not bias.splits_positions:
        return position.astype(dtype)
    low = position & 0xFFF  # float32 holds either part of an int32 exactly
    return (position - low).astype(dtype), low.astype(dtype)


def compared_coordinates(scoring: Scoring, dtype: jnp.dtype) -> tuple[Coordinate, Coordinate]:
    """What the bias compares, [#B, #H, T] and [#B, #H, S]: the tokens' own coordinates, or their positions as numbers."""
    start = origin(scoring)

    i, j = (numbers(scoring.bias, (x.position - start)[:, None], dtype) for x in (scoring.queries, scoring.keys))
    own = scoring.keys.coordinate
    return scoring.bias.query_coordinate(i, scoring.queries.coordinate), j if own is None else own


def bias_table(scoring: Scoring, dtype: jnp.dtype) -> Float[Array, "#B #H T S"]:
    """The bias between all queries and keys, in `dtype`."""
    return bias_of_pairs(scoring.bias, *compared_coordinates(scoring, dtype), dtype)


def bias_of_pairs(bias: Bias, i: Coordinate, j: Coordinate, dtype: jnp.dtype) -> Float[Array, "#B #H #T #S"]:
    """`biases.table`, without the work where it is 0."""
    return jnp.zeros((1, 1, 1, 1), dtype) if isinstance(bias, Uniform) else table(bias, i, j)


def logits_table(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], product: Float[Array, "B H T S"], scoring: Scoring
) -> tuple[Float[Array, "B H T S"], Bool[Array, "#B 1 T S"]]:
    """The logits of all queries and keys, `HIDDEN` where a key is not seen, and where it is."""
    rows = rows_table(q, k, product, scoring)
    logits = rows.scores + rows.bias if scoring.rowwise is None else scoring.rowwise(rows)
    if scoring.temperature is not None:
        logits = logits * scoring.temperature[..., None]
    return jnp.where(rows.visible, logits, HIDDEN), rows.visible


def rows_table(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], product: Float[Array, "B H T S"], scoring: Scoring
) -> Rows:
    """All queries and keys, and what attention knows of them before softmax, from the products of both."""
    scored = scoring.content(q.shape[-1]).scores
    bias, seen = bias_table(scoring, product.dtype), visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
    i, j = scoring.queries.position[:, None, :, None], scoring.keys.position[:, None, None, :]
    return Rows(q, k, scored(product), bias, seen, i, j, scored)


def mask_nonfinite(
    k: Float[Array, "... D"], v: Float[Array, "... D"]
) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    """Set keys to NaN where their value is not finite, and the non-finite numbers of values to 0.

    A weight of 0 does not hide a value that is NaN, since 0 times NaN is NaN. The mask does hide the logit of a key that is
    NaN. So the key carries it for both: who sees it becomes NaN, who does not never meets it.
    """
    finite = jnp.isfinite(v)
    # A sum, and no choice between keys and NaNs, for the reason below.
    flaw = jnp.where(finite.all(-1, keepdims=True), 0, jnp.nan).astype(k.dtype)
    # Zeros that seem to depend on v. A loop over layers computes what depends on none of them once and keeps it: an array of
    # zeros as large as v, which every layer would read.
    return k + flaw, jnp.where(finite, v, (finite ^ finite).astype(v.dtype))


class Differentiable(NamedTuple):
    """The parts of a scoring that have a gradient, or something of each of them: cotangents, flags.

    Args:
        bias: its parameters.
        temperature: [#B, H, T] or None.
        query_coordinate, key_coordinate: what the bias compares, [#B, #H, T] or a tuple of such; None: positions.
        rowwise: the parameters of what is rowwise, or None.
    """

    bias: Any
    temperature: Any
    query_coordinate: Any
    key_coordinate: Any
    rowwise: Any = None

    @classmethod
    def of(cls, scoring: Scoring) -> "Differentiable":
        """The parts of a scoring."""
        i, j = scoring.queries.coordinate, scoring.keys.coordinate
        return cls(scoring.bias, scoring.temperature, i, j, scoring.rowwise)

    def flags(self, flag: Callable[[Any], bool]) -> "Differentiable":
        """For each part the flags of its leaves."""
        return Differentiable(*(tuple(flag(leaf) for leaf in jax.tree.leaves(part)) for part in self))

    def within(self, scoring: Scoring) -> Scoring:
        """The scoring with these parts in place of its own."""
        return dataclasses.replace(
            scoring,
            bias=self.bias,
            temperature=self.temperature,
            queries=dataclasses.replace(scoring.queries, coordinate=self.query_coordinate),
            keys=dataclasses.replace(scoring.keys, coordinate=self.key_coordinate),
            rowwise=self.rowwise,
        )

    def cotangent(self, scoring: Scoring) -> Scoring:
        """The cotangent of a scoring whose parts have these cotangents: None for all that is no part."""
        return self.within(jax.tree.map(lambda _: None, scoring))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residuals:
    """The one argument of every backward pass, left by the forward pass: the operands of an attention and its results."""

    q: Float[Array, "B T H D"]
    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    scoring: Scoring
    out: Float[Array, "B T H D"]  # in q's dtype or, where the backend's `forward` gave more digits, in the logits'
    lse: Float[Array, "B H T"]  # logarithms of the rows' normalisers, `HIDDEN` where a row sees nothing
    # for each differentiable part of the scoring a flag for each of its leaves: whether anybody will look at
    # its cotangent, which may be anything if not
    wanted: Differentiable = dataclasses.field(metadata={"static": True})
    d_lse: Float[Array, "B H T"] | None = None  # the cotangent of `lse`; None: 0

    def row_terms(self, d_out: Float[Array, "B T H D"]) -> tuple[Float[Array, "B H T"], Float[Array, "B H T"]]:
        """Two numbers of each row that the gradient of its logits needs: d_logit = exp(logit - lse) (d_weight - delta)."""
        delta = jnp.einsum("bthd,bthd->bht", self.out, d_out, preferred_element_type=self.lse.dtype)
        delta = delta if self.d_lse is None else delta - self.d_lse
        # A row that sees nothing has no normaliser: any finite one gives it zero weights.
        return jnp.where(self.lse <= FLOOR, 0, self.lse), delta


class Gradients(NamedTuple):
    """Cotangents of the operands; that of the scoring has None for each array of integers."""

    q: Float[Array, "B T H D"]
    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    scoring: Scoring
