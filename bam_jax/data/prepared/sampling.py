"""Reads a source before it is prepared: its size, the records to hold out or draw, the characters that the tokenizer lacks.

A record is held out if its hash is below one threshold, and skipped if its hash reaches another. Hashes do not depend on
interruptions of the command or on the number of workers, and equal records are on the same side of a threshold.
"""

import array
import dataclasses
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bam_jax.data.prepared.tokenising import ALL_HASHES, BATCH, Encoder, batch_records
from bam_jax.data.sources.fragment import Fragment
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system import console
from bam_jax.system.errors import UserError

FRAGMENTS = 16  # fragments that are sampled, at most
BATCHES = 2  # batches that are read of each
SAMPLE = 2**20  # characters that are counted, at most: a tenth of a second
TEXTS = 256  # documents that are sampled if they are in memory, approximately
REPORTED, REFUSED = 0.01, 0.5  # least out-of-vocabulary share that is reported, share above which the text is refused


@dataclasses.dataclass(frozen=True)
class SourceSize:
    """The size of a whole source, extrapolated from a sample by its stored bytes."""

    documents: int  # with tokens
    tokens: int  # end tokens included
    bytes: int  # of the text in UTF-8
    seconds: float  # for one process to tokenise it


def estimate(fragments: list[Fragment], encoder: Encoder) -> SourceSize:
    """Read the beginnings of some fragments, spread over the source. The result is deterministic except for the time."""
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


def reserve(holdout: int, tokens: int) -> int:
    """The hash below which a record is reserved for a hold-out of `holdout` tokens."""
    if 3 * holdout > tokens:
        raise UserError(
            f"--holdout-tokens={holdout} is more than a third of the source's tokens (about {tokens}); "
            "give a smaller one, or more text"
        )
    # Half as many again as requested: the estimate may be wrong, and documents differ in length.
    return math.ceil(1.5 * holdout / tokens * 2**64)


def draw(fragments: list[Fragment], encoder: Encoder, held_out: int, train: int | None) -> tuple[int, int]:
    """Read a whole source and draw its records: those with the smallest hashes to hold out, the next ones to train on.

    Every record is equally likely. It takes eight bytes of memory per record of the source, and the largest record.
    """
    collected = array.array("Q")  # eight bytes each; a list of integers would take forty
    with console.progress(sum(fragment.size for fragment in fragments), unit="B", label="drawing") as bar:
        bar.unit_scale = True
        before = 0
        for fragment in fragments:
            for record, read in fragment.read():
                if all(text.strip() for text in record):
                    collected.append(encoder.hash(record))
                bar.update(before + read - bar.n)
            before += fragment.size
    hashes = np.frombuffer(collected, np.uint64) if collected else np.empty(0, np.uint64)
    hashes.sort()
    if 3 * held_out > len(hashes):
        raise UserError(
            f"--holdout-records={held_out} is more than a third of the source's {len(hashes)} records; "
            "give a smaller one, or more text"
        )
    if held_out:
        last = hashes[held_out - 1]
        threshold = int(last) + 1
        rest = hashes[np.searchsorted(hashes, last, side="right") :]  # copies of the last record are not trained on
    else:
        threshold, rest = 0, hashes
    return threshold, ALL_HASHES if train is None or train >= len(rest) else int(rest[train - 1]) + 1


class OutOfVocabulary(NamedTuple):
    """The share of a sample's characters that a tokenizer cannot distinguish from others."""

    share: float
    sample: int  # characters

    def line(self, source: str, tokenizer: Tokenizer, option: str) -> str:
        if self.share < REPORTED:
            return ""
        found = f"of {self.sample:,} characters of {source}, {self.share:.0%} are unknown to the tokenizer {tokenizer.name!r}"
        found += ", which reads them all alike"
        if self.share > REFUSED:
            raise UserError(f"{found}; give {option}=byte, which knows every character")
        return f"{found} ({option}=byte knows every character)"


def count_in_texts(texts: Sequence[str], tokenizer: Tokenizer) -> OutOfVocabulary:
    picked = texts[:: max(1, len(texts) // TEXTS)]
    return _count((text[: SAMPLE // len(picked)] for text in picked), tokenizer)


def count_in_source(fragments: list[Fragment], tokenizer: Tokenizer) -> OutOfVocabulary:
    batches = itertools.islice(batch_records(fragments, (0, 0)), SAMPLE // BATCH)
    return _count((text[:BATCH] for batch in batches for record in batch.records for text in record), tokenizer)


def _count(texts: Iterable[str], tokenizer: Tokenizer) -> OutOfVocabulary:
    sample = "".join(texts)
    return OutOfVocabulary(tokenizer.out_of_vocabulary_share(sample), len(sample))
