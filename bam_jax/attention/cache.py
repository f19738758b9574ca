"""The key-value cache: what attention must remember of the tokens that came before."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bam_jax.attention.logits.extents import norms
from bam_jax.attention.logits.tokens import EMPTY, KeyNorms, Tokens
from bam_jax.biases.base import Coordinate


BLOCK = 512
"""Slots whose keys share one bound; caches of more are whole blocks, which no backend must copy to pad them."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values of one layer, written from the front; slots not yet written have the position `EMPTY`.

    A slot's place says nothing of its token's position, so that rows of different lengths may be padded on the left.

    Args:
        k, v: [B, S, K, D].
        tokens: position [#B, S], the bias's coordinate and the kinds, if there are any, and bounds of the keys, if they are
            wanted. A position common to all rows lets attention evaluate a bias of positions once for all of them.
        length: [], slots written.
    """

    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    tokens: Tokens
    length: Int[Array, ""]

    @classmethod
    def empty(cls, k: Float[Array, "B T K D"], tokens: Tokens, slots: int) -> "Cache":
        """A cache with room for at least `slots` tokens, shaped like the keys `k` and their `tokens` of any length."""
        slots += -slots % BLOCK if slots > BLOCK else 0
        room = lambda: jnp.zeros((k.shape[0], slots, *k.shape[2:]), k.dtype)
        coordinate = jax.tree.map(lambda x: jnp.zeros((*x.shape[:2], slots), x.dtype), tokens.coordinate)
        position = jnp.full((tokens.position.shape[0], slots), EMPTY, jnp.int32)
        kinds = jax.tree.map(lambda x: jnp.zeros((x.shape[0], slots), x.dtype), tokens.kinds)
        dtype = jnp.promote_types(k.dtype, jnp.float32)
        bounds = KeyNorms(jnp.zeros((k.shape[0], k.shape[2], -(-slots // BLOCK)), dtype), BLOCK)
        tokens = Tokens(position, coordinate=coordinate, kinds=kinds, norms=bounds)
        return cls(room(), room(), tokens, jnp.zeros((), jnp.int32))

    def append(self, k: Array, v: Array, tokens: Tokens) -> "Cache":
        """The cache with the next tokens written behind those it holds; there must be room for them."""
        write = lambda room, x, axis: jax.lax.dynamic_update_slice_in_dim(
            room, jnp.broadcast_to(x, (room.shape[0], *x.shape[1:])).astype(room.dtype), self.length, axis
        )
        k_room, v_room = write(self.k, k, 1), write(self.v, v, 1)
        tokens = Tokens(
            write(self.tokens.position, tokens.position, 1),
            coordinate=jax.tree.map(lambda room, x: write(room, x, 2), self.tokens.coordinate, tokens.coordinate),
            kinds=jax.tree.map(lambda room, x: write(room, x, 1), self.tokens.kinds, tokens.kinds),
            norms=None if self.tokens.norms is None else self._norms_with(k.astype(self.k.dtype), v),
        )
        return Cache(k_room, v_room, tokens, self.length + k.shape[1])

    def _norms_with(self, k: Array, v: Array) -> KeyNorms:
        """The bounds of the keys with the next ones among them, which alone are read."""
        known = self.tokens.norms
        assert known is not None
        longest = norms(k, known.largest.dtype)  # [B, T, K]
        finite = jnp.isfinite(jnp.abs(v.astype(self.v.dtype)).max(-1))  # a value may be finite until it is stored
        longest = jnp.where(finite, longest, jnp.nan).swapaxes(1, 2)
        # The blocks that so many tokens can lie in, or the last ones where these would reach beyond the end.
        batch, heads, blocks = known.largest.shape
        touched = min(-(-k.shape[1] // known.block) + 1, blocks)
        first = jnp.minimum(self.length // known.block, blocks - touched)
        room = jnp.zeros((batch, heads, touched * known.block), longest.dtype)
        room = jax.lax.dynamic_update_slice_in_dim(room, longest, self.length - first * known.block, 2)
        own = room.reshape(batch, heads, touched, known.block).max(3)
        before = jax.lax.dynamic_slice_in_dim(known.largest, first, touched, 2)
        largest = jax.lax.dynamic_update_slice_in_dim(known.largest, jnp.maximum(before, own), first, 2)
        # A bound has no gradient: that of the norm of a key of zeros would be NaN.
        return KeyNorms(jax.lax.stop_gradient(largest), known.block)

    def rewound(self, length: Int[Array, ""] | int) -> "Cache":
        """The cache as it was when it held `length` tokens; it holds at least as many."""
        kept = jnp.arange(self.tokens.position.shape[1]) < length
        position = jnp.where(kept, self.tokens.position, EMPTY)
        bounds = self.tokens.norms
        if bounds is not None:
            # The longest key of a block that is cut may be gone; its norm still bounds those that stay, and those to come.
            some = jnp.arange(bounds.largest.shape[2]) * bounds.block < length
            bounds = KeyNorms(jnp.where(some, bounds.largest, 0), bounds.block)
        tokens = dataclasses.replace(self.tokens, position=position, norms=bounds)
        return dataclasses.replace(self, tokens=tokens, length=jnp.asarray(length, jnp.int32))

    def last_coordinate(self) -> Coordinate:
        """The coordinate of the token written last, [B, #H, 1]; zero in an empty cache. Running sums go on from it."""
        at = jnp.maximum(self.length - 1, 0)
        last = lambda x: jnp.where(self.length > 0, jax.lax.dynamic_slice_in_dim(x, at, 1, 2), 0)
        return jax.tree.map(last, self.tokens.coordinate)
