"""An estimate, from a sample, of what preparing a source gives and takes."""

import dataclasses
import itertools
import time

import numpy as np

from bam_jax.data.prepared.tokenising import Encoder, batch_records
from bam_jax.data.sources.fragment import Fragment
from bam_jax.system.errors import UserError

FRAGMENTS = 16
"""Fragments that are looked into, at most."""
BATCHES = 2
"""Batches that are read of each."""


@dataclasses.dataclass(frozen=True)
class SourceSize:
    """The size of a whole source, extrapolated from a sample by its stored bytes.

    Args:
        documents: with tokens.
        tokens: end tokens included.
        bytes: of the text in UTF-8.
        seconds: for one process to tokenise it.
    """

    documents: int
    tokens: int
    bytes: int
    seconds: float


def estimate(fragments: list[Fragment], encoder: Encoder) -> SourceSize:
    """Reads the beginnings of some fragments, spread over the source; all but the time is always the same."""
    picked = sorted({round(number) for number in np.linspace(0, len(fragments) - 1, min(FRAGMENTS, len(fragments)))})
    read = documents = tokens = text = 0
    start = time.perf_counter()
    for number in picked:
        done = 0
        for batch in itertools.islice(batch_records([fragments[number]], (0, 0)), BATCHES):
            encoded = encoder(batch.records)
            documents += int((encoded.lengths > 0).sum())
            tokens += int(encoded.lengths.sum())
            text += int(encoded.bytes.sum())
            done = batch.read
        read += done
    if not tokens:
        raise UserError("the beginnings of the source's files hold no text; name a folder or file with some")
    seconds = time.perf_counter() - start
    scale = sum(fragment.size for fragment in fragments) / max(read, 1)
    return SourceSize(round(documents * scale), round(tokens * scale), round(text * scale), seconds * scale)
