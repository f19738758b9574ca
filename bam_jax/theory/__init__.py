"""The Bayesian reading of attention: a prior over positions, its factorisation, and the paper's lemmas and theorems.

Logits are in nats and include the temperature and 1 / sqrt(D), so attention's weights are their softmax over visible keys:

    p_ij = softmax_j(f_ij + g_ij),   f: content, tau q.k / sqrt(D);   g: position, tau b(u_i, u_j)

Each docstring gives the hypotheses that its statement needs, and any difference from the paper's text; docs/theory.md
collects them.

Source: BAM sections 2.1 to 2.4, appendices B and K.
"""

from bam_jax.theory.factorisation import Factors, Logits, Terms, coupling, factors, free_energy, logits, overlap
from bam_jax.theory.limits import blind_eps, crossover, local_beyond, nope_ratio, posterior_bounds, seen_beyond
from bam_jax.theory.priors import LOCAL, effective_length, head_class, laplace, prior, prior_by_distance, uniform

__all__ = [
    "LOCAL",
    "Factors",
    "Logits",
    "Terms",
    "blind_eps",
    "coupling",
    "crossover",
    "effective_length",
    "factors",
    "free_energy",
    "head_class",
    "laplace",
    "local_beyond",
    "logits",
    "nope_ratio",
    "overlap",
    "posterior_bounds",
    "prior",
    "prior_by_distance",
    "seen_beyond",
    "uniform",
]
