"""Methods that need a whole row of scores at once, which a formula of two coordinates cannot express: DAPE V2, CoPE, Shaw's.

They run on the attention backends that compute whole rows: "reference" and "rows".
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bam_jax.biases.base import bias, shared, static


@dataclasses.dataclass(frozen=True)
class Rows:
    """Some queries, all their keys, and what attention computes for them before softmax.

    Keys are in the order of their tokens; a key that is not visible may contain anything.

    Args:
        queries, keys: as passed to attention; a key is NaN if its value is not finite.
        scores: q_i . k_j / sqrt(D) as computed by `scored`, in nats.
        bias: of the coordinates, in nats.
        visible: whether the query sees the key.
        i, j: positions of the queries and of the keys, in tokens.
        scored: converts products of queries and keys to scores: applies the scale, and the soft cap if there is one.
    """

    queries: Float[Array, "B T H D"]
    keys: Float[Array, "B S K D"]
    scores: Float[Array, "B H T S"]
    bias: Float[Array, "#B #H #T #S"]
    visible: Bool[Array, "#B 1 T S"]
    i: Int[Array, "#B 1 T 1"]
    j: Int[Array, "#B 1 1 S"]
    scored: Callable[[Array], Array]


class Rowwise:
    """A function of whole rows of scores. Subclasses are decorated with `bias`, which makes them pytrees of their parameters.

    It may use only the row of its query, because rows are computed in blocks, and must ignore keys that are not visible.

    Class attributes:
        mixes_heads: whether a head's logits depend on other heads' scores, so that heads cannot be sharded over devices.
    """

    mixes_heads: ClassVar[bool] = True

    def __call__(self, rows: Rows) -> Float[Array, "B H T S"]:
        """The logits, before temperature and mask, in nats."""
        raise NotImplementedError(f"{type(self).__name__} has no formula: define __call__(self, rows)")


@bias
class DAPE(Rowwise):
    """DAPE V2: two convolutions over neighbouring keys and all heads read scores and bias, and correct their sum.

        logits = s + b + conv2(LeakyReLU(conv1([s, b]))),   s_ij = q_i . k_j / sqrt(D)

    Both convolutions are centred and n keys wide, and read 0 at a key that is not visible.

    Args:
        w1: [F, 2 H, n]; b1: [F]: scores and biases of H heads to F features.
        w2: [H, F, n]; b2: [H]: features to heads.
        slope: of LeakyReLU below 0.

    Source: Zheng et al. 2024 (arXiv 2410.04798), section 3.2 (1 x 3 kernels), and the authors' code for what it leaves open:
    two convolutions, 32 features, biases, slope 0.01, zeros above the diagonal. Here features of keys that are not visible are 0
    as well. In the authors' code the first key after the query has some, which a decoder with a cache could not compute.
    """

    w1: Float[Array, "F 2*H n"] = shared()
    b1: Float[Array, " F"] = shared()
    w2: Float[Array, "H F n"] = shared()
    b2: Float[Array, " H"] = shared()
    slope: float = static(0.01)

    def __call__(self, rows: Rows) -> Float[Array, "B H T S"]:
        """See `Rowwise`."""
        total = rows.scores + rows.bias
        both = jnp.concatenate([rows.scores, jnp.broadcast_to(rows.bias, rows.scores.shape)], axis=1)
        both, visible = (jnp.moveaxis(x, 1, -1) for x in (both, rows.visible))
        hidden = self._along_keys(both, self.w1, self.b1, visible)
        hidden = jnp.where(hidden > 0, hidden, self.slope * hidden)
        return total + jnp.moveaxis(self._along_keys(hidden, self.w2, self.b2, visible), -1, 1)

    def _along_keys(self, x: Array, weights: Array, offset: Array, visible: Array) -> Array:
        """[B, T, S, C] -> [B, T, S, C']: one product with the concatenated neighbours, or a sum of shifted products.

        This equals XLA's convolution. On a CPU, that is faster outside of loops, and many times slower in a loop over layers.
        """
        keys, (made, read, wide) = x.shape[2], weights.shape
        x, before = jnp.where(visible, x, 0), (wide - 1) // 2

        def neighbours(x: Array) -> list[Array]:
            padded = jnp.pad(x, ((0, 0), (0, 0), (before, wide - 1 - before), (0, 0)))
            return [padded[:, :, n : n + keys] for n in range(wide)]

        def product(x: Array, *order: int) -> Array:
            matrix = weights.transpose(order).reshape(x.shape[-1], -1).astype(x.dtype)
            # logits are float32 everywhere
            return jnp.dot(x.reshape(-1, len(matrix)), matrix, precision="highest").reshape(*x.shape[:3], -1)

        if read <= made:
            y = product(jnp.concatenate(neighbours(x), axis=-1), 2, 1, 0)
        else:
            of_all = neighbours(product(x, 1, 2, 0))
            y = functools.reduce(jnp.add, (x[..., n * made : (n + 1) * made] for n, x in enumerate(of_all)))
        return y + offset.astype(x.dtype)


@bias
class CoPE(Rowwise):
    """CoPE: a key's position is the number of tokens from the key to the query, weighted by the query's gates.

        logits = s + b + q_i . e[p_ij],   p_ij = min(sum_{k=j..i} sigmoid(s_ik), P - 1),   s_ij = q_i . k_j / sqrt(D)

    Between two integers, e is interpolated linearly. Only visible keys are counted.

    Args:
        embedding: [P, D], e, common to all heads.
        symmetric: whether keys after the query are counted, too, starting from the query: the form for encoders.

    Source: Golovneva et al. 2024 (arXiv 2405.18719), section 4, and the code there, in which the scores of gates are divided by
    sqrt(D), but products with e are not; the paper has causal attention only.
    """

    embedding: Float[Array, "P D"] = shared()
    mixes_heads: ClassVar[bool] = False
    symmetric: bool = static(False)

    def __call__(self, rows: Rows) -> Float[Array, "B H T S"]:
        """See `Rowwise`."""
        gates = jnp.where(rows.visible, jax.nn.sigmoid(rows.scores), 0)
        before = gates if not self.symmetric else jnp.where(rows.j <= rows.i, gates, 0)
        counted = jax.lax.cumsum(before, axis=3, reverse=True)
        if self.symmetric:
            after = jax.lax.cumsum(jnp.where(rows.j >= rows.i, gates, 0), axis=3)
            counted = jnp.where(rows.j <= rows.i, counted, after)
        last = self.embedding.shape[0] - 1
        place = jnp.minimum(counted, last)
        floor = jnp.clip(jnp.floor(place), 0, last - 1).astype(jnp.int32)
        at_whole = jnp.einsum(
            "bthd,pd->bhtp", rows.queries.astype(gates.dtype), self.embedding.astype(gates.dtype), precision="highest"
        )
        low, high = (jnp.take_along_axis(at_whole, n, axis=3) for n in (floor, floor + 1))
        return rows.scores + rows.bias + low + (place - floor) * (high - low)


@bias
class RelativeKeys(Rowwise):
    """Relative position representations: each offset has a vector, which is added to keys.

        logits = s + b + q_i . r[clip(j - i, -K, K) + K] / sqrt(D),   s_ij = q_i . k_j / sqrt(D)

    Args:
        vectors: [2 K + 1, D], r, common to all heads; a decoder uses only those up to the middle.

    Source: Shaw et al. 2018, equations 2 and 4. The vectors added to values are omitted: the paper's table 3 reports the same
    score without them.
    """

    vectors: Float[Array, "2K+1 D"] = shared()
    mixes_heads: ClassVar[bool] = False

    def __call__(self, rows: Rows) -> Float[Array, "B H T S"]:
        """See `Rowwise`."""
        farthest, width = self.vectors.shape[0] // 2, rows.queries.shape[-1]
        queries = rows.queries.astype(rows.scores.dtype)
        vectors = self.vectors.astype(rows.scores.dtype) / math.sqrt(width)
        of_offsets = jnp.einsum("bthd,pd->bhtp", queries, vectors, precision="highest")
        # Positions of empty slots are so large that their offsets would overflow.
        offset = jnp.where(rows.visible, rows.j - rows.i, 0)
        place = jnp.clip(offset, -farthest, farthest) + farthest
        batch, heads = rows.scores.shape[:2]
        place = jnp.broadcast_to(place, (batch, heads, *place.shape[2:]))
        return rows.scores + rows.bias + jnp.take_along_axis(of_offsets, place, axis=3)
