"""Tokenises records in worker processes, with results in the order of the records and bounded memory."""

import collections
import concurrent.futures
import dataclasses
import hashlib
import itertools
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator

import numpy as np

from bam_jax.data.sources.fragment import Fragment, Record
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system.errors import UserError
from bam_jax.system.parent import end_with_parent

BATCH = 2**18  # characters after which a batch is full; a longer record is a batch by itself
RECORD = 16  # characters that a record counts besides its text, which also bounds batches of empty records
ALL_HASHES = 2**64  # greater than every hash of a record
_AHEAD = 4  # batches per worker that wait for a worker or to be consumed


@dataclasses.dataclass(frozen=True)
class RecordBatch:
    """Consecutive records of a source."""

    records: tuple[Record, ...]
    ends: tuple[tuple[int, int], ...]  # the position in the source after each record: [fragment, record in it]
    read: int  # stored bytes of the source up to the end of the batch


@dataclasses.dataclass(frozen=True)
class EncodedBatch:
    """The ids of a batch of records."""

    ids: np.ndarray  # of all texts end to end, [tokens], each text with its end token if there is one
    # [records, texts] int64; zeros: the record is skipped, as it has a text without tokens or is not drawn
    lengths: np.ndarray
    hashes: np.ndarray  # [records] uint64, of the texts and the seed only: equal texts have equal hashes
    bytes: np.ndarray  # [records] int64, of the texts in UTF-8


def batch_records(fragments: list[Fragment], start: tuple[int, int]) -> Iterator[RecordBatch]:
    """The records of a source in batches, starting at a position: [fragment, record in it]."""
    records: list[Record] = []
    ends: list[tuple[int, int]] = []
    size, before = 0, sum(fragment.size for fragment in fragments[: start[0]])
    reached = before  # the end of the last record that is in a batch
    for number, fragment in enumerate(fragments[start[0] :], start[0]):
        first = start[1] if number == start[0] else 0
        for index, (record, read) in enumerate(itertools.islice(fragment.read(), first, None), first + 1):
            length = _weigh(record)
            if records and size + length > BATCH:
                yield RecordBatch(tuple(records), tuple(ends), reached)
                records, ends, size = [], [], 0
            records.append(record)
            ends.append((number, index))
            size += length
            reached = before + read
        before += fragment.size
    if records:
        yield RecordBatch(tuple(records), tuple(ends), before)


class Encoder:
    """Tokenises batches of records, except those whose hash is not below `below`; it can be pickled."""

    def __init__(self, tokenizer: Tokenizer, seed: int, below: int = ALL_HASHES) -> None:
        self.dtype = "<u2" if tokenizer.size <= 2**16 else "<u4"
        self._tokenizer = tokenizer
        self._ending = np.array([] if tokenizer.eos is None else [tokenizer.eos], self.dtype)
        self._below = below
        self._key = seed.to_bytes(8, "little", signed=True)

    def __call__(self, records: tuple[Record, ...]) -> EncodedBatch:
        raw = [_to_bytes(record) for record in records]
        hashes = [self._hash(texts) for texts in raw]
        texts: list[str] = []
        for record, digest in zip(records, hashes, strict=True):
            # Skipped texts are tokenised as empty ones, so that indices do not shift.
            texts += [text if digest < self._below and text.strip() else "" for text in record]
        encoded = self._tokenizer.encode_batch(texts)
        fields = len(records[0])
        lengths = np.array([len(ids) for ids in encoded], np.int64).reshape(-1, fields)
        full = np.all(lengths > 0, axis=1)
        pieces = [np.empty(0, self.dtype)]
        for ids, has_all in zip(encoded, np.repeat(full, fields).tolist(), strict=True):
            if has_all:
                pieces += [ids.astype(self.dtype), self._ending]
        return EncodedBatch(
            ids=np.concatenate(pieces),
            lengths=(lengths + len(self._ending)) * full[:, None],
            hashes=np.array(hashes, np.uint64),
            bytes=np.array([sum(map(len, texts)) for texts in raw], np.int64),
        )

    def hash(self, record: Record) -> int:
        return self._hash(_to_bytes(record))

    def _hash(self, texts: list[bytes]) -> int:
        digest = hashlib.blake2b(key=self._key, digest_size=8)
        for text in texts:
            # The length separates the texts: ("ab", "c") and ("a", "bc") are different records.
            digest.update(len(text).to_bytes(8, "little"))
            digest.update(text)
        return int.from_bytes(digest.digest(), "little")


def tokenise(
    batches: Iterator[RecordBatch], encoder: Encoder, workers: int
) -> Generator[tuple[RecordBatch, EncodedBatch]]:
    """Batches with their ids, in order."""
    if workers == 0:
        for batch in batches:
            yield batch, encoder(batch.records)
        return
    waiting: collections.deque[tuple[RecordBatch, int, concurrent.futures.Future[EncodedBatch]]] = collections.deque()
    # The reader is faster than the workers. Without a bound, the whole source would wait in memory.
    room = _AHEAD * workers * BATCH  # characters; a longer record waits until it is alone
    context = multiprocessing.get_context("spawn")  # forked processes would inherit locks that threads hold
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _begin_worker, (encoder,))
    try:
        _start_workers(pool, workers)
        for batch in batches:
            size = sum(map(_weigh, batch.records))
            while waiting and room < size:
                done, freed, future = waiting.popleft()
                room += freed
                yield done, future.result()
            waiting.append((batch, size, pool.submit(_encode, batch.records)))
            room -= size
        while waiting:
            done, _, future = waiting.popleft()
            yield done, future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, perhaps for lack of memory; run the same command again, with fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _weigh(record: Record) -> int:
    """The number of characters that a record counts for in a batch."""
    return sum(map(len, record), RECORD)


def _to_bytes(record: Record) -> list[bytes]:
    return [text.encode("utf-8", "surrogatepass") for text in record]


_WORKER: dict[str, Encoder] = {}  # this worker's, sent once: pickling it with every batch would cost more than the text


def _start_workers(pool: concurrent.futures.ProcessPoolExecutor, workers: int) -> None:
    """Start the workers with Ctrl-C blocked: it is sent to the whole process group, but the parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # children inherit it
    try:
        for _ in range(workers):
            pool.submit(os.getpid)  # each task starts a process while there are too few
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(encoder: Encoder) -> None:
    end_with_parent()  # otherwise it would wait for work forever
    _WORKER["encoder"] = encoder


def _encode(records: tuple[Record, ...]) -> EncodedBatch:
    return _WORKER["encoder"](records)
