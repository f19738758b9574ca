"""The priors that a BAM model has learned, read from its newest checkpoint."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from bam_jax import biases, theory
from bam_jax.models.head_parameters import head_parameters
from bam_jax.render.learned import Heads
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, run_folder


def learned_priors(run: Path) -> Heads:
    """The priors of a trained BAM model, each parameter [layers, heads]."""
    encoding = run_folder.read_config(run).encoding
    if encoding != "bam":
        raise UserError(f"{run} has no BAM priors, its encoding is {encoding!r}; give a run of --config.encoding=bam")
    found = head_parameters(checkpoint.restore_model(run)[2])
    return Heads(found["shape"], found["log_scale"], found["loc"])


def prior_weights(heads: Heads, context: int) -> np.ndarray:
    """The prior of every head for the last query of a context, [layers, heads, context].

        p(j) = exp(b(i, j)) / sum_j' exp(b(i, j')),   j <= i = context - 1

    Source: BAM, definition 2 and figure 1.
    """
    layers = (biases.GeneralisedGaussian(*layer) for layer in zip(*map(jnp.asarray, heads), strict=True))
    # The priors go by distance, nearest first; pages and figures go by position, the query last.
    return np.stack([theory.prior_by_distance(layer, context)[:, ::-1] for layer in layers]).astype(np.float64)
