"""The shards of a prepared folder: written one after another, read in any order, verified byte by byte.

manifest.json                what the shards were made from, and the counts and checksums of each
train-00000.array_record     one document per record: its token ids as little-endian uint16, or uint32 for large vocabularies
train.lengths                number of tokens of each document of the split, end tokens included, as little-endian int32
held_out-00000.array_record, held_out.lengths
"""

import array
import contextlib
import functools
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bam_jax.data.prepared.manifest import SPLITS, Manifest, Shard, read_manifest, shard_name
from bam_jax.system import console, regular
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.extras import import_extra

# A record is a chunk of its own, so that reading a document reads nothing else; ids hardly compress.
_WRITER = "group_size:1,uncompressed"
# Documents are read in random order, so reading ahead does not help.
_READER = "readahead_buffer_size:0,max_parallelism:0"
_OPEN = 256  # shards that a reader keeps open; a process may open some 1,000 files


class Split:
    """The documents of one split (`Documents`). Pickled as its path; each process opens the files when it reads."""

    def __init__(self, folder: Path, manifest: Manifest, name: str) -> None:
        if manifest.next is not None:
            raise UserError(f"{folder} is not complete; run its prepare command again, it goes on where it stopped")
        self.manifest = manifest
        self._folder, self._name = folder, name
        shards = manifest.shards[name]
        self._files = [folder / shard.name for shard in shards]
        for shard, file in zip(shards, self._files, strict=True):
            _check_size(file, shard.bytes)
        self.shards = np.cumsum([0, *(shard.documents for shard in shards)], dtype=np.int64)
        self.checksum = zlib.crc32("".join(shard.sha256 for shard in shards).encode())
        lengths = lengths_path(folder, name)
        _check_size(lengths, 4 * int(self.shards[-1]))
        self.lengths: np.ndarray = np.empty(0, np.int32)
        if self.shards[-1]:  # an empty file cannot be mapped
            with open(lengths, "rb", opener=regular.opener) as mapped:
                self.lengths = np.memmap(mapped, "<i4", mode="r")
        self._dtype = np.dtype(manifest.dtype)
        # Lengths determine positions in rows and memory, so wrong ones are detected here, not in the middle of training.
        for shard, first in zip(shards, self.shards[:-1].tolist(), strict=True):
            own = self.lengths[first : first + shard.documents]
            fits = own.min(initial=0) >= 0 and shard.tokens * self._dtype.itemsize <= shard.bytes
            if not fits or own.sum(dtype=np.int64) != shard.tokens:
                raise _damaged(lengths, f"its lengths are not those of {shard.name}")
        self._open_reader = functools.lru_cache(maxsize=_OPEN)(_open_reader)

    def __len__(self) -> int:
        return int(self.shards[-1])

    def __reduce__(self) -> tuple:
        return open_split, (self._folder, self._name)

    def read(self, numbers: np.ndarray) -> list[np.ndarray]:
        numbers = np.asarray(numbers, np.int64)
        owners = np.searchsorted(self.shards, numbers, side="right") - 1
        documents: list[np.ndarray] = [np.empty(0, np.int32)] * len(numbers)
        for shard in np.unique(owners).tolist():  # one call for all documents of a shard
            places = np.flatnonzero(owners == shard)
            chosen = numbers[places]
            file = self._files[shard]
            try:
                records = self._open_reader(file).read((chosen - self.shards[shard]).tolist())
            except (RuntimeError, IndexError) as error:  # raised by array_record for a wrong checksum
                raise _damaged(file, str(error)) from error
            for place, record, length in zip(places.tolist(), records, self.lengths[chosen].tolist(), strict=True):
                documents[place] = self._ids(record, length, file)
        return documents

    def _ids(self, record: bytes, length: int, file: Path) -> np.ndarray:
        """The ids of a record, [tokens] int32, checked against the lengths and the vocabulary."""
        if len(record) != length * self._dtype.itemsize:
            raise _damaged(file, f"a document of {len(record)} bytes has {length} tokens")
        ids = np.frombuffer(record, self._dtype)
        if ids.max(initial=0) >= self.manifest.tokenizer["size"]:
            raise _damaged(file, f"it has the id {ids.max()}, which its tokenizer has not")
        return ids.astype(np.int32)


