"""The training of a byte-level BPE on one's own text."""

import sys
from collections.abc import Iterable, Iterator

from bam_jax.data.tokenizers.base import encodable
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra

END, MASK = "<eos>", "<mask>"
LEAST = 256 + 2
"""Every byte, and the end of a document and the mask: a vocabulary without a merge."""


def train_bpe(texts: Iterable[str], vocab: int, *, progress: bool | None = None) -> str:
    """Trains a byte-level BPE.

    Nothing is unknown to it and `decode` is the inverse of `encode`; every digit is a token of its own, as
    passkeys need. Text is cut into words as for GPT-2.
    """
    if vocab < LEAST:
        raise UserError(f"a vocabulary of {vocab} ids has no room for every byte, end and mask; give {LEAST} or more")
    import_extra("tokenizers", "tokenizer 'bpe'", "tokenizers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=2,
        special_tokens=[END, MASK],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=sys.stderr.isatty() if progress is None else progress,
    )
    made.train_from_iterator(map(encodable, texts), trainer)
    return made.to_str(pretty=True) + "\n"


def head(texts: Iterable[str], size: float) -> Iterator[str]:
    """Yields documents, until as many characters have gone by."""
    for text in texts:
        if size <= 0:
            return
        yield text
        size -= len(text)
