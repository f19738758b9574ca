"""The Bayesian reading of attention: a prior over positions, its factorisation, and the paper's lemmas and theorems.

Logits are in nats, temperature and 1 / sqrt(D) included, so that attention's weights are their softmax over visible keys:

    p_ij = softmax_j(f_ij + g_ij),   f: content, tau q.k / sqrt(D);   g: position, tau b(u_i, u_j)

The statements are sharp for the worst content, so that a limit becomes a distance and a tolerance. They share one
number, the swing of the content, R = max_j f_ij - min_j f_ij over visible keys: the paper leaves it out, and without a
bound on it no prior makes attention local.

Source: BAM sections 2.1 to 2.4, appendices B and K; the docstrings say where they depart from the text.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bam_jax.attention.scoring import Mask, Scoring, Tokens, bias_table, visible
from bam_jax.biases import ALiBi, Bias, GeneralisedGaussian, Rows

CAUSAL = Mask()

LOCAL = 0.75
"""Shape from which a head counts as local. The paper has heads in (0, 1) and heads "close to 1", and no border."""


class Logits(NamedTuple):
    """Attention's logits in two shares, nats, and which pairs are visible.

    Args:
      content: f_ij = tau_i q_i . k_j / sqrt(D), [B, H, T, S].
      position: g_ij, the rest, [#B, #H, T, S].
      seen: [#B, 1, T, S].
    """

    content: Array
    position: Array
    seen: Array


def logits(q: Float[Array, "B T H D"], k: Float[Array, "B S K D"], scoring: Scoring) -> Logits:
    """Attention's logits, divided between content and position.

        g_ij = tau_i b(u_i, u_j);   of rowwise methods (DAPE, CoPE), what they add to the scores, which depends on them

    Args:
      q, k, scoring: as `bam_jax.attention.attention` takes them. Under Scalable Softmax with the prior inside its factor,
        the factor is part of the prior (the gamma of appendix K.1).
    """
    keys = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    content = jnp.einsum("bthd,bshd->bhts", q, keys, preferred_element_type=dtype) / math.sqrt(q.shape[-1])
    position, seen = bias_table(scoring, dtype), visible(scoring.queries, scoring.keys, scoring.mask)[:, None]
    if scoring.rowwise is not None:
        i, j = scoring.queries.position[:, None, :, None], scoring.keys.position[:, None, None, :]
        position = scoring.rowwise(Rows(q, content, position, seen, i, j)) - content
    if scoring.temperature is not None:
        content, position = (share * scoring.temperature[..., None] for share in (content, position))
    return Logits(content, position, seen)


def prior(scoring: Scoring) -> Float[Array, "#B #H T S"]:
    """The prior over positions of any bias: what attention would be if every key had the same content.

        p(g_pos(i, j)) = softmax_j(tau_i b(u_i, u_j)),   j visible from i;   a row that sees nothing is 0

    Args:
      scoring: bias, tokens, mask and temperature.

    Raises:
      ValueError: what it adds to the scores depends on them; `logits` has it.

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
      mask: its window hides what is farther.

    >>> [f"{p:.3f}" for p in prior_by_distance(ALiBi(jnp.log(jnp.array([2.0]))), 3)[0]]
    ['0.571', '0.286', '0.143']
    """
    last = Tokens(jnp.array([[keys - 1]]))
    backwards = Tokens(jnp.arange(keys)[None, ::-1])
    factor = None if temperature is None else temperature[None, :, None]
    return prior(Scoring(bias, last, backwards, factor, mask))[0, :, 0]


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
    """What a BAM head with this shape does: "retrieval" (at most 0), "long-tail", or "local" (from `LOCAL` on).

    >>> [head_class(shape) for shape in (-0.5, 0.3, 1.0)]
    ['retrieval', 'long-tail', 'local']

    Source: BAM section 3.2.
    """
    return "retrieval" if shape <= 0 else "long-tail" if shape < LOCAL else "local"


class Factors(NamedTuple):
    """Attention's weights and what they factor into: joint = content * position / z.

    Args:
      joint: p_ij, [*N S].
      content: softmax of the content alone, [*N S].
      position: the prior, [*N S].
      z: the normaliser, [*N], in (0, 1].
    """

    joint: Array
    content: Array
    position: Array
    z: Array


def factors(content: Float[Array, "*N S"], position: Float[Array, "*N S"], seen: Bool[Array, "*N S"]) -> Factors:
    """Theorem 1: with an additive score, attention is the product of a content and a position distribution over Z.

        p_ij = p(f_ij) p(g_ij) / Z_i,   Z_i = sum_j p(f_ij) p(g_ij)

    Hypothesis: the query sees a key. Nothing else; the content distribution may depend on the position.

    Args:
      content, position: logits f and g, nats.
      seen: which keys are visible.

    >>> f, g = jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0])
    >>> joint, content, position, z = factors(f, g, jnp.array([True, True]))
    >>> bool(jnp.allclose(joint, content * position / z))
    True

    Source: BAM theorem 1.
    """
    softmax = lambda logits: jax.nn.softmax(logits, axis=-1, where=seen)
    p_content, p_position = softmax(content), softmax(position)
    return Factors(softmax(content + position), p_content, p_position, (p_content * p_position).sum(-1))


def overlap(content: Float[Array, "*N S"], position: Float[Array, "*N S"], seen: Bool[Array, "*N S"]) -> Array:
    """Z as geometry: the inner product of both distributions, in (0, 1].

        Z = <p_cont, p_pos>

    1 only if both are the same point mass, and 1 / n under a uniform prior over n keys: it does not measure independence.

    Args:
      content, position: logits f and g, nats.
      seen: which keys are visible.

    Source: BAM appendix K.2, whose last line has the inverse.
    """
    return factors(content, position, seen).z


def free_energy(content: Float[Array, "*N S"], position: Float[Array, "*N S"], seen: Bool[Array, "*N S"]) -> Array:
    """Z as physics: the interaction free energy of content and position, -ln Z, in nats.

        -ln Z = ln Z_cont + ln Z_pos - ln Z_joint,   Z_cont = sum_j exp(f_j) and so on

    Args:
      content, position: logits f and g, nats.
      seen: which keys are visible.

    Source: BAM appendix K.1, which calls Z_cont Z_pos / Z_joint both Z and <p_cont, p_pos>; they are inverse to each other.
    """
    log_sum = lambda logits: jax.nn.logsumexp(logits, axis=-1, where=seen)
    return log_sum(content) + log_sum(position) - log_sum(content + position)


class Terms(NamedTuple):
    """What -ln Z is made of, in nats, each [*N] and at least 0.

    Args:
      kl_content: KL(attention || content), what position adds.
      kl_prior: KL(attention || prior), what content adds.
      entropy: of the attention.
    """

    kl_content: Array
    kl_prior: Array
    entropy: Array


def coupling(content: Float[Array, "*N S"], position: Float[Array, "*N S"], seen: Bool[Array, "*N S"]) -> Terms:
    """Z as information: what the joint distribution says beyond the product, as three terms whose sum is -ln Z.

        -ln Z = sum_j p_ij ln(p_ij / (p(f_ij) p(g_ij))) = KL(joint || content) + KL(joint || prior) + H(joint)

    The product is not normalised, so this is no mutual information: 0 only if content and prior are the same point mass.

    Args:
      content, position: logits f and g, nats.
      seen: which keys are visible.

    Source: BAM appendix K.3, where Z is the inverse of theorem 1's and 0 is read as independence.
    """
    logarithm = lambda logits: jax.nn.log_softmax(logits, axis=-1, where=seen)
    joint = logarithm(content + position)
    mean = lambda values: (jnp.exp(joint) * jnp.where(seen, values, 0)).sum(-1)
    return Terms(mean(joint - logarithm(content)), mean(joint - logarithm(position)), mean(-joint))


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
    """Lemma 2: ALiBi is a Laplace prior cut off by the causal mask, renormalised over the visible keys.

        p(g_pos(i, j)) = Uniform(1, i, j) Laplace(0, 1/m, j - i) / sum = e^(-m (i - j)) (1 - e^-m) / (1 - e^(-m i))

    Hypothesis: m > 0. The paper's last step drops the sum, as if the density added up to 1 over integers on one side.

    Args:
      slope: m, nats per token.
      distance: i - j, tokens.
      keys: visible ones; i, if positions count from 1.

    Source: BAM lemma 2.
    """
    mass = jnp.exp(-slope * jnp.abs(distance)) * jnp.expm1(-slope) / jnp.expm1(-slope * keys)
    return jnp.where((distance >= 0) & (distance < keys), mass, 0.0)


def posterior_bounds(prior: Float[Array, "*N"], swing: Float[Array, "*N"]) -> tuple[Array, Array]:
    """Least and most attention that a key can get: content moves the log-odds of its prior by its swing at most.

        logit(p_ij) = logit(p(g_ij)) +- R

    Both are reached, by a key whose content differs by R from that of all the others. All limits below follow from it.

    Args:
      prior: of the key, in [0, 1].
      swing: R, nats.

    >>> least, most = posterior_bounds(jnp.array(0.5), jnp.log(3.0))
    >>> f"{least:.2f} {most:.2f}"
    '0.25 0.75'
    """
    odds = jax.scipy.special.logit(prior)
    return jax.nn.sigmoid(odds - swing), jax.nn.sigmoid(odds + swing)


def local_beyond(
    bias: ALiBi | GeneralisedGaussian, swing: Float[Array, "*N"], tolerance: Float[Array, "*N"]
) -> Float[Array, "*N"]:
    """Lemmas 3 and 4: ALiBi, and BAM with shape > 0, become local: from this distance on no key gets more than a tolerance.

        p_ij <= tolerance  for  j < i - D,   where  b(0) - b(D) = R - logit(tolerance);   lim p_ij = 0

    Hypotheses: slope > 0, or shape > 0 and alpha > 0 (any mu); the query sees itself; content of bounded swing. The paper
    assumes no bound on the content (q.k growing with the distance as the bias falls would undo the limit), and its
    section 2.3 allows alpha = 0, where there is no prior. `CAP` stops the bias at -8103 nats, where p is 0 in any float.

    Args:
      bias: with scalar parameters, or arrays of shape [*N].
      swing: R, nats.
      tolerance: in (0, 1).

    Returns:
      D in tokens; 0: it holds for every key before the query.

    >>> print(local_beyond(ALiBi(0.5), 1.0, 0.01).round(1))
    11.2

    Source: BAM lemmas 3 and 4.
    """
    drop = swing - jax.scipy.special.logit(tolerance)
    if isinstance(bias, ALiBi):
        return jnp.maximum(drop / bias.slope, 0)
    mu = bias.centre()
    here = (jnp.abs(mu) + bias.eps) ** bias.shape
    power = jnp.maximum(here + drop * jnp.exp(-bias.log_scale), 0)
    return jnp.maximum(power ** (1 / bias.shape) - bias.eps - mu, 0)


def crossover(
    shape: Float[Array, "*N"], log_scale: Float[Array, "*N"], slope: Float[Array, "*N"]
) -> Float[Array, "*N"]:
    """Theorem 2: BAM with shape < 1 penalises every key beyond this distance less than ALiBi does.

        B_ij / A_ij = e^theta_alpha d^(beta - 1) / m < 1  for  d = |j - i| > (e^theta_alpha / m)^(1 / (1 - beta))

    Hypotheses: beta < 1, m > 0, mu = 0, eps -> 0. With the paper's scale, e^theta_alpha = m, the distance is 1: the paper
    leaves out that |j - i| > 1 is needed (at 1 the ratio is 1, at 0 it is 0/0). With eps it is still below 1 from 2 tokens
    on where 1 - beta > eps. Then, for every text length, the prior's effective length is at least ALiBi's at any share.

    Args:
      shape, log_scale: theta_beta and theta_alpha.
      slope: ALiBi's m, nats per token.

    Returns:
      The distance in tokens.

    >>> print(crossover(0.5, jnp.log(0.2), 0.1).round(2))
    4.0

    Source: BAM theorem 2; its proof's alpha = 1 / m^(1 / beta) is e^theta_alpha = m.
    """
    return jnp.exp((log_scale - jnp.log(slope)) / (1 - shape))


def blind_eps(
    shape: Float[Array, "*N"],
    log_scale: Float[Array, "*N"],
    swing: Float[Array, "*N"],
    tolerance: Float[Array, "*N"],
) -> Float[Array, "*N"]:
    """Theorem 3: BAM with shape < 0 ignores the query's own token: the eps below which it gets at most a tolerance.

        p_ii <= tolerance  for  eps <= E,   where  e^theta_alpha (E^beta - 1) = R - logit(tolerance);   lim p_ii = 0

    Hypotheses: beta < 0, alpha > 0, mu = 0 (else what is ignored lies mu tokens away); a second visible key; content of
    bounded swing; and eps -> 0: the limit |j - i| -> 0 of the paper is no limit over integers. A first token, which sees
    itself only, has p_ii = 1. With the real eps = 1e-5 a shape of -.05 has b(0) = -1.78: hardly ignored.

    Args:
      shape, log_scale: theta_beta and theta_alpha.
      swing: R, nats.
      tolerance: in (0, 1).

    Returns:
      E in tokens, below 1; infinity where the tolerance is met without a prior.

    Source: BAM theorem 3.
    """
    drop = (swing - jax.scipy.special.logit(tolerance)) * jnp.exp(-log_scale)
    return jnp.where(drop > -1, jnp.maximum(1 + drop, 0) ** (1 / shape), jnp.inf)


def seen_beyond(
    shape: Float[Array, "*N"], log_scale: Float[Array, "*N"], tolerance: Float[Array, "*N"]
) -> Float[Array, "*N"]:
    """Theorem 4: BAM with shape < 0 sees any distance: beyond this one each key gets what NoPE gives it, less a tolerance.

        p_ij >= (1 - tolerance) NoPE_ij  for  |i - j - mu| >= D,   where  b(D) = ln(1 - tolerance)

    Hypotheses: beta < 0, alpha > 0; none on the content. The paper's lim p_ij != 0 cannot hold: in a growing text NoPE's
    own p_ij, near 1 / n, goes to 0. What stays is the ratio; it has the limit 1 (see `nope_ratio`).

    Args:
      shape, log_scale: theta_beta and theta_alpha.
      tolerance: in (0, 1).

    Returns:
      D in tokens.

    >>> print(seen_beyond(-1.0, 0.0, 0.01).round(1))
    99.5

    Source: BAM theorem 4.
    """
    return (-jnp.log1p(-tolerance) * jnp.exp(-log_scale)) ** (1 / shape)


def nope_ratio(position: Float[Array, "*N S"], swing: Float[Array, "*N"]) -> tuple[Array, Array]:
    """Bounds on what a prior makes of NoPE's attention to each key, p_ij / NoPE_ij, whatever the content.

        p_ij / NoPE_ij = e^b_j / sum_z NoPE_iz e^b_z  lies in  [e^b_j, e^b_j / max(1 - e^R (1 - M), e^-R M)],
        M = mean_z e^b_z,   for b shifted so that its maximum is 0

    For shape < 0 both ends go to 1 as the text and the distance grow: theorem 4 in the form that holds.

    Args:
      position: biases of all visible keys, nats.
      swing: R, nats.

    Returns:
      (least, most), each [*N S].

    Source: BAM theorem 4.
    """
    shifted = position - position.max(-1, keepdims=True)
    odds = jnp.exp(shifted)
    mean, swing = odds.mean(-1, keepdims=True), jnp.asarray(swing)[..., None]
    return odds, odds / jnp.maximum(1 - jnp.exp(swing) * (1 - mean), jnp.exp(-swing) * mean)
