"""The mask: a query sees the keys of its own document whose positions lie within limits."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from bam_jax.attention.logits.tokens import EMPTY, Tokens


class Limits(NamedTuple):
    """The lowest and the highest position that a query sees, both included."""

    lowest: Int[Array, "..."] | None  # of any shape; None: no limit
    highest: Int[Array, "..."]  # of the same shape

    def contain(self, position: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether a key at this position is visible."""
        return self.meet(position, position)

    def meet(self, first: Int[Array, "..."], last: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether a key between two positions may be visible."""
        seen = first <= self.highest
        return seen if self.lowest is None else seen & (last >= self.lowest)

    def enclose(self, first: Int[Array, "..."], last: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether all keys between two positions are visible."""
        seen = last <= self.highest
        return seen if self.lowest is None else seen & (first >= self.lowest)


@dataclasses.dataclass(frozen=True)
class Mask:
    """The keys that a query may see within its own document: a static description, never an array.

    Args:
        causal: whether keys after the query are hidden.
        window: only keys fewer than this many tokens away are visible, the query itself included; None: no limit.
        sink_tokens: the tokens at positions below this number, which a causal window does not hide.

    Source of `sink_tokens`: Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks.
    """

    causal: bool = True
    window: int | None = None
    sink_tokens: int = 0

    def __post_init__(self) -> None:
        if type(self.causal) is not bool:
            raise ValueError(f"a mask is causal or not: got causal={self.causal!r}")
        take_integers(self, "window", "sink_tokens")
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise ValueError(f"a window is a number of tokens, at least the token itself: got window={self.window!r}")
        if type(self.sink_tokens) is not int or self.sink_tokens < 0:
            raise ValueError(f"sinks are a number of tokens, 0 for none: got sink_tokens={self.sink_tokens!r}")
        if self.sink_tokens and (self.window is None or not self.causal):
            raise ValueError(
                f"sink_tokens={self.sink_tokens} are those that a causal window does not hide: got causal={self.causal}, "
                f"window={self.window}"
            )

    def limits(self, queries: Tokens) -> Limits:
        """The limits of queries, [#B, T], apart from sink tokens; limits of empty slots are meaningless.

        All code that decides which keys a query sees uses these limits.
        """
        position, farthest = queries.position, EMPTY - 1
        reach = farthest if self.window is None else min(self.window - 1, farthest)
        # The minimum is inside, because the sum would overflow.
        highest = position if self.causal else jnp.minimum(position, farthest - reach) + reach
        lowest = None if self.window is None else position - reach
        if queries.sees_to is not None:
            sees_to = jnp.minimum(queries.sees_to, farthest)  # empty slots are never visible
            highest = sees_to if self.causal else jnp.minimum(highest, sees_to)
        if queries.sees_from is not None:
            lowest = queries.sees_from if lowest is None else jnp.maximum(lowest, queries.sees_from)
        return Limits(lowest, highest)


def take_integers(of: object, *names: str) -> None:
    """Convert fields of a frozen object that hold NumPy integers, as NumPy computations return them, to Python integers."""
    for name in names:
        if isinstance(count := getattr(of, name), np.integer):
            object.__setattr__(of, name, int(count))


def visible(queries: Tokens, keys: Tokens, mask: Mask) -> Bool[Array, "#B T S"]:
    """The keys that each query sees."""
    i, j = queries.position[:, :, None], keys.position[:, None, :]
    limits = jax.tree.map(lambda x: x[:, :, None], mask.limits(queries))
    seen = limits.contain(j)
    if mask.sink_tokens:
        seen = seen | (j < mask.sink_tokens) & (j <= limits.highest)
    seen = seen & (i < EMPTY) & (j < EMPTY)
    if queries.segment is not None and keys.segment is not None:
        own, other = queries.segment[:, :, None], keys.segment[:, None, :]
        seen = seen & (own == other) & (other > 0)
    return seen


def document_count(tokens: Tokens, mask: Mask) -> Int[Array, "#B T"]:
    """Number of keys that each token of a packed row sees, itself included: SSMax's n_i.

        causal: n_i = number of its document's tokens up to it;   else the document's length;
        at most the window's and its sinks. Empty slots and padding count 1.

    Positions must be contiguous within a document. Without segments they count from 0, and keys before the first of `tokens`,
    those of a cache, count as well.

    Source: BAM section 2.5 (the input vector's size), and the authors' code, which counts the mask's row.
    """
    position = tokens.position
    filled = position < EMPTY
    if tokens.segment is None:
        first = jnp.zeros_like(position)
        last = jnp.max(jnp.where(filled, position, 0), axis=1, keepdims=True)
    else:
        # Positions may restart in each document: only slots order the whole row and show where a document begins and ends.
        slot = jnp.arange(filled.shape[1], dtype=position.dtype)[None]
        segment = jnp.where(filled, tokens.segment, 0)
        filled = segment > 0
        change = segment[:, 1:] != segment[:, :-1]
        edge = jnp.ones_like(filled[:, :1])
        starts = jnp.concatenate([edge, change], axis=1)
        ends = jnp.concatenate([change, edge], axis=1)
        first = position - (slot - jax.lax.cummax(jnp.where(starts, slot, 0), axis=1))
        last = position + (jax.lax.cummin(jnp.where(ends, slot, EMPTY), axis=1, reverse=True) - slot)
    limits = mask.limits(tokens)
    seen = jnp.minimum(last, limits.highest) - first + 1
    if limits.lowest is not None:
        hidden = jnp.clip(limits.lowest - first, 0, seen)
        sinks = jnp.maximum(mask.sink_tokens - first, 0)
        seen = seen - jnp.maximum(hidden - sinks, 0)
    return jnp.where(filled, jnp.maximum(seen, 1), 1)
