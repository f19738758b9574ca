"""The score of a query and a key as one pytree, and the argument and result types of every backward pass."""

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
"""The logit of a hidden pair, below every visible logit: biases are at least -exp(CAP).

It is finite, because the difference of two infinities is NaN, and a row that sees no key has only hidden logits.
"""

FLOOR = -1e20
"""The start of a running maximum. It is far below every logit, so the first visible one replaces it. It is so far above
`HIDDEN` that exp(HIDDEN - FLOOR) is exactly 0, so a row that has seen no key yet has a normaliser of 0."""


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
        rowwise: a function from whole rows of scores and biases to logits, before the temperature; None: their sum.
        scale: factor of the products of queries and keys, a Python number; None: 1 / sqrt(D).
        soft_cap: bound of the scaled products; None: no cap.
        sink_logits: [H], the logit of one additional key that every row sees. Its value is 0, so it only takes its share of
            the weight. The temperature does not multiply it. None: no such key.
        dropout: dropout of the softmax weights; None: all are kept.

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
        """The content scores for heads of this width."""
        return Content(1 / math.sqrt(width) if self.scale is None else self.scale, self.soft_cap)


@dataclasses.dataclass(frozen=True)
class Content:
    """Content scores, to which a bias is added: products of queries and keys, scaled and soft-capped.

    All is computed in the dtype of the products, float32, so scaling does not round to two bytes.
    """

    scale: float
    soft_cap: float | None  # see `Scoring`

    def scaled(self, product: Array) -> Array:
        """Products of queries and keys, or sums of them in gradients, times the scale."""
        return product if self.scale == 1 else product * self.scale

    def scores(self, product: Array) -> Array:
        """The content scores of products of queries and keys."""
        scaled = self.scaled(product)
        return scaled if self.soft_cap is None else self.soft_cap * jnp.tanh(scaled / self.soft_cap)

    def d_scaled(self, d_scores: Array, scores: Array) -> Array:
        """The cotangent of scaled products from that of their scores; the derivative of tanh is 1 - tanh^2."""
        if self.soft_cap is None:
            return d_scores
        share = scores * (1 / self.soft_cap)
        return d_scores * (1 - share * share)


def compares_offsets(scoring: Scoring) -> bool:
    """Whether the bias depends on positions only through their offset; a `Mixture` also depends on the query's weights."""
    if isinstance(scoring.bias, Mixture):
        return scoring.keys.coordinate is None
    none = scoring.queries.coordinate is None and scoring.keys.coordinate is None
    return none and isinstance(scoring.bias, Relative)


def origin(scoring: Scoring) -> Int[Array, "#B 1"]:
    """The origin from which each row counts the positions that a bias compares.

    Float32 has no odd number above 2^24. For a bias of offsets, positions are therefore counted from the row's first query, in
    integers, so offsets near it are exact wherever the text begins. The difference of two positions always fits in int32.
    """
    position = scoring.queries.position
    if compares_offsets(scoring):
        return jnp.maximum(position.min(1, keepdims=True), 0)
    return jnp.zeros((1, 1), position.dtype)


def numbers(bias: Bias, position: Int[Array, "..."], dtype: jnp.dtype) -> Coordinate:
    """Positions as the coordinates of a bias: one float each, or a pair (high, low) if the bias splits positions."""
    if not bias.splits_positions:
        return position.astype(dtype)
    low = position & 0xFFF  # float32 holds either part of an int32 exactly
    return (position - low).astype(dtype), low.astype(dtype)


def compared_coordinates(scoring: Scoring, dtype: jnp.dtype) -> tuple[Coordinate, Coordinate]:
    """The coordinates that the bias compares, [#B, #H, T] and [#B, #H, S]: the tokens' own, or their positions as floats."""
    start = origin(scoring)

    i, j = (numbers(scoring.bias, (x.position - start)[:, None], dtype) for x in (scoring.queries, scoring.keys))
    own = scoring.keys.coordinate
    return scoring.bias.query_coordinate(i, scoring.queries.coordinate), j if own is None else own


