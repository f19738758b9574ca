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
    """The unique keys among tokens: those of one kind have the same key and the same value, whatever their positions.

    Args:
        of: [#B, T], the kind of each token, from 0.
        count: number of kinds.
    """

    of: Int[Array, "#B T"]
    count: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Summary:
    """Bounds of tokens and their vectors, block by block: with them nobody must look at every key to leave some out."""

    # [#B, M], smallest and largest position; (EMPTY, -1) of a block without tokens
    first: Int[Array, "#B M"]
    last: Int[Array, "#B M"]
    # the same of the coordinate, [#B, #H, M] or a tuple of such, infinities without tokens; None: positions
    lowest: Coordinate
    highest: Coordinate
    # [B, K, M], at least the norm of every key; infinite where a key or a value is not finite: a block of which
    # nothing is known is never left out
    norm: Float[Array, "B K M"]
    block: int = dataclasses.field(metadata={"static": True})  # tokens of a block; all M together are all tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens on one side, as attention must know them besides q, k and v; they are packed, sharded and cached with these.

    Args:
        position: [#B, T], index of the token in its row or document, from 0, ascending within a document; `EMPTY`: no token.
        segment: [#B, T] or None, number of the token's document from 1, ascending; 0 pads. None: one document a row.
        coordinate: what the bias compares, [#B, #H, T] or a tuple of such; None: the position itself.
        sees_from: [#B, T] or None, the lowest position that each query sees, also where a window would show more; sinks are
            seen in any case.
        sees_to: [#B, T] or None, the highest position that each query sees, in the place of its own where the mask is causal:
            max(position, prefix - 1) lets all see a prefix. Both are asked of queries alone.
        kinds: kinds of the keys that repeat, which backends may make use of; None: each has a key and a value of its own.
        summary: bounds of the keys of a cache, which backends may make use of; None: who wants them looks at all tokens.
        consecutive: a promise that position[b, t] = start + t in every slot but the empty ones. Which tiles are needed, and
            that strips are right, then follows from the slots. Slices keep it; other orders must take it back.
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
        """The position of the first slot, empty or not, of tokens that are consecutive; `EMPTY` without any."""
        slot = jnp.arange(self.position.shape[1], dtype=jnp.int32)
        return jnp.where(self.position < EMPTY, self.position - slot, EMPTY).min()
