"""Encodings whose bias compares running sums along the text: CABLE, the Forgetting Transformer, and BAM with such distances."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bam_jax import biases
from bam_jax.biases.base import Coordinate
from bam_jax.biases.context_aware import Sum
from bam_jax.encodings.base import Dims, Encoding, among, linear, wide, within
from bam_jax.encodings.prior import far_and_near

GATES = {"relu": jax.nn.relu, "softplus": jax.nn.softplus}


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def running_sum(x: Float[Array, "*N T"], axis: str | None = None) -> Sum:
    """Cumulative sum along the last axis as a pair (high, low) that adds up to it with about twice the precision.

    Near 3e5, float32 numbers are 0.03 apart, which is as much as the difference between two neighbours. `axis` is the mesh axis
    that shards x, inside `jax.shard_map`; devices exchange only the sums of their parts.

    Source: Knuth's two-sum in a parallel prefix scan.
    """
    here = jax.lax.associative_scan(_two_sum, (x, jnp.zeros_like(x)), axis=-1)
    if axis is None:
        return here
    ends = jax.lax.all_gather(jax.tree.map(lambda part: part[..., -1:], here), axis)
    sums = jax.lax.associative_scan(_two_sum, ends)
    device = jax.lax.axis_index(axis)
    before = jax.tree.map(lambda part: jnp.where(device == 0, 0, part[device - 1]), sums)
    return _two_sum(before, here)


def _two_sum(a: Sum, b: Sum) -> Sum:
    high = a[0] + b[0]
    part = high - a[0]
    low = (a[0] - (high - part)) + (b[0] - part) + a[1] + b[1]
    total = high + low
    return total, low - (total - high)


@running_sum.defjvp
def _running_sum_jvp(axis: str | None, primals: tuple, tangents: tuple) -> tuple[Sum, Sum]:
    (x,), (dx,) = primals, tangents
    slope = jnp.cumsum(dx, axis=-1)
    if axis is not None:
        ends = jax.lax.all_gather(slope[..., -1:], axis, axis=-1, tiled=True)
        earlier = jnp.arange(ends.shape[-1]) < jax.lax.axis_index(axis)
        slope += jnp.sum(jnp.where(earlier, ends, 0), axis=-1, keepdims=True)
    return running_sum(x, axis), (slope, jnp.zeros_like(x))


class RunningSum(Encoding):
    """The base class of encodings that read the text: each token adds a step to a running sum, and the bias compares two sums.

        S = cumsum(step(x)),   b(i, j) = bias(S_i, S_j)

    A subclass defines `step`, and a `bias` whose coordinates are sums, such as `biases.Difference` or
    `biases.ContextualGaussian`. Padding adds nothing. Sums are stored as two float32 numbers, continue in the cache, and are
    combined over devices if the sequence is sharded.

    Source: CABLE section 3.
    """

    def step(self, x: Float[Array, "B T E"]) -> Float[Array, "B T H"]:
        """The number that each token adds to the sum of each head, from the layer's normalised input in float32."""
        raise NotImplementedError

    def coordinate(
        self, x: Array, filled: Array, before: Coordinate, axis: str | None = None
    ) -> tuple[Coordinate, Coordinate]:
        step = jnp.where(filled[..., None], self.step(wide(x)), 0)
        step = jnp.moveaxis(step, -1, 1)
        if before is not None:  # prepend the sum so far, high and low; it is removed again below
            step = jnp.concatenate([before[0], before[1], step], axis=-1)
        total = running_sum(step, axis)
        if before is not None:
            total = (total[0][..., 2:], total[1][..., 2:])
        return self.query(x, total), total

    def query(self, x: Array, total: Sum) -> Coordinate:
        """The query coordinate; the key coordinate is the running sum itself."""
        return total


class CABLENW(RunningSum):
    """CABLE without the query's weight: the step of each token is relu(x w).

        b(i, j) = -abs(S_i - S_j),   S = cumsum(relu(x w))

    Options: gate, "relu" (paper) or "softplus" (the authors' code); step_bias, whether x w has a bias, as in their code.

    x is the layer's normalised input at the model's width, from which queries and keys are computed as well, as in the authors'
    code. The paper's w has a head's dimension d, and the paper does not say which d components of x a head uses.

    Source: CABLE section 3, equations 2 to 5.
    """

    extrapolates = "yes"

    def __init__(self, dims: Dims, *, gate: str = "relu", step_bias: bool = False, rngs: nnx.Rngs):
        self.gate = among("gate", gate, GATES)
        self.symmetric = not dims.causal
        self.step_size = linear(dims.width, dims.heads, rngs, bias=0.0 if step_bias else None)

    def step(self, x: Array) -> Array:
        return -GATES[self.gate](self.step_size(x))

    def bias(self) -> biases.Bias:
        return biases.Difference(self.symmetric)


