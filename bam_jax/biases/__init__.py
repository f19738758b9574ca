"""Positional biases as scalar formulas of two coordinates.

Each bias is a small frozen pytree. Its leaves are parameters per head, and a call evaluates the formula for one head, elementwise
in broadcastable coordinates `i` (query side) and `j` (key side). Nothing here depends on tensors, batches or kernels; `table`
evaluates a formula for all heads, queries and keys.

>>> import jax.numpy as jnp
>>> from bam_jax import biases
>>> i, j = jnp.arange(3.)[:, None], jnp.arange(3.)[None, :]
>>> print(biases.ALiBi(slope=0.5)(i, j))
[[-0.  -0.5 -1. ]
 [-0.5 -0.  -0.5]
 [-1.  -0.5 -0. ]]
"""

from bam_jax.biases.base import Bias, Monotone, Relative, bias, head_axes, shared, static, table
from bam_jax.biases.context_aware import CABLE, KCABLE, ContextualGaussian, Difference, GatedDistance
from bam_jax.biases.decay import AdditiveDecay, Gaussian, Sandwich, StudentT, sandwich_compression
from bam_jax.biases.effective import log_effective_keys
from bam_jax.biases.mixture import Mixture
from bam_jax.biases.path import PaTH, PathIntegral
from bam_jax.biases.prior import (
    CAP,
    FIRE,
    T5,
    ALiBi,
    Band,
    GeneralisedGaussian,
    KerpleLog,
    KerplePower,
    T5Distance,
    Uniform,
    alibi_slopes,
    t5_starts,
)
from bam_jax.biases.rowwise import DAPE, CoPE, RelativeKeys, Rows, Rowwise
from bam_jax.biases.sharpened import AdaptiveTemperature, Entmax, Sharpened

__all__ = [
    "CABLE",
    "CAP",
    "DAPE",
    "FIRE",
    "KCABLE",
    "T5",
    "ALiBi",
    "AdaptiveTemperature",
    "AdditiveDecay",
    "Band",
    "Bias",
    "CoPE",
    "ContextualGaussian",
    "Difference",
    "Entmax",
    "GatedDistance",
    "Gaussian",
    "GeneralisedGaussian",
    "KerpleLog",
    "KerplePower",
    "Mixture",
    "Monotone",
    "PaTH",
    "PathIntegral",
    "Relative",
    "RelativeKeys",
    "Rows",
    "Rowwise",
    "Sandwich",
    "Sharpened",
    "StudentT",
    "T5Distance",
    "Uniform",
    "alibi_slopes",
    "bias",
    "head_axes",
    "log_effective_keys",
    "sandwich_compression",
    "shared",
    "static",
    "t5_starts",
    "table",
]
