"""The prior of a bias, those of known methods (lemmas 1 and 2), a prior's effective length, and classes of heads."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bam_jax.attention.logits.mask import Mask, visible
from bam_jax.attention.logits.scoring import Scoring, bias_table
from bam_jax.attention.logits.tokens import Tokens
from bam_jax.biases import Bias

CAUSAL = Mask()

LOCAL = 0.75
"""Shape from which a head counts as local. The paper has heads in (0, 1) and heads "close to 1", but no threshold."""


def prior(scoring: Scoring) -> Float[Array, "#B #H T S"]:
    """The prior of any bias over positions: what attention would be if every key had the same content.

        p(g_pos(i, j)) = softmax_j(tau_i b(u_i, u_j)),   j visible from i;   a row that sees nothing is 0

    Args:
        scoring: bias, tokens, mask and temperature; `sink_logits` are left out.

    Raises:
        ValueError: what a rowwise method adds to the scores depends on them; use `logits`.

    Source: BAM definition 2.
    """
    if scoring.rowwise is not None:
        raise ValueError(f"{type(scoring.rowwise).__name__} has a prior only beside scores: use logits(q, k, scoring)")
    position = bias_table(scoring, jnp.result_type(float))
    if scoring.temperature is not None:
        position = position * scoring.temperature[..., None]
    seen = visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
    return jax.nn.softmax(position, axis=-1, where=seen)


def prior_by_distance(
    bias: Bias, keys: int, temperature: Float[Array, " H"] | None = None, mask: Mask = CAUSAL
) -> Float[Array, "H N"]:
    """The prior of the last query of a text over the distances to its keys, 0 to N - 1 tokens.

    Args:
        bias: of token positions, with parameters [H] or [H, n].
        keys: N, the query itself included.
        temperature: Scalable Softmax's factor for that query; None: 1.
        mask: its window hides keys that are farther away.

    >>> from bam_jax.biases import ALiBi
    >>> [f"{p:.3f}" for p in prior_by_distance(ALiBi(jnp.log(jnp.array([2.0]))), 3)[0]]
    ['0.571', '0.286', '0.143']
    """
    last = Tokens(jnp.array([[keys - 1]]))
    backwards = Tokens(jnp.arange(keys)[None, ::-1])
    factor = None if temperature is None else temperature[None, :, None]
    return prior(Scoring(bias, last, backwards, factor, mask))[0, :, 0]


def uniform(distance: Int[Array, "*N"], keys: Int[Array, "*N"]) -> Float[Array, "*N"]:
    """Lemma 1: the causal mask alone is a uniform prior over the visible keys.

        p(g_pos(i, j)) = 1 / i  for  1 <= j <= i,  else 0

    Args:
        distance: i - j, tokens.
        keys: visible ones; i, if positions count from 1.

    >>> print(uniform(jnp.arange(-1, 5), 4))
    [0.   0.25 0.25 0.25 0.25 0.  ]

    Source: BAM lemma 1.
    """
    return jnp.where((distance >= 0) & (distance < keys), 1 / jnp.asarray(keys), 0.0)


def laplace(slope: Float[Array, "*N"], distance: Int[Array, "*N"], keys: Int[Array, "*N"]) -> Float[Array, "*N"]:
    """Lemma 2: ALiBi is a Laplace prior, truncated by the causal mask and renormalised over the visible keys.

        p(g_pos(i, j)) = Uniform(1, i, j) Laplace(0, 1/m, j - i) / sum = e^(-m (i - j)) (1 - e^-m) / (1 - e^(-m i))

    Hypothesis: m > 0. The paper's last step drops the sum, as if the density summed to 1 over the integers on one side.

    Args:
        slope: m, nats per token.
        distance: i - j, tokens.
        keys: visible ones; i, if positions count from 1.

    Source: BAM lemma 2.
    """
    mass = jnp.exp(-slope * jnp.abs(distance)) * jnp.expm1(-slope) / jnp.expm1(-slope * keys)
    return jnp.where((distance >= 0) & (distance < keys), mass, 0.0)


def effective_length(prior: Float[Array, "*N D"], share: float) -> Int[Array, "*N"]:
    """The smallest distance in tokens within which a prior holds a share of its mass.

    Args:
        prior: mass at the distances 0, 1, 2, ... from the query.
        share: of the mass, in (0, 1).

    >>> effective_length(jnp.array([0.5, 0.25, 0.125, 0.125]), 0.8).item()
    2
    """
    return jnp.argmax(jnp.cumsum(prior, axis=-1) >= share * prior.sum(-1, keepdims=True), axis=-1)


def head_class(shape: float) -> str:
    """The class of a BAM head with this shape: "retrieval" (at most 0), "long-tail", or "local" (from `LOCAL` on).

    >>> [head_class(shape) for shape in (-0.5, 0.3, 1.0)]
    ['retrieval', 'long-tail', 'local']

    Source: BAM section 3.2.
    """
    return "retrieval" if shape <= 0 else "long-tail" if shape < LOCAL else "local"
