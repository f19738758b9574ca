"""Text, tokenizers, passkeys and the batches made of them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bam_jax.data.loader import batches, held_out
    from bam_jax.data.sources.corpus import documents, split
    from bam_jax.data.tokenizers import TOKENIZERS, Tokenizer, tokenizer

__all__ = ["TOKENIZERS", "Tokenizer", "batches", "documents", "held_out", "split", "tokenizer"]

_HOMES = {"sources.corpus": ("documents", "split"), "loader": ("batches", "held_out")}


def __getattr__(name: str) -> Any:
    """Imports on first use: preparing data starts in each of its processes without grain and jax."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "tokenizers")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
