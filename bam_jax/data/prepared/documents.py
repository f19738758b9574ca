"""Tokenised documents that can be read in any order: texts in memory, or a prepared folder."""

import functools
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from bam_jax.config import DataConfig
from bam_jax.data.prepared.copies import local
from bam_jax.data.prepared.manifest import SPLITS, is_prepared, read_manifest
from bam_jax.data.prepared.sampling import count_in_texts
from bam_jax.data.prepared.shards import open_split
from bam_jax.data.sources.corpus import STDLIB, divide, names_corpus, read_texts
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system.errors import UserError, nearest

IN_MEMORY = 2**28  # maximum characters of an unprepared source; each document counts `_DOCUMENT` more
_DOCUMENT = 128  # memory that a document takes besides its text, in characters


class Documents(Protocol):
    """Tokenised documents that can be read in any order."""

    lengths: np.ndarray  # tokens of each document, its end token included: [N] int32; read shard by shard
    shards: np.ndarray  # the number of each shard's first document, and N: [S + 1] int64
    checksum: int  # the CRC-32 of all ids, or of the shards' own checksums

    def read(self, numbers: np.ndarray) -> list[np.ndarray]:
        """The ids of the documents with these numbers, [tokens] int32 each; numbers [documents] int64, in any order."""


class InMemory:
    """Documents made from texts, in one shard; each with its end token if the tokenizer has one."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        self.out_of_vocabulary = count_in_texts(texts, tokenizer)
        ending = np.array([] if tokenizer.eos is None else [tokenizer.eos], np.int32)
        encoded = [np.concatenate([tokenizer.encode(text), ending]) for text in texts]
        self.lengths = np.array([len(ids) for ids in encoded], np.int32)
        self.shards = np.array([0, len(encoded)], np.int64)
        self._stream = np.concatenate([np.zeros(0, np.int32), *encoded])
        self._stops = np.cumsum(self.lengths, dtype=np.int64)
        self.checksum = zlib.crc32(self._stream, zlib.crc32(self.lengths))

    def read(self, numbers: np.ndarray) -> list[np.ndarray]:
        stops = self._stops[numbers]
        starts = stops - self.lengths[numbers]
        return [self._stream[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


class Begun:
    """Documents with a begin token in front of each; pickled as the documents and the token."""

    def __init__(self, documents: Documents, bos: int) -> None:
        self._documents = documents
        self._bos = np.array([bos], np.int32)
        self.lengths = documents.lengths + 1
        self.shards, self.checksum = documents.shards, documents.checksum

    def read(self, numbers: np.ndarray) -> list[np.ndarray]:
        return [np.concatenate([self._bos, ids]) for ids in self._documents.read(numbers)]

    def __reduce__(self) -> tuple:
        return Begun, (self._documents, int(self._bos[0]))


def open_documents(data: DataConfig, tokenizer: Tokenizer, split: str = "train") -> Documents:
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}; {nearest(split, SPLITS)}")
    source = local(source_of(data, split))
    if not is_prepared(source):
        return InMemory(_read_split(data, split), tokenizer)
    manifest = read_manifest(source)
    tokenizer.check(manifest.tokenizer["hash"], f"{source} (prepared with {manifest.tokenizer['spec']})")
    if (manifest.tokenizer["size"], manifest.tokenizer["eos"]) != (tokenizer.size, tokenizer.eos):
        raise UserError(
            f"{source} says another size or end of tokenizer {tokenizer.spec!r} than it has; prepare it anew"
        )
    # A folder that is used only for evaluation may have been prepared without a hold-out.
    whole = data.held_out_source != "" and split == "held_out" and not manifest.documents("held_out")
    return open_split(source, "train" if whole else split)


def source_of(data: DataConfig, split: str) -> str:
    return data.held_out_source if data.held_out_source and split == "held_out" else data.source


def _read_split(data: DataConfig, split: str) -> list[str]:
    if data.held_out_source and split == "held_out":
        return list(_read_bounded(data.held_out_source, data.text_field))
    holdout = 0.0 if data.held_out_source else data.holdout
    if data.source == STDLIB:  # constant within a process, and takes two seconds to read
        divided = _divide_stdlib(holdout)
    else:
        divided = divide(_read_bounded(data.source, data.text_field), holdout)
    return divided[SPLITS.index(split)]


def _read_bounded(source: str, text_field: str) -> Iterator[str]:
    room = IN_MEMORY
    for text in read_texts(source, text_field):
        room -= len(text) + _DOCUMENT
        if room < 0:
            option = "preset" if names_corpus(source) else "source"
            raise UserError(
                f"data source {source} has more than {IN_MEMORY:,} characters, too many to be held in memory; prepare it: "
                f"python -m bam_jax.data.prepare --{option}={source} --tokenizer=... --out=FOLDER"
            )
        yield text


@functools.cache
def _divide_stdlib(holdout: float) -> tuple[list[str], list[str]]:
    return divide(read_texts(STDLIB), holdout)


class Reader:
    """A reader of documents that caches the last one, so that a document that continues in the next rows is read only once."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._last: dict[int, np.ndarray] = {}

    def __call__(self, numbers: np.ndarray) -> list[np.ndarray]:
        wanted = numbers.tolist()
        new = np.array([number for number in dict.fromkeys(wanted) if number not in self._last], np.int64)
        documents = self._last | dict(zip(new.tolist(), self._documents.read(new), strict=True))
        self._last = {number: documents[number] for number in wanted[-1:]}
        return [documents[number] for number in wanted]
