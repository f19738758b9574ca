"""The papers' figures as functions from numbers to matplotlib figures; none of them reads a file.

`python -m bam_jax.figures NAME --run=runs/x` draws those of a checkpoint.
"""

from bam_jax.figures.curves import Curves, Seed, heat_map, lengths, losses, passkey, perplexity, positions, times
from bam_jax.figures.grids import Grid, grids
from bam_jax.figures.heads import Heads, classes, coupling, priors, scales, scatter
from bam_jax.figures.maps import attention, tables

__all__ = [
    "Curves",
    "Grid",
    "Heads",
    "Seed",
    "attention",
    "classes",
    "coupling",
    "grids",
    "heat_map",
    "lengths",
    "losses",
    "passkey",
    "perplexity",
    "positions",
    "priors",
    "scales",
    "scatter",
    "tables",
    "times",
]