def open_split(folder: str | os.PathLike, name: str) -> Split:
    """The documents of a split of a prepared folder; opening sums all lengths, and reads no documents."""
    if name not in SPLITS:
        raise UserError(f"unknown split {name!r}; {nearest(name, SPLITS)}")
    return Split(Path(folder), read_manifest(folder), name)


def verify(folder: str | os.PathLike) -> None:
    folder = Path(folder)
    manifest = read_manifest(folder)
    total = sum(shard.bytes for shards in manifest.shards.values() for shard in shards)
    with console.progress(total, unit="B", label="verifying") as bar:
        for split, shards in manifest.shards.items():
            lengths, start = lengths_path(folder, split), 0
            # In an incomplete folder, lengths of an unfinished shard may follow.
            _check_size(lengths, 4 * manifest.documents(split), exactly=manifest.next is None)
            for shard in shards:
                _check_size(folder / shard.name, shard.bytes)
                if sha256(folder / shard.name) != shard.sha256:
                    raise _damaged(folder / shard.name, "its checksum is another")
                if sha256(lengths, start, 4 * shard.documents) != shard.lengths_sha256:
                    raise _damaged(lengths, f"its checksum for {shard.name} is another")
                start += 4 * shard.documents
                bar.update(shard.bytes)


class ShardWriter:
    """Writes one shard, which appears under its name only when it is closed and complete."""

    def __init__(self, folder: Path, split: str, before: tuple[Shard, ...], number: int, dtype: str) -> None:
        self.tokens = 0
        self._path = folder / shard_name(split, number)
        self._draft = folder / f".{self._path.name}"
        self._draft.unlink(missing_ok=True)  # do not write through a link
        self._lengths_path = lengths_path(folder, split)
        self._start = 4 * sum(shard.documents for shard in before)
        self._lengths = array.array("i")
        self._dtype = dtype
        with self._errors_named():
            self._writer = _array_record().ArrayRecordWriter(str(self._draft), _WRITER)

    @property
    def documents(self) -> int:
        return len(self._lengths)

    def append(self, ids: np.ndarray) -> None:
        with self._errors_named():
            self._writer.write(ids.astype(self._dtype).tobytes())
        self._lengths.append(len(ids))
        self.tokens += len(ids)

    def close(self) -> Shard:
        """Finish the shard and its lengths; both have reached the disk on return."""
        lengths = np.array(self._lengths, "<i4").tobytes()
        with self._errors_named():
            self._writer.close()
            # The bytes reach the disk before the name, so after a power cut a shard under its name is complete. The manifest is
            # written after both, and it alone determines which shards exist.
            with self._draft.open("rb") as file:
                os.fsync(file.fileno())
            self._draft.replace(self._path)
            # Cut off what a killed process appended beyond the finished shards.
            mode = "r+b" if self._lengths_path.exists() else "w+b"
            with open(self._lengths_path, mode, opener=regular.opener) as file:
                file.truncate(self._start)
                file.seek(self._start)
                file.write(lengths)
                file.flush()
                os.fsync(file.fileno())
        return Shard(
            name=self._path.name,
            documents=self.documents,
            tokens=self.tokens,
            bytes=self._path.stat().st_size,
            sha256=sha256(self._path),
            lengths_sha256=hashlib.sha256(lengths).hexdigest(),
        )

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                f"cannot write {self._path}: {reason}; make room, then run the same command again to go on"
            ) from error


def lengths_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.lengths"


def sha256(path: Path, start: int = 0, size: int | None = None) -> str:
    """The SHA-256 of a file or of a range of its bytes, hexadecimal, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb", opener=regular.opener) as file:
        left = file.seek(0, os.SEEK_END) - start if size is None else size
        file.seek(start)
        while piece := file.read(min(2**20, left)):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def _open_reader(path: Path) -> Any:
    try:
        return _array_record().ArrayRecordReader(str(path), _READER)
    except RuntimeError as error:
        raise _damaged(path, str(error)) from error


def _check_size(path: Path, size: int, *, exactly: bool = True) -> None:
    """Raise UserError if a file is missing or has another size."""
    try:
        found = regular.size(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; prepare the folder anew") from error
    if found < size or (exactly and found > size):
        raise _damaged(path, f"it has {found} bytes instead of {size}")


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is damaged ({' '.join(reason.split())[:160]}); prepare the folder anew")


def _array_record() -> ModuleType:
    return import_extra("array_record.python.array_record_module", "a prepared folder", "data")
