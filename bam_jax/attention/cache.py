"""The key-value cache: what attention must remember of the tokens that came before."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bam_jax.attention.logits.tokens import EMPTY, Tokens
from bam_jax.biases.base import Coordinate


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values of one layer, written from the front; slots not yet written have the position `EMPTY`.

    A slot's place says nothing of its token's position, so that rows of different lengths may be padded on the left.

    Args:
        k, v: [B, S, K, D].
        tokens: position [#B, S], and the bias's coordinate and the kinds, if there are any. A position common to all rows
            lets attention evaluate a bias of positions once for all of them.
        length: [], slots written.
    """

    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    tokens: Tokens
    length: Int[Array, ""]

    @classmethod
    def empty(cls, k: Float[Array, "B T K D"], tokens: Tokens, slots: int) -> "Cache":
        """A cache with room for `slots` tokens, shaped like the keys `k` and their `tokens` of any length."""
        room = jnp.zeros((k.shape[0], slots, *k.shape[2:]), k.dtype)
        coordinate = jax.tree.map(lambda x: jnp.zeros((*x.shape[:2], slots), x.dtype), tokens.coordinate)
        position = jnp.full((tokens.position.shape[0], slots), EMPTY, jnp.int32)
        kinds = jax.tree.map(lambda x: jnp.zeros((x.shape[0], slots), x.dtype), tokens.kinds)
        return cls(room, room, Tokens(position, coordinate=coordinate, kinds=kinds), jnp.zeros((), jnp.int32))

    def append(self, k: Array, v: Array, tokens: Tokens) -> "Cache":
        """The cache with the next tokens written behind those it holds; there must be room for them."""
        write = lambda room, x, axis: jax.lax.dynamic_update_slice_in_dim(
            room, jnp.broadcast_to(x, (room.shape[0], *x.shape[1:])).astype(room.dtype), self.length, axis
        )
        tokens = Tokens(
            write(self.tokens.position, tokens.position, 1),
            coordinate=jax.tree.map(lambda room, x: write(room, x, 2), self.tokens.coordinate, tokens.coordinate),
            kinds=jax.tree.map(lambda room, x: write(room, x, 1), self.tokens.kinds, tokens.kinds),
        )
        return Cache(write(self.k, k, 1), write(self.v, v, 1), tokens, self.length + k.shape[1])

    def rewound(self, length: Int[Array, ""] | int) -> "Cache":
        """The cache as it was when it held `length` tokens; it holds at least as many."""
        kept = jnp.arange(self.tokens.position.shape[1]) < length
        position = jnp.where(kept, self.tokens.position, EMPTY)
        tokens = dataclasses.replace(self.tokens, position=position)
        return dataclasses.replace(self, tokens=tokens, length=jnp.asarray(length, jnp.int32))

    def last_coordinate(self) -> Coordinate:
        """The coordinate of the token written last, [B, #H, 1]; zero in an empty cache. Running sums go on from it."""
        at = jnp.maximum(self.length - 1, 0)
        last = lambda x: jnp.where(self.length > 0, jax.lax.dynamic_slice_in_dim(x, at, 1, 2), 0)
        return jax.tree.map(last, self.tokens.coordinate)
