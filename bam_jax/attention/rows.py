"""The backend for functions of whole rows of logits: blocks of queries, each with all its keys, in O(block S) memory.

Each block is computed in the same way as in the reference. The backward pass recomputes its logits.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.attention import reference
from bam_jax.attention.logits import skipping
from bam_jax.attention.logits.scoring import Differentiable, Gradients, Residuals, Scoring
from bam_jax.attention.logits.skipping import Tiling
from bam_jax.system.axes import varying
from bam_jax.system.platform import platform

_TABLE = 2**22  # Approximate number of logits per block, over all rows and heads.

# On a GPU, 1 GiB of logits: a block of any size costs about twenty launches forward and thirty backward.
_TABLE_ON_GPU = 2**28


def forward(
    q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], scoring: Scoring, tiling: Tiling
) -> tuple[Float[Array, "B T H D"], Float[Array, "B H T"]]:
    """Attention and its log-normaliser, block by block; see `Backend.forward`."""
    blocks = _Blocks.of(q, k, scoring, tiling)
    q = blocks.filled(q)

    def one(n: Array) -> tuple[Array, Array]:
        return reference.forward(blocks.take(q, 1, n), k, v, blocks.scoring(n), tiling)

    out, lse = jax.lax.map(one, jnp.arange(blocks.count))
    return blocks.joined(out, 1), blocks.joined(lse, 2)


def backward(residuals: Residuals, d_out: Float[Array, "B T H D"], tiling: Tiling) -> Gradients:
    """Gradients, block by block, by differentiating the reference; see `Backend.backward`."""
    scoring, k, v = residuals.scoring, residuals.k, residuals.v
    blocks = _Blocks.of(residuals.q, k, scoring, tiling)
    q, out, d_out = (blocks.filled(x) for x in (residuals.q, residuals.out, d_out))
    lse, d_lse = jax.tree.map(lambda x: skipping.pad(x, blocks.size), (residuals.lse, residuals.d_lse))

    def one(total: tuple, n: Array) -> tuple[tuple, tuple]:
        of_block = blocks.scoring(n)
        again = lambda q, k, v, parts: reference.forward(q, k, v, parts.within(of_block), tiling)
        results, vjp = jax.vjp(again, blocks.take(q, 1, n), k, v, Differentiable.of(of_block))
        whole = blocks.take(out, 1, n), blocks.take(lse, 2, n), blocks.take(d_out, 1, n)
        of_lse = None if d_lse is None else blocks.take(d_lse, 2, n)
        dq, dk, dv, d_parts = vjp(reference.cotangents(*results, *whole, d_lse=of_lse))
        d_common = (dk, dv, d_parts._replace(temperature=None, query_coordinate=None))
        return jax.tree.map(jnp.add, total, d_common), (dq, d_parts.temperature, d_parts.query_coordinate)

    # All queries share the keys, the bias and the row-wise function: their gradients are summed over the blocks.
    common = (k, v, Differentiable.of(scoring)._replace(temperature=None, query_coordinate=None))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)), common)
    total, (dq, d_temperature, d_i) = jax.lax.scan(one, varying(zeros, q), jnp.arange(blocks.count))
    dk, dv, d_parts = jax.tree.map(lambda x, like: x.astype(like.dtype), total, common)
    d_temperature, d_i = jax.tree.map(lambda x: blocks.joined(x, 2), (d_temperature, d_i))
    d_parts = d_parts._replace(temperature=d_temperature, query_coordinate=d_i)
    return Gradients(blocks.joined(dq, 1), dk, dv, d_parts.cotangent(scoring))


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Queries in blocks; the last one is padded with empty slots."""

    whole: Scoring
    size: int
    count: int
    length: int  # T

    @classmethod
    def of(cls, q: Array, k: Array, scoring: Scoring, tiling: Tiling) -> "_Blocks":
        batch, length, heads = q.shape[:3]
        batch = batch if isinstance(batch, int) else 1  # a symbolic batch may have any size
        table = _TABLE_ON_GPU if platform() == "gpu" else _TABLE
        size, _ = tiling.blocks(min(length, max(table // (batch * heads * k.shape[1]), 1)), k.shape[1])
        return cls(skipping.padded(scoring, size, 1), size, -(-length // size), length)

    def take(self, x: Array, axis: int, n: Array) -> Array:
        """The n-th block along an axis of a padded array."""
        return jax.lax.dynamic_slice_in_dim(x, n * self.size, self.size, axis)

    def filled(self, x: Array) -> Array:
        """[B, T, H, D] with T padded to whole blocks."""
        return jnp.pad(x, ((0, 0), (0, -self.length % self.size), (0, 0), (0, 0)))

    def scoring(self, n: Array) -> Scoring:
        """The scoring of the n-th block."""
        last = lambda x: self.take(x, x.ndim - 1, n)
        queries, temperature = jax.tree.map(last, (self.whole.queries, self.whole.temperature))
        return dataclasses.replace(self.whole, queries=queries, temperature=temperature)

    def joined(self, x: Array, axis: int) -> Array:
        """Blocks [N, ..., size, ...] -> [..., T, ...], T along the axis."""
        x = jnp.moveaxis(x, 0, axis)
        x = x.reshape(*x.shape[:axis], self.count * self.size, *x.shape[axis + 2 :])
        return jax.lax.slice_in_dim(x, 0, self.length, axis=axis)
