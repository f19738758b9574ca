"""Repeated keys: where the bias is constant, all keys of one kind are computed as one key, weighted by their number.

In the first layer of a decoder without positional embeddings, a key is a function of its token's id only. The cost of a
long-range head is then proportional to the number of ids instead of the number of tokens.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bam_jax.attention.logits import skipping
from bam_jax.attention.logits.scoring import Scoring, mask_nonfinite
from bam_jax.attention.logits.skipping import Runs
from bam_jax.attention.logits.tokens import EMPTY

LEAST = 64
"""From this many queries on, counting keys by kind saves more than it costs."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counted:
    """The keys that are counted by kind: one of each kind, and its count."""

    k: Float[Array, "B C K D"]  # [B, C, K, D], one key of each kind
    v: Float[Array, "B C K D"]
    # [#B, N, C], number of keys of each kind that are counted for each query block
    count: Float[Array, "#B N C"]
    # [#H, N], their bias
    level: Float[Array, "#H N"]


def worthwhile(scoring: Scoring, skip: float | str, queries: int, head_width: int, block_k: int) -> bool:
    """Whether keys may be counted by kind: the shapes imply that it saves time and takes no more memory than the keys."""
    kinds, keys = scoring.keys.kinds, scoring.keys.position.shape[1]
    return (
        kinds is not None
        and scoring.dropout is None  # dropout differs between keys of one kind
        and skip != "off"
        and queries >= LEAST
        and 2 * kinds.count <= keys
        and kinds.count <= block_k * head_width
    )


def counted(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K D"],
    scoring: Scoring,
    needed: Bool[Array, "H N M"],
    skip: float | str,
    block_q: int,
    block_k: int,
) -> tuple[Counted | None, Bool[Array, "H N M"]]:
    """The counts of the tiles whose keys are counted by kind, and the tiles that must still be computed.

    sum_j exp(t_i (q_i . k_j + b)) v_j = sum_c n_c exp(t_i (q_i . k_c + b)) v_c   over the keys j whose bias is b
    """
    level_tiles = skipping.constant_bias(q, k, scoring, needed, skip, block_q, block_k)
    if level_tiles is None:
        return None, needed
    flat, level = level_tiles
    flat = flat.all(0)
    near = Runs.of((needed & ~flat).any(0))
    place = jnp.arange(flat.shape[-1])
    inside = (place >= near.first[:, None]) & (place < (near.first + near.length)[:, None])
    # A query block walks over a run of key blocks. A constant-bias block in the run is computed there and must not count twice.
    flat = flat & ~inside

    kinds = scoring.keys.kinds
    assert kinds is not None
    kind, filled = jnp.broadcast_arrays(kinds.of, scoring.keys.position < EMPTY)
    rows, slots = jnp.arange(kind.shape[0])[:, None], jnp.arange(kind.shape[1], dtype=jnp.int32)
    in_block = jnp.zeros((kind.shape[0], flat.shape[1], kinds.count), jnp.float32)
    in_block = in_block.at[rows, slots // block_k, kind].add(filled.astype(jnp.float32))
    # Counts are integers, exact in float32 up to 2^24 if the product is not rounded.
    count = jnp.einsum("nm,bmc->bnc", flat.astype(jnp.float32), in_block, precision="highest")
    # The last key of each kind represents all of them; a kind without keys uses the first slot, with a count of 0.
    last = jnp.zeros((kind.shape[0], kinds.count), jnp.int32).at[rows, kind].max(jnp.where(filled, slots, 0))
    take = lambda x: jnp.take_along_axis(x, last[:, :, None, None], axis=1)
    return Counted(*mask_nonfinite(take(k), take(v)), count, level), needed & ~flat
