"""Text, tokenizers, passkeys and the batches made of them."""

from bam_jax.data.corpus import documents, split
from bam_jax.data.loader import batches, held_out
from bam_jax.data.tokenizers import TOKENIZERS, Tokenizer, tokenizer

__all__ = ["TOKENIZERS", "Tokenizer", "batches", "documents", "held_out", "split", "tokenizer"]
