"""Text to token ids and back."""

from collections.abc import Callable

from bam_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from bam_jax.data.tokenizers.interface import ByteTokenizer, CharTokenizer, Tokenizer
from bam_jax.data.tokenizers.mistral import MistralTokenizer
from bam_jax.data.tokenizers.subwords import BertTokenizer, BPETokenizer
from bam_jax.system.errors import UserError, nearest

__all__ = [
    "TOKENIZERS",
    "BPETokenizer",
    "BertTokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "GPT2Tokenizer",
    "MistralTokenizer",
    "Tokenizer",
    "tokenizer",
]

TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "bert": BertTokenizer,
    "bpe": BPETokenizer,
    "byte": ByteTokenizer,
    "char": CharTokenizer,
    "gpt2": GPT2Tokenizer,
    "mistral": MistralTokenizer,
}
BUILT_IN = ("byte", "char", "mistral")  # the tokenizers that take no path


def tokenizer(spec: str) -> Tokenizer:
    """The tokenizer of a name, or of a name and a path.

    >>> tokenizer("byte").encode("hi")
    array([104, 105], dtype=int32)
    """
    name, colon, path = spec.partition(":")
    if name not in TOKENIZERS:
        raise UserError(f"unknown tokenizer {spec!r}; {nearest(name, TOKENIZERS)}")
    if colon and name in BUILT_IN:
        raise UserError(f"tokenizer {spec!r}: {name} takes no path; give just {name}")
    return TOKENIZERS[name]() if name in BUILT_IN else TOKENIZERS[name](path)
