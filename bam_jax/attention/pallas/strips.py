"""A relative bias in the tiles of kernels as strips, with one value per diagonal of a tile.

A kernel cannot look up values in a table, and a formula of powers or logarithms would dominate its cost. So the bias is evaluated
outside the kernel, once per offset, with any JAX operation. Inside the kernel, a tile is built from the values of its diagonals,
a strip. This is valid where position offsets equal slot offsets up to a constant; see `slot_shift`. `tpu_strips`, `tpu_profiles`
and `gpu_strips` lay out the strips for their kernels.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention.logits import tile, toeplitz
from bam_jax.attention.logits.scoring import Scoring, compares_offsets
from bam_jax.attention.logits.tokens import EMPTY, Tokens
from bam_jax.biases import Bias, Mixture, Relative, Uniform
from bam_jax.system.axes import varying


def of_offsets(scoring: Scoring) -> bool:
    """Whether strips can hold the bias: it depends only on offsets of positions, or mixes profiles that do."""
    return isinstance(scoring.bias, Relative | Mixture) and compares_offsets(scoring)


def refusal(scoring: Scoring, lowered: frozenset[str]) -> str | None:
    """The reason why a kernel with these primitives supports the bias neither as a formula nor in strips, or None."""
    reason = tile.unsupported(scoring, lowered)
    if reason is None or of_offsets(scoring):
        return None
    if isinstance(scoring.bias, Relative | Mixture):
        return f"{reason}, and outside a kernel it is evaluated for offsets of positions, not of coordinates"
    return reason


def fits(q: Float[Array, "B T H D"], scoring: Scoring, lowered: frozenset[str]) -> bool | Bool[Array, ""]:
    """Whether a kernel with these primitives can compute a call that is not refused; an array if it depends on the positions.

    A bias whose formula the kernel cannot compute needs strips: more than one query, and position offsets equal to slot offsets.
    """
    if tile.unsupported(scoring, lowered) is None:
        return True
    return slot_shift(scoring)[0] if q.shape[1] > 1 else False


def by_slots(
    scoring: Scoring, lowered: frozenset[str], cheap: tuple[type[Bias], ...], run: Callable[[Array | None], Any]
) -> Any:
    """Run with the bias in strips, `run(shift)`, if position offsets equal slot offsets, otherwise as a formula, `run(None)`.

    A cheap bias, whose formula costs no more than a strip, never uses strips.
    """
    if isinstance(scoring.bias, cheap) or not of_offsets(scoring):
        return run(None)
    fit, shift = slot_shift(scoring)
    if fit is True or tile.unsupported(scoring, lowered) is not None:  # in the second case, `fits` was checked
        return run(shift)
    # Both branches must vary over the same mesh axes. The zeros of a gradient that is not wanted would vary over none.
    return jax.lax.cond(fit, lambda shift: varying(run(shift)), lambda _: varying(run(None)), shift)


def hides_later(scoring: Scoring) -> bool:
    """Whether no query sees a later key."""
    return scoring.mask.causal and scoring.queries.sees_to is None


def slot_shift(scoring: Scoring) -> tuple[bool | Bool[Array, ""], Int[Array, ""]]:
    """Whether position offsets equal slot offsets up to a constant shift, and that shift.

    position[s] - position[t] = s - t + shift   wherever key slot s is visible from query slot t
    """
    queries, keys = scoring.queries, scoring.keys
    if queries.consecutive and keys.consecutive:
        return True, (keys.start - queries.start).astype(jnp.int32)

    def extent(tokens: Tokens) -> tuple[Array, Array]:
        """The smallest and largest difference between a position and its slot, in each row of the batch."""
        ahead = tokens.position - jnp.arange(tokens.position.shape[1])
        filled = tokens.position < EMPTY
        return jnp.where(filled, ahead, EMPTY).min(1), jnp.where(filled, ahead, -EMPTY).max(1)

    (i_low, i_high), (j_low, j_high) = extent(queries), extent(keys)
    some = (i_low <= i_high) & (j_low <= j_high)
    least = jnp.where(some, j_low - i_high, EMPTY).min()
    most = jnp.where(some, j_high - i_low, -EMPTY).max()
    one = least == most
    # Positions restart in each document of a row. But a query sees only its own document, where both sides have the same
    # difference between positions and slots.
    return one | ~some.any() | _same_documents(queries, keys), jnp.where(one, least, 0).astype(jnp.int32)


def _same_documents(queries: Tokens, keys: Tokens) -> Array | bool:
    """Whether both sides are the same tokens, in documents whose positions ascend by one, followed by padding."""
    if queries.segment is None or keys.segment is None or queries.position.shape[1] != keys.position.shape[1]:
        return False
    before, after = keys.segment[:, :-1], keys.segment[:, 1:]
    follows = keys.position[:, 1:] == keys.position[:, :-1] + 1
    fits = (after == 0) | jnp.where(before == after, follows, (0 < before) & (before < after))
    same = (queries.position == keys.position).all() & (queries.segment == keys.segment).all()
    return same & fits.all()


def without_coordinates(scoring: Scoring) -> Scoring:
    """The scoring when the bias is in strips, which need no coordinates of queries."""
    return dataclasses.replace(scoring, bias=Uniform(), queries=dataclasses.replace(scoring.queries, coordinate=None))


@dataclasses.dataclass(frozen=True)
class StripTable:
    """The strips of all tiles: tiles on one diagonal share theirs."""

    bias: Bias  # a `Relative` one
    shift: Int[Array, ""]  # of the slots; see `slot_shift`
    causal: bool  # whether later keys are hidden; the formula need not be finite there
    heads: int  # of queries
    block_q: int  # queries and keys per tile
    block_k: int
    query_blocks: int  # number of blocks on each side
    key_blocks: int

    @property
    def step(self) -> int:
        """Slots from one strip to the next."""
        return math.gcd(self.block_q * (self.query_blocks > 1), self.block_k * (self.key_blocks > 1)) or 1

    @property
    def count(self) -> int:
        """G, the number of strips."""
        return self.index(0, self.key_blocks - 1) + 1

    @property
    def used(self) -> int:
        """n, the number of diagonals of a tile."""
        return self.block_q + self.block_k - 1

    def index(self, n: Any, m: Any) -> Any:
        """The index of the strip of query block n and key block m."""
        return (self.query_blocks - 1 - n) * (self.block_q // self.step) + m * (self.block_k // self.step)

    def near(self) -> Int[Array, "2"] | None:
        """The range of strips with nonzero values, end excluded; None: any strip may have some."""
        reach = self.bias.zero_from
        if reach is None:
            return None
        first = self.shift + 1 - self.query_blocks * self.block_q  # the first offset of strip 0
        begin = (1 - reach - first - self.used) // self.step + 1  # the first strip whose last offset is above -reach
        end = -((first - (1 if self.causal else reach)) // self.step)  # the first that starts hidden, or at >= reach
        return jnp.stack([begin, end]).astype(jnp.int32)

    def offsets(self) -> Float[Array, " O"]:
        """All offsets from a query to a key in any strip, in tokens, ascending; 0 for hidden later keys."""
        first = self.shift + 1 - self.query_blocks * self.block_q
        offsets = first + jnp.arange((self.count - 1) * self.step + self.used)
        return (jnp.minimum(offsets, 0) if self.causal else offsets).astype(jnp.float32)

    def cut(self, values: Float[Array, "#H O"]) -> Float[Array, "H G n"]:
        """Cut the values at all `offsets` into strips, which start with the offset of a tile's last query and first key."""
        values = jnp.broadcast_to(values, (self.heads, values.shape[1]))
        strip = lambda n: jax.lax.dynamic_slice_in_dim(values, n * self.step, self.used, axis=1)
        return jax.vmap(strip, out_axes=1)(jnp.arange(self.count))

    def values(self, bias: Bias) -> Float[Array, "#H O"]:
        """Evaluate a bias at all `offsets`."""
        return toeplitz.of_offsets(bias, self.offsets()[None, None])[0].astype(jnp.float32)

    def strips(self, bias: Bias) -> Float[Array, "H G n"]:
        """Evaluate a bias: all strips."""
        return self.cut(self.values(bias))


def parts(x: Float[Array, "..."], count: int = 3) -> list[Array]:
    """Split float32 numbers into sums of this many bfloat16 numbers; three keep all digits."""
    parts = []
    for _ in range(count - 1):
        # Round the bits: a compiler may optimise away a conversion to bfloat16 and back.
        bits = jax.lax.bitcast_convert_type(x, jnp.int32) + 0x8000 & ~0xFFFF
        rounded = jax.lax.bitcast_convert_type(bits, jnp.float32)
        parts.append(rounded.astype(jnp.bfloat16))
        x = x - rounded
    return [*parts, x.astype(jnp.bfloat16)]
