"""The characters of a text that its tokenizer lacks: counted in a sample, said where many, refused where most."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bam_jax.data.prepared.tokenising import BATCH, batch_records
from bam_jax.data.sources.fragment import Fragment
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system.errors import UserError

SAMPLE = 2**20
"""Characters that are counted, at most: it takes a tenth of a second, however large the text is."""
TEXTS = 256
"""Documents that are looked into, about, where they are in memory."""
SAID, REFUSED = 0.01, 0.5
"""The shares from which on they are said, and above which the text is refused."""


class Unknown(NamedTuple):
    """The share of characters that a tokenizer cannot tell from others.

    Args:
        share: of the sample.
        sample: characters of it.
    """

    share: float
    sample: int

    def line(self, source: str, tokenizer: Tokenizer, option: str) -> str:
        """A line about them; "" where they are few."""
        if self.share < SAID:
            return ""
        said = (
            f"of {self.sample:,} characters of {source}, {self.share:.0%} are unknown to the tokenizer {tokenizer.name!r}, "
            f"which reads them all alike"
        )
        if self.share > REFUSED:
            raise UserError(f"{said}; give {option}=byte, which knows every character")
        return f"{said} ({option}=byte knows every character)"


def count_in_texts(texts: Sequence[str], tokenizer: Tokenizer) -> Unknown:
    """The unknown characters in the beginnings of documents that are spread over all."""
    picked = texts[:: max(1, len(texts) // TEXTS)]
    return _count((text[: SAMPLE // len(picked)] for text in picked), tokenizer)


def count_in_source(fragments: list[Fragment], tokenizer: Tokenizer) -> Unknown:
    """The unknown characters at the beginning of a source."""
    batches = itertools.islice(batch_records(fragments, (0, 0)), SAMPLE // BATCH)
    return _count((text[:BATCH] for batch in batches for record in batch.records for text in record), tokenizer)


def _count(texts: Iterable[str], tokenizer: Tokenizer) -> Unknown:
    sample = "".join(texts)
    return Unknown(tokenizer.unknown_share(sample), len(sample))
