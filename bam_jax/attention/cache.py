"""The key-value cache: what attention must keep of the preceding tokens."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bam_jax.attention.logits.extents import joined, key_norms, summarize
from bam_jax.attention.logits.tokens import EMPTY, Summary, Tokens
from bam_jax.biases.base import Coordinate

BLOCK = 128
"""Slots per block of the summary. A longer cache consists of whole blocks, so that no backend must copy it to pad it."""

# Outside of jit, this compiles a call instead of running its many small steps one by one. Inside jit, it changes nothing.
_compiled = functools.partial(jax.jit, inline=True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values of one layer, written from the front; slots not yet written have the position `EMPTY`.

    A slot's index does not determine its token's position, so rows of different lengths may be padded on the left.

    Args:
        k, v: keys and values.
        tokens: position [#B, S], the bias's coordinate and the kinds, if there are any, and the summary of the filled slots. If
            all rows share their positions, attention evaluates a bias of positions once for all rows.
        length: [], number of slots written.
        state: the encoding's state after the cached tokens, arrays [B, ...]; see `Encoding.turn`. None: it has none.
    """

    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K E"]
    tokens: Tokens
    length: Int[Array, ""]
    state: Any = None

    @classmethod
    def empty(
        cls,
        k: Float[Array, "B T K D"],
        tokens: Tokens,
        slots: int,
        *,
        v: Float[Array, "B T K E"] | None = None,
        state: Any = None,
    ) -> "Cache":
        """A cache with room for at least `slots` tokens.

        Args:
            k, tokens: keys and their tokens, of any length, as templates for the cache's shapes.
            v: their values; None: shaped like the keys.
            state: the encoding's state before the first token.
        """
        slots += -slots % BLOCK if slots > BLOCK else 0
        room = lambda x: jnp.zeros((x.shape[0], slots, *x.shape[2:]), x.dtype)
        coordinate = jax.tree.map(lambda x: jnp.zeros((*x.shape[:2], slots), x.dtype), tokens.coordinate)
        position = jnp.full((tokens.position.shape[0], slots), EMPTY, jnp.int32)
        kinds = jax.tree.map(lambda x: jnp.zeros((x.shape[0], slots), x.dtype), tokens.kinds)
        block = min(BLOCK, slots)
        empty = Tokens(position[:, :block], coordinate=jax.tree.map(lambda x: x[..., :block], coordinate))
        norm = jnp.zeros((k.shape[0], block, k.shape[2]), jnp.promote_types(k.dtype, jnp.float32))
        nothing = summarize(empty, norm, block)
        summary = jax.tree.map(lambda x: jnp.broadcast_to(x, (*x.shape[:-1], slots // block)), nothing)
        tokens = Tokens(position, coordinate=coordinate, kinds=kinds, summary=summary)
        return cls(room(k), room(k if v is None else v), tokens, jnp.zeros((), jnp.int32), state)

    @_compiled
    def append(self, k: Array, v: Array, tokens: Tokens, state: Any = None) -> "Cache":
        """The cache with the next tokens appended; there must be room for them.

        Args:
            k, v: [B, T, K, D] and [B, T, K, E], with the heads and widths of the cache.
            state: the encoding's state after these tokens.
            tokens: without documents; padding has the position `EMPTY`. Limits of what they see apply to queries only.

        Raises:
            ValueError: tokens of several documents, or keys or values with other heads or widths.
        """
        if tokens.segment is not None:
            raise ValueError("a cache holds one document a row: tokens have no segment, and a pad's position is EMPTY")
        if k.shape[2:] != self.k.shape[2:] or v.shape[2:] != self.v.shape[2:]:
            room = f"{self.k.shape}" if self.k.shape == self.v.shape else f"{self.k.shape}, {self.v.shape}"
            raise ValueError(f"a cache {room} does not hold keys {k.shape} with values {v.shape}")
        self._check_state(state)
        write = lambda room, x, axis: jax.lax.dynamic_update_slice_in_dim(
            room, jnp.broadcast_to(x, (room.shape[0], *x.shape[1:])).astype(room.dtype), self.length, axis
        )
        summary = self.tokens.summary
        tokens = Tokens(
            write(self.tokens.position, tokens.position, 1),
            coordinate=jax.tree.map(lambda room, x: write(room, x, 2), self.tokens.coordinate, tokens.coordinate),
            kinds=jax.tree.map(lambda room, x: write(room, x, 1), self.tokens.kinds, tokens.kinds),
            summary=None if summary is None else self._summary_with(summary, k, v, tokens),
        )
        return Cache(write(self.k, k, 1), write(self.v, v, 1), tokens, self.length + k.shape[1], state)

    def _summary_with(self, summary: Summary, k: Array, v: Array, tokens: Tokens) -> Summary:
        """The summary including the next tokens, computed from these tokens only.

        Reading their slots in the cache instead would make XLA copy the cache in each step.
        """
        touched = min(-(-(k.shape[1] - 1) // summary.block) + 1, summary.first.shape[1])
        # The first block that is touched, or an earlier one where so many blocks would extend beyond the end.
        first = jnp.minimum(self.length // summary.block, summary.first.shape[1] - touched)
        slots, at = touched * summary.block, self.length - first * summary.block
        write = lambda x, axis, neutral=0: jax.lax.dynamic_update_slice_in_dim(
            jnp.full((*x.shape[:axis], slots, *x.shape[axis + 1 :]), neutral, x.dtype), x, at, axis
        )
        # Bounds are those of the stored numbers, which may be rounded up, even to infinity.
        stored = lambda x, room: write(x.astype(room.dtype), 2)
        coordinate = jax.tree.map(stored, tokens.coordinate, self.tokens.coordinate)
        norm = key_norms(k.astype(self.k.dtype), v.astype(self.v.dtype), summary.norm.dtype)
        position = write(tokens.position, 1, EMPTY)
        new = summarize(Tokens(position, coordinate=coordinate), write(norm, 1), summary.block)
        old = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, touched, x.ndim - 1), summary)
        put = lambda x, part: jax.lax.dynamic_update_slice_in_dim(x, part.astype(x.dtype), first, x.ndim - 1)
        # A bound has no gradient: for a key of zeros, the gradient of its norm would be NaN.
        return jax.lax.stop_gradient(jax.tree.map(put, summary, joined(old, new)))

    @_compiled
    def rewound(self, length: Int[Array, ""] | int, state: Any = None) -> "Cache":
        """The cache as it was when it held `length` tokens, no more than it holds now. `state` is the encoding's state then."""
        self._check_state(state)
        kept = jnp.arange(self.tokens.position.shape[1]) < length
        position = jnp.where(kept, self.tokens.position, EMPTY)
        summary = self.tokens.summary
        if summary is not None:
            # Old norms still bound the keys that stay. All else is recomputed, because a row may have lost all its tokens.
            gone = jnp.arange(summary.first.shape[1]) * summary.block >= length
            left = Tokens(position, coordinate=self.tokens.coordinate)
            anew = summarize(left, jnp.zeros((1, position.shape[1], 1), summary.norm.dtype), summary.block)
            summary = dataclasses.replace(anew, norm=jnp.where(gone, 0, summary.norm))
        tokens = dataclasses.replace(self.tokens, position=position, summary=summary)
        return dataclasses.replace(self, tokens=tokens, length=jnp.asarray(length, jnp.int32), state=state)

    @property
    def to_save(self) -> Any:
        """What a later `rewound` needs besides the number of tokens."""
        return self.state

    def _check_state(self, state: Any) -> None:
        if (state is None) != (self.state is None):
            raise ValueError(
                "a cache has the state of its encoding after its last token, if there is one; give it as state="
            )

    def last_coordinate(self) -> Coordinate:
        """The coordinate of the token written last, [B, #H, 1]; zero in an empty cache. Running sums continue from it."""
        at = jnp.maximum(self.length - 1, 0)
        last = lambda x: jnp.where(self.length > 0, jax.lax.dynamic_slice_in_dim(x, at, 1, 2), 0)
        return jax.tree.map(last, self.tokens.coordinate)
