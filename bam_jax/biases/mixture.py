"""Biases that mix profiles of the offset with weights of the query."""

from typing import Any

import jax
from jaxtyping import Array

from bam_jax.biases.base import Bias, Coordinate, Relative, bias, head_axes, shared


@bias
class Mixture(Bias):
    """A weighted sum of profiles of the offset. All heads share the profiles; each query has its own weights.

        b(i, j) = sum_c r_c(i) f_c(j - i),   c = 1 ... C

    A query's coordinate in `Tokens` is the tuple (r_1, ..., r_C), each [#B, #H, T]; keys have none. Attention adds the positions:
    the formula gets i = (position, (r_1, ..., r_C)) and j, a position. Where positions are contiguous, the backends
    "chunked", "pallas_tpu" and "pallas_gpu" compute the biases of a tile of n queries and m keys as one product of the weights
    [n, C] and the profiles at all offsets [C, n + m].

    Args:
        profiles: a `Relative` bias with the parameters of C heads; f_c is that of head c.

    Source: ours, after the bias of Inkling; see `encodings.Inkling`.
    """

    profiles: Relative = shared()

    def query_coordinate(self, position: Coordinate, own: Coordinate) -> Coordinate:
        """The position and the weights; see `Bias.query_coordinate`."""
        return position, own

    def __call__(self, i: tuple[Array, tuple[Array, ...]], j: Array) -> Array:
        position, weights = i
        if not isinstance(self.profiles, Relative):
            raise TypeError(f"the profiles of a Mixture are a Relative bias, not {type(self.profiles).__name__}")
        count = len(jax.tree.leaves(self.profiles)[0])
        if not isinstance(weights, tuple) or len(weights) != count:
            raise ValueError(f"to mix {count} profiles a query has a tuple of {count} arrays as its coordinate")
        return sum(weight * self._profile(c)(position, j) for c, weight in enumerate(weights))

    def _profile(self, c: int) -> Any:
        take = lambda axis, x: x if axis is None else x[c]
        return jax.tree.map(take, head_axes(self.profiles), self.profiles, is_leaf=lambda x: x is None)
