"""Attention's logits as a sum, and its weights as a product, of content and position: theorem 1 and interpretations of Z."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bam_jax.attention.logits.scoring import Scoring, rows_table
from bam_jax.biases import Sharpened
from bam_jax.system.errors import UserError


class Logits(NamedTuple):
    """Attention's logits as two summands, in nats, and which pairs are visible.

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

        g_ij = tau_i b(u_i, u_j);   for rowwise methods (DAPE, CoPE, PaTH), what they add to the scores, which depends on these

    Args:
        q, k, scoring: as `bam_jax.attention.attention` takes them. Under Scalable Softmax with the prior inside its factor,
            the factor is part of the prior (the gamma of appendix K.1). The scoring's `sink_logits`, which belong to no key,
            are left out: a sink takes the same share of all weights of a row.

    Raises:
        UserError: the softmax is sparse or adaptive, so that weights are not a product of content and position.
    """
    if isinstance(scoring.rowwise, Sharpened):
        kind = type(scoring.rowwise).__name__
        raise UserError(
            f"the weights of {kind} are no product of content and position; give a model with config.ssmax=off"
        )
    keys = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    products = jnp.einsum("bthd,bshd->bhts", q, keys, preferred_element_type=dtype)
    rows = rows_table(q, k, products, scoring)
    content, position = rows.scores, rows.bias
    if scoring.rowwise is not None:
        position = scoring.rowwise(rows) - content
    if scoring.temperature is not None:
        content, position = (share * scoring.temperature[..., None] for share in (content, position))
    return Logits(content, position, rows.visible)


class Factors(NamedTuple):
    """Attention's weights and what they factor into: joint = content * position / z.

    Args:
        joint: p_ij, [*N S].
        content: softmax of the content alone, [*N S].
        position: the prior, [*N S].
        z: the normaliser, [*N], in (0, 1]; 0 if it underflows, in which case use `free_energy`, -ln z.
    """

    joint: Array
    content: Array
    position: Array
    z: Array


def factors(content: Float[Array, "*N S"], position: Float[Array, "*N S"], seen: Bool[Array, "*N S"]) -> Factors:
    """Theorem 1: with an additive score, attention is the product of a content and a position distribution over Z.

        p_ij = p(f_ij) p(g_ij) / Z_i,   Z_i = sum_j p(f_ij) p(g_ij)

    The only hypothesis is that the query sees a key; the content distribution may depend on the position.

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

    Z is 1 only if both are the same point mass, and 1 / n under a uniform prior over n keys, so it does not measure independence.
    It is 0 if it underflows, in which case use `free_energy`, -ln Z.

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
    """The terms of -ln Z in nats, each [*N] and at least 0.

    Args:
        kl_content: KL(attention || content), what position adds.
        kl_prior: KL(attention || prior), what content adds.
        entropy: of the attention.
    """

    kl_content: Array
    kl_prior: Array
    entropy: Array


def coupling(content: Float[Array, "*N S"], position: Float[Array, "*N S"], seen: Bool[Array, "*N S"]) -> Terms:
    """Z as information: what the joint distribution contains beyond the product, as three terms whose sum is -ln Z.

        -ln Z = sum_j p_ij ln(p_ij / (p(f_ij) p(g_ij))) = KL(joint || content) + KL(joint || prior) + H(joint)

    The product is not normalised, so this is not a mutual information: it is 0 only if both are the same point mass.

    Args:
        content, position: logits f and g, nats.
        seen: which keys are visible.

    Source: BAM appendix K.3, where Z is the inverse of theorem 1's and 0 is interpreted as independence.
    """
    logarithm = lambda logits: jax.nn.log_softmax(logits, axis=-1, where=seen)
    joint = logarithm(content + position)
    mean = lambda values: (jnp.exp(joint) * jnp.where(seen, values, 0)).sum(-1)
    return Terms(mean(joint - logarithm(content)), mean(joint - logarithm(position)), mean(-joint))
