"""What preparing a source will give and take, from a sample of it."""

import dataclasses
import itertools
import math
import time

import numpy as np

from bam_jax.data.prepared.pool import Encoder, batches
from bam_jax.data.sources.records import Part
from bam_jax.system.errors import UserError

PARTS = 16
BATCHES = 2  # of each part


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Of the whole source, extrapolated by its stored bytes.

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


def estimate(parts: list[Part], encoder: Encoder) -> Estimate:
    """Reads the beginnings of some parts, spread over the source; all but the time is always the same.

    Args:
        parts: of the source.
        encoder: tokenises the sample.

    Raises:
        UserError: there is no text in it.
    """
    picked = sorted({round(number) for number in np.linspace(0, len(parts) - 1, min(PARTS, len(parts)))})
    read = documents = tokens = text = 0
    start = time.perf_counter()
    for number in picked:
        done = 0
        for batch in itertools.islice(batches([parts[number]], (0, 0)), BATCHES):
            encoded = encoder(batch.records)
            documents += int((encoded.lengths > 0).sum())
            tokens += int(encoded.lengths.sum())
            text += int(encoded.bytes.sum())
            done = batch.read
        read += done
    if not tokens:
        raise UserError("the beginnings of the source's files hold no text; name a folder or file with some")
    seconds = time.perf_counter() - start
    scale = sum(part.size for part in parts) / max(read, 1)
    return Estimate(round(documents * scale), round(tokens * scale), round(text * scale), seconds * scale)


def threshold(holdout: int, tokens: int) -> int:
    """Below which a record's hash reserves it for the hold-out.

    Half as many again are reserved as are wanted: the estimate may be wrong, and documents differ in length.

    Args:
        holdout: tokens to hold out.
        tokens: of the whole source, estimated.

    Returns:
        Out of 2^64.

    Raises:
        UserError: more than half of the source would be reserved.
    """
    if 3 * holdout > tokens:
        raise UserError(
            f"--holdout-tokens={holdout} is more than a third of the source's tokens (about {tokens}); "
            "give a smaller one, or more text"
        )
    return math.ceil(1.5 * holdout / tokens * 2**64)
