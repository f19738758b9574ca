"""Characters of a text that are not in its tokenizer's vocabulary: reported where many, refused where most."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bam_jax.data.prepared.tokenising import BATCH, batch_records
from bam_jax.data.sources.fragment import Fragment
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system.errors import UserError

SAMPLE = 2**20  # characters that are counted, at most: a tenth of a second
TEXTS = 256  # documents that are looked into, about, where they are in memory
REPORTED, REFUSED = 0.01, 0.5  # the share from which on it is reported, and above which the text is refused


class OutOfVocabulary(NamedTuple):
    """The share of a sample's characters that a tokenizer cannot distinguish from others."""

    share: float
    sample: int  # characters

    def line(self, source: str, tokenizer: Tokenizer, option: str) -> str:
        """A line about them; "" where they are few."""
        if self.share < REPORTED:
            return ""
        found = (
            f"of {self.sample:,} characters of {source}, {self.share:.0%} are unknown to the tokenizer {tokenizer.name!r}, "
            f"which reads them all alike"
        )
        if self.share > REFUSED:
            raise UserError(f"{found}; give {option}=byte, which knows every character")
        return f"{found} ({option}=byte knows every character)"


def count_in_texts(texts: Sequence[str], tokenizer: Tokenizer) -> OutOfVocabulary:
    picked = texts[:: max(1, len(texts) // TEXTS)]
    return _count((text[: SAMPLE // len(picked)] for text in picked), tokenizer)


def count_in_source(fragments: list[Fragment], tokenizer: Tokenizer) -> OutOfVocabulary:
    """Counts at the beginning of a source."""
    batches = itertools.islice(batch_records(fragments, (0, 0)), SAMPLE // BATCH)
    return _count((text[:BATCH] for batch in batches for record in batch.records for text in record), tokenizer)


def _count(texts: Iterable[str], tokenizer: Tokenizer) -> OutOfVocabulary:
    sample = "".join(texts)
    return OutOfVocabulary(tokenizer.out_of_vocabulary_share(sample), len(sample))
