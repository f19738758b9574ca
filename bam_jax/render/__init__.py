"""Figures and pages from numbers and texts; nothing here reads a file."""

from bam_jax.render.curves import Curve, Curves, Seed, heat_map, lengths, losses, passkey, perplexity, positions, times
from bam_jax.render.fractions import Grid, grids
from bam_jax.render.learned import Heads, classes, coupling, priors, scales, scatter
from bam_jax.render.maps import attention, tables

__all__ = [
    "Curve",
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
