"""The reach of attention under a prior, near and far, for any content: lemmas 3 and 4, theorems 2 to 4.

The bounds are sharp for the worst content, so that each limit becomes a distance and a tolerance. They share one number,
the swing of the content, R = max_j f_ij - min_j f_ij over visible keys. The paper omits it, but without a bound on it, no
prior makes attention local.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bam_jax.biases import ALiBi, GeneralisedGaussian


def posterior_bounds(prior: Float[Array, "*N"], swing: Float[Array, "*N"]) -> tuple[Array, Array]:
    """The least and the most attention that a key can get: content shifts the log-odds of a key's prior by at most R.

        logit(p_ij) = logit(p(g_ij)) +- R

    Both are attained by a key whose content differs by R from that of all others. All limits below follow from these bounds.

    Args:
        prior: that of the key, in [0, 1].
        swing: R, the swing of the content, nats.

    >>> least, most = posterior_bounds(jnp.array(0.5), jnp.log(3.0))
    >>> f"{least:.2f} {most:.2f}"
    '0.25 0.75'
    """
    odds = jax.scipy.special.logit(prior)
    return jax.nn.sigmoid(odds - swing), jax.nn.sigmoid(odds + swing)


def local_beyond(
    bias: ALiBi | GeneralisedGaussian, swing: Float[Array, "*N"], tolerance: Float[Array, "*N"]
) -> Float[Array, "*N"]:
    """Lemmas 3 and 4: ALiBi, and BAM with shape > 0, become local: beyond this distance, no key gets more than a tolerance.

        p_ij <= tolerance  for  j < i - D,   where  b(0) - b(D) = R - logit(tolerance);   lim p_ij = 0

    Hypotheses: slope > 0, or shape > 0 and alpha > 0 (any mu); the query sees itself; content of bounded swing. The paper
    assumes no bound on the content (if q.k grew with the distance as the bias falls, there would be no limit), and its
    section 2.3 allows alpha = 0, where there is no prior. `CAP` stops the bias at -8103 nats, where p is 0 in any float type.

    Args:
        bias: with scalar parameters, or arrays of shape [*N].
        swing: R, nats.
        tolerance: in (0, 1).

    Returns:
        D in tokens; 0: the bound holds for every key before the query.

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

    Hypotheses: beta < 1, m > 0, mu = 0, eps -> 0. With the paper's scale, e^theta_alpha = m, the distance is 1. The paper
    omits that |j - i| > 1 is needed (at 1 the ratio is 1; at 0 it is 0/0, or infinite for beta <= 0). With eps, the ratio is
    still below 1 from 2 tokens on if 1 - beta > eps. Then, for every text length and any share, the prior's effective length
    is at least ALiBi's.

    Args:
        shape, log_scale: theta_beta and theta_alpha.
        slope: ALiBi's m, nats per token.

    Returns:
        The distance in tokens.

    >>> print(crossover(0.5, jnp.log(0.2), 0.1).round(2))
    4.0

    Source: BAM theorem 2; alpha = 1 / m^(1 / beta) in its proof means e^theta_alpha = m.
    """
    return jnp.exp((log_scale - jnp.log(slope)) / (1 - shape))


def blind_eps(
    shape: Float[Array, "*N"],
    log_scale: Float[Array, "*N"],
    swing: Float[Array, "*N"],
    tolerance: Float[Array, "*N"],
) -> Float[Array, "*N"]:
    """Theorem 3: BAM with shape < 0 ignores the query's own token: the eps below which this token gets at most a tolerance.

        p_ii <= tolerance  for  eps <= E,   where  e^theta_alpha (E^beta - 1) = R - logit(tolerance);   lim p_ii = 0

    Hypotheses: beta < 0, alpha > 0, mu = 0 (otherwise the ignored token is mu tokens away); a second visible key; content of
    bounded swing; and eps -> 0, because the paper's |j - i| -> 0 is not a limit over integers. The first token, which sees
    only itself, has p_ii = 1. With the actual eps = 1e-5, a shape of -.05 has b(0) = -1.78: the token is hardly ignored.

    Args:
        shape, log_scale: theta_beta and theta_alpha.
        swing: R, nats.
        tolerance: in (0, 1).

    Returns:
        E in tokens, below 1; infinity if the tolerance is met without a prior.

    Source: BAM theorem 3.
    """
    drop = (swing - jax.scipy.special.logit(tolerance)) * jnp.exp(-log_scale)
    return jnp.where(drop > 0, (1 + jnp.maximum(drop, 0)) ** (1 / shape), jnp.inf)


def seen_beyond(
    shape: Float[Array, "*N"], log_scale: Float[Array, "*N"], tolerance: Float[Array, "*N"]
) -> Float[Array, "*N"]:
    """Theorem 4: BAM with shape < 0 sees any distance: beyond this one, each key gets at least NoPE's share, less a tolerance.

        p_ij >= (1 - tolerance) NoPE_ij  for  |j - i - mu| >= D,   where  -e^theta_alpha D^beta = ln(1 - tolerance)

    Hypotheses: beta < 0, alpha > 0; none on the content. The paper's lim p_ij != 0 cannot hold: in a growing text, NoPE's
    own p_ij, near 1 / n, goes to 0. The ratio of both has the limit 1 instead (see `nope_ratio`).

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
    """Bounds on the ratio of attention under a prior to NoPE's, p_ij / NoPE_ij for each key, for any content.

        p_ij / NoPE_ij = e^b_j / sum_z NoPE_iz e^b_z  lies in  [e^b_j, e^b_j / max(1 - e^R (1 - M), e^-R M)],
        M = mean_z e^b_z,   for b shifted so that its maximum is 0

    For shape < 0, both bounds go to 1 as the text and the distance grow: theorem 4 in the form that holds.

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
