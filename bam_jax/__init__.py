"""Positional priors in attention: BAM, CABLE and what they compare with, in JAX and Flax."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bam_jax.analysis.language_model import load
    from bam_jax.attention import attend
    from bam_jax.experiments.frame import results

__all__ = ["__version__", "attend", "load", "results"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """A public name, imported when it is asked for: a command that needs none of them starts sooner."""
    if name == "attend":
        from bam_jax.attention import attend

        return attend
    if name == "load":
        from bam_jax.analysis.language_model import load

        return load
    if name == "results":
        from bam_jax.experiments.frame import results

        return results
    raise AttributeError(f"module 'bam_jax' has no attribute {name!r}")
