"""Positional priors in attention: BAM, CABLE and what they compare with, in JAX and Flax."""

import itertools
import signal
import sys
from typing import TYPE_CHECKING, Any

# While `python -m bam_jax...` imports a command, Ctrl-C ends it at once: libraries' imports print it as a traceback, or lose it.
# `errors.run` gives Python's handler back. Other commands that import this package keep it.
_ours = any(option == "-m" and name.split(".")[0] == __name__ for option, name in itertools.pairwise(sys.orig_argv))
if sys.argv[:1] == ["-m"] and _ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

if TYPE_CHECKING:
    from bam_jax.analysis.language_model import load
    from bam_jax.attention import attend

__all__ = ["__version__", "attend", "load"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """A public name, imported when it is asked for: a command that needs none of them starts sooner."""
    if name == "attend":
        from bam_jax.attention import attend

        return attend
    if name == "load":
        from bam_jax.analysis.language_model import load

        return load
    raise AttributeError(f"module 'bam_jax' has no attribute {name!r}")