class CABLE(CABLENW):
    """CABLE: steps of relu(x w), and a weight softplus(x w') of each query. Options: gate and step_bias, as in `cable_nw`.

    Source: CABLE section 3, equations 2 to 7.
    """

    def __init__(self, dims: Dims, *, gate: str = "relu", step_bias: bool = False, rngs: nnx.Rngs):
        super().__init__(dims, gate=gate, step_bias=step_bias, rngs=rngs)
        self.weight = linear(dims.width, dims.heads, rngs)

    def query(self, x: Array, total: Sum) -> Coordinate:
        weight = jax.nn.softplus(self.weight(wide(x)))
        return jnp.moveaxis(weight, -1, 1), total

    def bias(self) -> biases.Bias:
        return biases.CABLE()


class KCABLE(CABLE):
    """K-CABLE: CABLE's bias through -log(r ** 2 + 1). Options: gate and step_bias, as in `cable_nw`.

        b(i, j) = -log(r ** 2 + 1),   r = g_i * (S_i - S_j)

    Source: CABLE section 5.6.
    """

    def bias(self) -> biases.Bias:
        return biases.KCABLE()


class ForgettingTransformer(RunningSum):
    """FoX: every token forgets by log sigmoid(x w + b). Options: gate_bias, the initial b.

        b(i, j) = -abs(c_i - c_j),   c = cumsum(log sigmoid(x w + b))

    Source: Lin et al. 2025, section 3.
    """

    extrapolates = "yes"

    def __init__(self, dims: Dims, *, gate_bias: float = 0.0, rngs: nnx.Rngs):
        self.symmetric = not dims.causal
        self.gate = linear(dims.width, dims.heads, rngs, bias=within("gate_bias", gate_bias, -100.0, 100.0))

    def step(self, x: Array) -> Array:
        return jax.nn.log_sigmoid(self.gate(x))

    def bias(self) -> biases.Bias:
        return biases.Difference(self.symmetric)


class GRAPEAdditive(RunningSum):
    """GRAPE-A: ALiBi with slopes gated by the query token, the key token, or both.

        b(i, j) = -(g_i + g'_j) * abs(i - j), g = scale * slope_h * softplus(x w), g' = scale * slope_h * softplus(x w')

    w and w' are [E, H], slope is ALiBi's, and scale = softplus(omega), [H], starts at 1. i and j count tokens from the start of
    the row.

    Options: gate: "both", "key" (g = 0) or "query" (g' = 0).

    Source: Zhang et al. 2025 (arXiv 2512.07805), equation 4.6, and the authors' code. The paper computes the gates from queries
    and keys. We compute them from the layer's input x, like every coordinate here.
    """

    extrapolates = "untested"

    def __init__(self, dims: Dims, *, gate: str = "both", rngs: nnx.Rngs):
        self.heads = dims.heads
        among("gate", gate, ("both", "query", "key"))
        self.of_query = None if gate == "key" else linear(dims.width, dims.heads, rngs)
        self.of_key = None if gate == "query" else linear(dims.width, dims.heads, rngs)
        self.omega = nnx.Param(jnp.full(dims.heads, math.log(math.e - 1)))

    def step(self, x: Array) -> Array:
        return jnp.ones((*x.shape[:2], 1))

    def coordinate(
        self, x: Array, filled: Array, before: Coordinate, axis: str | None = None
    ) -> tuple[Coordinate, Coordinate]:
        _, position = super().coordinate(x, filled, None if before is None else before[1], axis)
        return (self._gate(self.of_query, x), position), (self._gate(self.of_key, x), position)

    def _gate(self, made: nnx.Linear | None, x: Array) -> Float[Array, "B H T"]:
        if made is None:
            return jnp.zeros((len(x), self.heads, x.shape[1]))
        slope = jax.nn.softplus(self.omega[...]) * biases.alibi_slopes(self.heads)
        return jnp.moveaxis(slope * jax.nn.softplus(made(wide(x))), -1, 1)

    def bias(self) -> biases.Bias:
        return biases.GatedDistance()


class ContextualBAM(RunningSum):
    """BAM over contextual distance: a generalised Gaussian prior of the sum of learned steps between two tokens.

        b(i, j) = -exp(log_scale) * (abs(S_i - S_j) + eps) ** shape,   S = cumsum(softplus(x w + c))

    c starts at log(e - 1), so every step is about 1 and the distance is near that of positions.

    Options:
      init: the initial shape and log_scale: "ladder", see `far_and_near`; "uniform": 0 and 0.
      near_decay, near_shape: options of "ladder", as in BAM.

    Source: ours; the prior of BAM section 2.3 over the sums of CABLE section 3.
    """

    extrapolates = "in part (ours; the confirmation failed)"

    def __init__(
        self,
        dims: Dims,
        *,
        init: str = "ladder",
        near_decay: float | None = 16.0,
        near_shape: float = 1.0,
        rngs: nnx.Rngs,
    ):
        self.step_size = linear(dims.width, dims.heads, rngs, bias=math.log(math.e - 1))
        zeros = jnp.zeros(dims.heads)
        inits = {"ladder": lambda: far_and_near(dims, near_decay, near_shape), "uniform": lambda: (zeros, zeros)}
        shape, log_scale = inits[among("init", init, inits)]()
        self.shape, self.log_scale = nnx.Param(shape), nnx.Param(log_scale)

    def step(self, x: Array) -> Array:
        return jax.nn.softplus(self.step_size(x))

    def bias(self) -> biases.Bias:
        return biases.ContextualGaussian(self.shape[...], self.log_scale[...])