def bias_table(scoring: Scoring, dtype: jnp.dtype) -> Float[Array, "#B #H T S"]:
    """The bias between all queries and keys, in `dtype`."""
    return bias_of_pairs(scoring.bias, *compared_coordinates(scoring, dtype), dtype)


def bias_of_pairs(bias: Bias, i: Coordinate, j: Coordinate, dtype: jnp.dtype) -> Float[Array, "#B #H #T #S"]:
    """`biases.table`, except that a uniform bias, which is 0, costs nothing."""
    return jnp.zeros((1, 1, 1, 1), dtype) if isinstance(bias, Uniform) else table(bias, i, j)


def logits_table(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], product: Float[Array, "B H T S"], scoring: Scoring
) -> tuple[Float[Array, "B H T S"], Bool[Array, "#B 1 T S"]]:
    """The logits of all queries and keys, `HIDDEN` where a key is not visible, and flags of where it is."""
    rows = rows_table(q, k, product, scoring)
    logits = rows.scores + rows.bias if scoring.rowwise is None else scoring.rowwise(rows)
    if scoring.temperature is not None:
        logits = logits * scoring.temperature[..., None]
    return jnp.where(rows.visible, logits, HIDDEN), rows.visible


def rows_table(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], product: Float[Array, "B H T S"], scoring: Scoring
) -> Rows:
    """The `Rows` of all queries and keys, from their products."""
    scored = scoring.content(q.shape[-1]).scores
    bias, seen = bias_table(scoring, product.dtype), visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
    i, j = scoring.queries.position[:, None, :, None], scoring.keys.position[:, None, None, :]
    return Rows(q, k, scored(product), bias, seen, i, j, scored)


def mask_nonfinite(
    k: Float[Array, "... D"], v: Float[Array, "... D"]
) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    """Set keys to NaN where their value is not finite, and the non-finite numbers of values to 0.

    A weight of 0 does not hide a value that is NaN, because 0 times NaN is NaN. But the mask hides the logit of a key that is
    NaN. So the key carries the NaN for both: rows that see it become NaN, and other rows are not affected.
    """
    finite = jnp.isfinite(v)
    # A sum instead of a choice between keys and NaN, for the reason below.
    flaw = jnp.where(finite.all(-1, keepdims=True), 0, jnp.nan).astype(k.dtype)
    # Zeros that seem to depend on v. A loop over layers would compute constant zeros once and keep them: an array as large as v
    # that every layer would read.
    return k + flaw, jnp.where(finite, v, (finite ^ finite).astype(v.dtype))


class Differentiable(NamedTuple):
    """The differentiable parts of a scoring, or something else for each of them: cotangents or flags.

    Args:
        bias: its parameters.
        temperature: [#B, H, T] or None.
        query_coordinate, key_coordinate: what the bias compares, [#B, #H, T] or a tuple of such; None: positions.
        rowwise: the parameters of the row-wise function, or None.
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
        """The cotangent of a scoring whose parts have these cotangents; None for everything else."""
        return self.within(jax.tree.map(lambda _: None, scoring))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residuals:
    """The residuals that a forward pass saves for every backward pass: the operands and results of attention."""

    q: Float[Array, "B T H D"]
    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    scoring: Scoring
    out: Float[Array, "B T H D"]  # in q's dtype or, if the backend's `forward` gave more digits, in the logits'
    lse: Float[Array, "B H T"]  # the rows' log-normalisers, `HIDDEN` where a row sees no key
    # for each differentiable part of the scoring, a flag for each of its leaves: whether its cotangent is used;
    # if not, the cotangent may be anything
    wanted: Differentiable = dataclasses.field(metadata={"static": True})
    d_lse: Float[Array, "B H T"] | None = None  # the cotangent of `lse`; None: 0

    def row_terms(self, d_out: Float[Array, "B T H D"]) -> tuple[Float[Array, "B H T"], Float[Array, "B H T"]]:
        """lse and delta of each row, for the gradient of its logits: d_logit = exp(logit - lse) (d_weight - delta)."""
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
