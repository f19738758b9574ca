"""Positional priors for attention: BAM, CABLE and their baselines, in JAX and Flax."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bam_jax.analysis.language_model import load
    from bam_jax.attention import attend
    from bam_jax.experiments.frame import results
    from bam_jax.report.comparison import plot_lengths

__all__ = ["__version__", "attend", "load", "plot_lengths", "results"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that commands that need none of them start sooner."""
    places = {
        "attend": "bam_jax.attention",
        "load": "bam_jax.analysis.language_model",
        "plot_lengths": "bam_jax.report.comparison",
        "results": "bam_jax.experiments.frame",
    }
    if name in places:
        return getattr(importlib.import_module(places[name]), name)
    raise AttributeError(f"module 'bam_jax' has no attribute {name!r}")
