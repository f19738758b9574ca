"""Shapes of attention, and every bias with parameters for such a shape."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bam_jax import biases

_FIRE_WIDTH = 32  # width of FIRE's network, as in its paper


@dataclasses.dataclass(frozen=True)
class AttentionShape:
    """The shape of one attention call, and its bias.

    Args:
        length: number of keys, in tokens.
        queries: number of queries, which are the last of these tokens; 1: a decoding step.
        batch, heads, width: rows, heads and head width.
        dtype: of q, k and v.
        bias: a name in `BIASES`.
        slope: ALiBi's slope in every head, in nats per token; None: the published slopes.
    """

    length: int
    queries: int
    batch: int = 1
    heads: int = 8
    width: int = 64
    dtype: str = "float32"
    bias: str = "ggd"
    slope: float | None = None

    def operations(self, which: str) -> float:
        """Floating-point operations of the products over the pairs of a causal mask; a backward pass has 2.5 times as many.

        Pairs that are skipped because their weight is negligible are counted too, because they are part of the requested work.
        """
        pairs = self.queries * (self.length - (self.queries - 1) / 2)
        return 4 * self.batch * self.heads * self.width * pairs * (1 if which == "forward" else 3.5)

    def bytes(self, which: str) -> float:
        """The fewest bytes to move: every operand is read once and every result written once."""
        size = {"float32": 4, "bfloat16": 2}[self.dtype]
        tokens = 2 * (self.queries + self.length) * (1 if which == "forward" else 2)  # q and out, k and v
        return float(tokens * self.batch * self.heads * self.width * size)


class BiasOperands(NamedTuple):
    """A bias and the coordinates that it compares.

    Args:
        bias: a bias with parameters for every head.
        trained: names of the parameters that have a gradient.
        i, j: coordinates of all tokens as queries and as keys, [batch, heads, length] each; None: positions.
    """

    bias: biases.Bias
    trained: tuple[str, ...] = ()
    i: Any = None
    j: Any = None


def _ggd(shape: AttentionShape) -> BiasOperands:
    ramp = functools.partial(jnp.linspace, num=shape.heads, dtype=jnp.float32)
    prior = biases.GeneralisedGaussian(ramp(0.2, 1.0), ramp(-2.0, 0.0), jnp.zeros(shape.heads))
    return BiasOperands(prior, ("shape", "log_scale"))


def _alibi(shape: AttentionShape) -> BiasOperands:
    slopes = biases.alibi_slopes(shape.heads) if shape.slope is None else np.full(shape.heads, shape.slope)
    return BiasOperands(biases.ALiBi(jnp.asarray(slopes, jnp.float32)))


def _kerple(shape: AttentionShape) -> BiasOperands:
    return BiasOperands(biases.KerpleLog(jnp.ones(shape.heads), jnp.full(shape.heads, 0.5)), ("r1", "r2"))


def _kerple_power(shape: AttentionShape) -> BiasOperands:
    return BiasOperands(biases.KerplePower(jnp.full(shape.heads, 0.1), jnp.full(shape.heads, 0.8)), ("r1", "r2"))


def _additive_decay(shape: AttentionShape) -> BiasOperands:
    weights = (jnp.full(shape.heads, weight) for weight in (0.01, 0.5, 0.1))
    return BiasOperands(biases.AdditiveDecay(*weights), ("linear", "logarithmic", "root"))


def _gaussian(shape: AttentionShape) -> BiasOperands:
    return BiasOperands(biases.Gaussian(jnp.linspace(2.0, 6.0, shape.heads)), ("log_width",))


def _student_t(shape: AttentionShape) -> BiasOperands:
    widths = jnp.linspace(2.0, 6.0, shape.heads)
    return BiasOperands(biases.StudentT(widths, jnp.zeros(shape.heads)), ("log_width", "log_freedom"))


def _sandwich(shape: AttentionShape) -> BiasOperands:
    return BiasOperands(biases.Sandwich(jnp.linspace(1.0, 8.0, shape.heads)), ("compression",))


def _fire(shape: AttentionShape) -> BiasOperands:
    generator = np.random.default_rng(2)
    normal = lambda *sizes: jnp.asarray(generator.standard_normal(sizes), jnp.float32)
    inner = {"w1": normal(_FIRE_WIDTH), "b1": normal(_FIRE_WIDTH), "c": jnp.float32(0.1), "length": jnp.float32(64.0)}
    fire = biases.FIRE(normal(shape.heads, _FIRE_WIDTH), normal(shape.heads), **inner)
    return BiasOperands(fire, ("w2", "b2", *inner))


def _t5(shape: AttentionShape, bidirectional: bool = False) -> BiasOperands:
    starts = biases.t5_starts(16 if bidirectional else 32)
    table = jnp.tile(jnp.linspace(0.0, -4.0, len(starts)), (shape.heads, 2 if bidirectional else 1))
    return BiasOperands(biases.T5(table, starts=starts, bidirectional=bidirectional), ("table",))


def _t5_distance(shape: AttentionShape) -> BiasOperands:
    table = jnp.tile(jnp.linspace(0.0, -4.0, 129), (shape.heads, 1))
    return BiasOperands(biases.T5Distance(table), ("table",))


def _running_sum(shape: AttentionShape, step: float) -> tuple[Array, Array]:
    steps = np.random.default_rng(1).exponential(step, (shape.batch, shape.heads, shape.length))
    # Two float32 numbers hold the sum of a long row as one float64 would; a single float32 would lose the last tokens' steps.
    total = np.cumsum(steps, -1)
    high = total.astype(np.float32)
    return jnp.asarray(high), jnp.asarray((total - high).astype(np.float32))


def _cable(shape: AttentionShape, kind: Callable[[], biases.Bias] = biases.CABLE) -> BiasOperands:
    total = _running_sum(shape, 0.5)
    return BiasOperands(kind(), i=(jnp.full_like(total[0], 0.1), total), j=total)


def _fox(shape: AttentionShape, symmetric: bool = False) -> BiasOperands:
    total = jax.tree.map(jnp.negative, _running_sum(shape, 0.05))
    return BiasOperands(biases.Difference(symmetric=symmetric), i=total, j=total)


def _contextual(shape: AttentionShape) -> BiasOperands:
    power, log_scale, _ = jax.tree.leaves(_ggd(shape).bias)
    total = _running_sum(shape, 0.5)
    return BiasOperands(biases.ContextualGaussian(power, log_scale), ("shape", "log_scale"), i=total, j=total)


BIASES: dict[str, Callable[[AttentionShape], BiasOperands]] = {
    "nope": lambda shape: BiasOperands(biases.Uniform()),
    "alibi": _alibi,
    "ggd": _ggd,
    "kerple_log": _kerple,
    "t5": _t5,
    "cable": _cable,
    "fox": _fox,
    "contextual": _contextual,
    "fire": _fire,
    "t5_bidirectional": functools.partial(_t5, bidirectional=True),
    "k_cable": functools.partial(_cable, kind=biases.KCABLE),
    "distance": functools.partial(_fox, symmetric=True),
    "kerple_power": _kerple_power,
    "additive_decay": _additive_decay,
    "gaussian": _gaussian,
    "student_t": _student_t,
    "t5_distance": _t5_distance,
    "sandwich": _sandwich,
}
"""Every bias of `bam_jax.biases` that does not need whole rows of logits, the most common ones first."""
