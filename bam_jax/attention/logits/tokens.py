"""The tokens on either side of attention: positions, documents, coordinates, kinds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bam_jax.biases.base import Coordinate

EMPTY = np.iinfo(np.int32).max
"""The position of a slot that holds no token: it sees nothing and is seen by nothing."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class UniqueKeys:
    """The unique keys among tokens: tokens of one kind have the same key and the same value, whatever their positions.

    Args:
        of: [#B, T], the kind of each token, from 0.
        count: number of kinds.
    """

    of: Int[Array, "#B T"]
    count: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Summary:
    """Bounds of tokens and their vectors, block by block, with which blocks can be skipped without reading every key."""

    # [#B, M], smallest and largest position; (EMPTY, -1) for a block without tokens
    first: Int[Array, "#B M"]
    last: Int[Array, "#B M"]
    # the same for the coordinate, [#B, #H, M] or a tuple of such, infinite without tokens; None: positions
    lowest: Coordinate
    highest: Coordinate
    # [B, K, M], an upper bound of the norms of keys; infinite where a key or a value is not finite, so that such
    # a block is never skipped
    norm: Float[Array, "B K M"]
    block: int = dataclasses.field(metadata={"static": True})  # tokens per block; the M blocks together are all tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens on one side: what attention needs besides q, k and v. They are packed, sharded and cached with these.

    Args:
        position: [#B, T], index of the token in its row or document, from 0, ascending within a document; `EMPTY`: no token.
        segment: [#B, T] or None, document number of the token, from 1, ascending; 0 is padding. None: one document per row.
        coordinate: what the bias compares, [#B, #H, T] or a tuple of such; None: the position itself.
        sees_from: [#B, T] or None, the lowest position that each query sees, even if a window extends further; sink tokens are
            visible in any case.
        sees_to: [#B, T] or None, the highest position that each query sees. Under a causal mask it replaces the query's own
            position: max(position, prefix - 1) makes a prefix visible to all. Both limits apply to queries only.
        kinds: kinds of repeated keys, which backends may exploit; None: each token has its own key and value.
        summary: bounds of the keys of a cache, which backends may use; None: backends compute bounds from all tokens.
        consecutive: a promise that position[b, t] = start + t in every slot except empty ones. The slots then determine which
            tiles are needed, and guarantee that strips are valid. Slicing keeps the promise; reordering must reset it.
    """

    position: Int[Array, "#B T"]
    segment: Int[Array, "#B T"] | None = None
    coordinate: Coordinate = None
    sees_from: Int[Array, "#B T"] | None = None
    sees_to: Int[Array, "#B T"] | None = None
    kinds: UniqueKeys | None = None
    summary: Summary | None = None
    consecutive: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def start(self) -> Int[Array, ""]:
        """The position of the first slot, empty or not, of consecutive tokens; `EMPTY` if there are none."""
        slot = jnp.arange(self.position.shape[1], dtype=jnp.int32)
        return jnp.where(self.position < EMPTY, self.position - slot, EMPTY).min()
