"""The tokens on either side of attention: positions, documents, coordinates, kinds."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from bam_jax.biases.base import Coordinate

EMPTY = np.iinfo(np.int32).max
"""The position of a slot that holds no token: it sees nothing and is seen by nothing."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kinds:
    """Kinds of tokens: those of one kind have the same key and the same value, whatever their positions.

    Args:
        of: [#B, T], the kind of each token, from 0.
        count: number of kinds.
    """

    of: Int[Array, "#B T"]
    count: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyNorms:
    """How long keys can be, block of slots by block: with it nobody must read all keys to know which are too far to matter.

    Args:
        largest: [B, K, M], at least the norm of every key that a block holds. It is not finite where a key is not; and NaN where
            a value is not, since a block of which nothing is known is never left out.
        block: slots of a block; the last block may have fewer.
    """

    largest: Float[Array, "B K M"]
    block: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens on one side, as attention must know them besides q, k and v; they are packed, sharded and cached with these.

    Args:
        position: [#B, T], index of the token in its row or document, from 0, ascending within a document; `EMPTY`: no token.
        segment: [#B, T] or None, number of the token's document from 1, ascending; 0 pads. None: one document a row.
        coordinate: what the bias compares, [#B, #H, T] or a tuple of such; None: the position itself.
        kinds: kinds of the keys that repeat, which backends may make use of; None: each has a key and a value of its own.
        norms: bounds of the keys of a cache, which backends may make use of; None: whoever wants them computes them.
    """

    position: Int[Array, "#B T"]
    segment: Int[Array, "#B T"] | None = None
    coordinate: Coordinate = None
    kinds: Kinds | None = None
    norms: KeyNorms | None = None
