"""Training of a byte-level BPE, or of BERT's WordPiece, on your own text."""

import string
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from bam_jax.data.tokenizers.interface import encodable
from bam_jax.data.tokenizers.subwords import wordpiece
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra

END, MASK = "<eos>", "<mask>"
LEAST = 256 + 2  # every byte, the end token and the mask: a vocabulary without merges
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 1000  # maximum number of characters with their own piece; a word with any other is unknown


def train_bpe(texts: Iterable[str], vocab: int, *, progress: bool | None = None) -> str:
    """Train a byte-level BPE on words split as for GPT-2; every digit is a token of its own, as passkeys need."""
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


def train_wordpiece(texts: Iterable[str], vocab: int, *, progress: bool | None = None) -> str:
    """Train a WordPiece on lower-case text without accents, like that of bert-base-uncased."""
    import_extra("tokenizers", "tokenizer 'bert'", "tokenizers")
    from tokenizers import trainers

    made = wordpiece(SPECIAL, lowercase=True)
    alphabet = _alphabet(texts, made)
    # The library numbers pieces inside words in the order of a hash table, and orders equally frequent pairs by these numbers.
    # Passed as special tokens, the pieces have a fixed order, so that the same text gives the same vocabulary.
    inside = [f"##{character}" for character in alphabet if _continues(character, made)]
    least = len(SPECIAL) + len(alphabet) + len(inside)
    if vocab < least:
        raise UserError(f"a vocabulary of {vocab} pieces has no room for the text's characters; give {least} or more")
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab,
        min_frequency=2,
        special_tokens=[*SPECIAL, *inside],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=sys.stderr.isatty() if progress is None else progress,
    )
    made.train_from_iterator(map(encodable, texts), trainer)
    pieces: dict[str, int] = made.get_vocab()
    return "".join(f"{piece}\n" for piece in sorted(pieces, key=pieces.__getitem__))


def _alphabet(texts: Iterable[str], made: Any) -> list[str]:
    """The digits and the most frequent characters of normalised texts, sorted."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(made.normalizer.normalize_str(encodable(text)))
    kept = [character for character in counts if not character.isspace() and character not in string.digits]
    kept.sort(key=lambda character: (-counts[character], character))
    return sorted([*string.digits, *kept[: ALPHABET - len(string.digits)]])


def _continues(character: str, made: Any) -> bool:
    """True if a word may continue with a character: punctuation and Chinese characters are words of their own."""
    word = made.normalizer.normalize_str(f"a{character}")
    return len(made.pre_tokenizer.pre_tokenize_str(word)) == 1
