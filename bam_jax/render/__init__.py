"""Figures from numbers; nothing here reads a file."""

from bam_jax.render.curves import Curve, Curves, lengths, losses, passkey, perplexity, positions, times
from bam_jax.render.learned import Heads, classes, coupling, priors, scales, scatter
from bam_jax.render.maps import Grid, attention, grids, tables

__all__ = [
    "Curve",
    "Curves",
    "Grid",
    "Heads",
    "attention",
    "classes",
    "coupling",
    "grids",
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
