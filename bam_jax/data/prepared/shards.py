"""A prepared folder: shards of tokenised documents that can be read in any order, and the manifest that describes them.

manifest.json                what the shards were made from, and the counts and checksums of each
train-00000.array_record     a document a record: its token ids as little-endian uint16, or uint32 for large vocabularies
train.lengths                tokens of each document of the split, end tokens included: little-endian int32 end to end
held_out-00000.array_record, held_out.lengths
"""

import array
import dataclasses
import functools
import hashlib
import importlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bam_jax.system import console, files
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.files import read_json, shortened

FORMAT = "bam_jax.data.shards"  # stands in every folder that was ever prepared: it stays whatever the module is called
VERSION = 1
MANIFEST = "manifest.json"
SPLITS = ("train", "held_out")

# A record is a chunk of its own, so that reading a document reads nothing else; ids hardly compress.
_WRITER = "group_size:1,uncompressed"
_READER = "readahead_buffer_size:0,max_parallelism:0"
_OPEN = 256  # shards that a reader keeps open


@dataclasses.dataclass(frozen=True)
class Shard:
    """One finished shard.

    Args:
        name: of its file.
        documents: number of records.
        tokens: number of ids, end tokens included.
        bytes: size of the file.
        sha256: of the file, hexadecimal.
        lengths_sha256: of its part of the split's lengths, hexadecimal.
    """

    name: str
    documents: int
    tokens: int
    bytes: int
    sha256: str
    lengths_sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What stands in a prepared folder.

    Args:
        recipe: what the shards were made from, nothing of which may change while they are made: source, preset, fields,
            hold-out and the like.
        fields: what consecutive documents are, again and again: ("text",), or ("query", "positive", "negative").
        tokenizer: spec, name, hash, size (number of ids) and eos (the id that ends a document, or None).
        dtype: of the ids in the shards, "<u2" or "<u4".
        shards: of each split, in order.
        counts: what was read and left out, in documents.
        next: where in the source the next shard begins: [part, record of it]; None: the folder is complete.
    """

    recipe: dict[str, Any]
    fields: tuple[str, ...]
    tokenizer: dict[str, Any]
    dtype: str
    shards: dict[str, tuple[Shard, ...]]
    counts: dict[str, int]
    next: tuple[int, int] | None

    def documents(self, split: str) -> int:
        """Number of documents of a split."""
        return sum(shard.documents for shard in self.shards[split])

    def tokens(self, split: str) -> int:
        """Number of tokens of a split, end tokens included."""
        return sum(shard.tokens for shard in self.shards[split])

    def write(self, folder: Path) -> None:
        """Write it into the folder, all at once or not at all."""
        record = {"format": FORMAT, "version": VERSION} | dataclasses.asdict(self)
        files.write_atomically(folder / MANIFEST, json.dumps(record, indent=1) + "\n")


def is_prepared(path: str | os.PathLike) -> bool:
    """Whether a path is a folder with a manifest of this format, finished or not."""
    manifest = Path(path) / MANIFEST
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:  # other programs' manifests may be large
        return f'"{FORMAT}"'.encode() in file.read(200)


def read_manifest(folder: str | os.PathLike) -> Manifest:
    """The manifest of a prepared folder, every field of its kind: what it says may be anyone's.

    Raises:
        UserError: there is none, or it is broken, of another program, or of a newer version.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder} holds no {MANIFEST}; {_AGAIN}, or name another")
    record = read_json(path)
    if not isinstance(record, dict) or "format" not in record or record["format"] != FORMAT:
        raise UserError(f"{path} is another program's, not of the format {FORMAT}; {_AGAIN}, or name another")
    if "version" in record and type(record["version"]) is int and record["version"] != VERSION:
        raise UserError(
            f"{path} is of version {record['version']} of the format and this bam_jax reads version {VERSION}; "
            f"install the bam_jax that wrote it, or {_AGAIN} anew"
        )
    top = _fields(
        record,
        {
            "format": _TEXT,
            "version": _COUNT,
            "recipe": _OBJECT,
            "fields": _NAMES,
            "tokenizer": _OBJECT,
            "dtype": _DTYPE,
            "shards": _OBJECT,
            "counts": _COUNTS,
            "next": _PLACE,
        },
        str(path),
    )
    about = {"spec": _TEXT, "name": _TEXT, "hash": _TEXT, "size": _COUNT, "eos": _ID}
    shards = _fields(top["shards"], dict.fromkeys(SPLITS, _LIST), f"{path}: shards")
    return Manifest(
        recipe=top["recipe"],
        fields=tuple(top["fields"]),
        tokenizer=_fields(top["tokenizer"], about, f"{path}: tokenizer"),
        dtype=top["dtype"],
        shards={
            split: tuple(
                _shard(shard, split, number, len(top["fields"]), f"{path}: shards.{split}[{number}]")
                for number, shard in enumerate(shards[split])
            )
            for split in SPLITS
        },
        counts=top["counts"],
        next=top["next"] and tuple(top["next"]),
    )


_AGAIN = "prepare the folder with python -m bam_jax.data.prepare"

_Kind = tuple[str, Callable[[Any], bool]]
_is_count = lambda value: type(value) is int and 0 <= value < 2**63
_TEXT: _Kind = ("a text", lambda value: isinstance(value, str))
_COUNT: _Kind = ("a whole number from 0", _is_count)
_ID: _Kind = ("a whole number from 0 or null", lambda value: value is None or _is_count(value))
_LIST: _Kind = ("a list", lambda value: isinstance(value, list))
_OBJECT: _Kind = ("an object", lambda value: isinstance(value, dict))
_COUNTS: _Kind = ("numbers by name", lambda value: isinstance(value, dict) and all(map(_is_count, value.values())))
_DTYPE: _Kind = ("<u2 or <u4", lambda value: value in ("<u2", "<u4"))
_NAMES: _Kind = (
    "a list of names",
    lambda value: isinstance(value, list) and value != [] and all(isinstance(name, str) for name in value),
)
_PLACE: _Kind = (
    "two whole numbers or null",
    lambda value: value is None or (isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))),
)
_DIGEST: _Kind = (
    "a SHA-256 in hexadecimal",
    lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None,
)


def _fields(record: Any, kinds: dict[str, _Kind], where: str) -> dict[str, Any]:
    """The record, which has these fields and no other, each of its kind."""
    anew = f"{_AGAIN} anew"
    if not isinstance(record, dict):
        raise UserError(f"{where} is not an object; {anew}")
    for name, (kind, fits) in kinds.items():
        if name not in record:
            raise UserError(f"{where} lacks the field '{name}'; {anew}")
        if not fits(record[name]):
            raise UserError(f"{where}: the field '{name}' is not {kind}; {anew}")
    if len(record) > len(kinds):
        raise UserError(f"{where} has fields that are not known: {shortened(record.keys() - kinds.keys())}; {anew}")
    return record


def _shard(record: Any, split: str, number: int, fields: int, where: str) -> Shard:
    counts = dict.fromkeys(("documents", "tokens", "bytes"), _COUNT)
    kinds = {"name": _TEXT, **counts, "sha256": _DIGEST, "lengths_sha256": _DIGEST}
    shard = Shard(**_fields(record, kinds, where))
    wanted = shard_name(split, number)  # and no other place
    if shard.name != wanted or shard.documents % fields:
        what = f"the field 'name' is not {wanted}" if shard.name != wanted else f"its documents do not go by {fields}"
        raise UserError(f"{where}: {what}; {_AGAIN} anew")
    return shard


def shard_name(split: str, number: int) -> str:
    """The name of a shard's file.

    >>> shard_name("train", 3)
    'train-00003.array_record'
    """
    return f"{split}-{number:05}.array_record"


class Split:
    """The documents of one split, in any order (the `Documents` of the loader).

    It travels to other processes as its path; each opens the files for itself when it reads.

    Args:
        folder: a prepared folder.
        manifest: its manifest.
        name: "train" or "held_out".

    Raises:
        UserError: the folder is not complete, a file is missing or not of its size, or the lengths are not the shards'.
    """

    lengths: np.ndarray
    """Tokens of each document, its end token included: [N] int32, a memory-map."""
    shards: np.ndarray
    """The number of each shard's first document, and N: [S + 1] int64."""

    def __init__(self, folder: Path, manifest: Manifest, name: str) -> None:
        if manifest.next is not None:
            raise UserError(f"{folder} is not complete; run its prepare command again, it goes on where it stopped")
        self.manifest = manifest
        self._folder, self._name = folder, name
        shards = manifest.shards[name]
        self._files = [folder / shard.name for shard in shards]
        for shard, file in zip(shards, self._files, strict=True):
            _see_size(file, shard.bytes)
        self.shards = np.cumsum([0, *(shard.documents for shard in shards)], dtype=np.int64)
        lengths = lengths_path(folder, name)
        _see_size(lengths, 4 * int(self.shards[-1]))
        # A file of no bytes cannot be mapped.
        self.lengths = np.memmap(lengths, "<i4", mode="r") if self.shards[-1] else np.empty(0, np.int32)
        self._dtype = np.dtype(manifest.dtype)
        for shard, first in zip(shards, self.shards.tolist(), strict=False):
            own = self.lengths[first : first + shard.documents]
            if (
                own.sum(dtype=np.int64) != shard.tokens
                or own.min(initial=1) < 0
                or shard.tokens * self._dtype.itemsize > shard.bytes
            ):
                raise _damaged(lengths, f"its lengths are not those of {shard.name}")
        self._readers = functools.lru_cache(maxsize=_OPEN)(_reader)

    def __len__(self) -> int:
        return int(self.shards[-1])

    def __reduce__(self) -> tuple:
        return open_split, (self._folder, self._name)

    def read(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Documents by their numbers.

        Args:
            numbers: [documents] integers in [0, N), in any order, repeated or not.

        Returns:
            The ids of each, [tokens] int32.

        Raises:
            UserError: a shard's bytes are not those that were written.
        """
        numbers = np.asarray(numbers, np.int64)
        found = np.searchsorted(self.shards, numbers, side="right") - 1
        documents: list[np.ndarray] = [np.empty(0, np.int32)] * len(numbers)
        for shard in np.unique(found).tolist():
            places = np.flatnonzero(found == shard)
            chosen = numbers[places]
            try:
                records = self._readers(self._files[shard]).read((chosen - self.shards[shard]).tolist())
            except (RuntimeError, IndexError) as error:  # what array_record raises of bytes whose hash is another
                raise _damaged(self._files[shard], str(error)) from error
            for place, record, length in zip(places.tolist(), records, self.lengths[chosen].tolist(), strict=True):
                if len(record) != length * self._dtype.itemsize:
                    raise _damaged(self._files[shard], f"a document of {len(record)} bytes has {length} tokens")
                ids = np.frombuffer(record, self._dtype)
                if ids.max(initial=0) >= self.manifest.tokenizer["size"]:
                    raise _damaged(self._files[shard], f"it has the id {ids.max()}, which its tokenizer has not")
                documents[place] = ids.astype(np.int32)
        return documents


def open_split(folder: str | os.PathLike, name: str) -> Split:
    """The documents of a split of a prepared folder; opening sums the lengths of all, and reads none of them.

    Args:
        folder: a prepared folder.
        name: "train" or "held_out".

    Raises:
        UserError: no such split, or the folder is not a complete prepared one.
    """
    if name not in SPLITS:
        raise UserError(f"unknown split {name!r}; {nearest(name, SPLITS)}")
    return Split(Path(folder), read_manifest(folder), name)


def verify(folder: str | os.PathLike, *, show: bool | None = None) -> None:
    """See that every byte of every finished shard is the one that was written.

    Args:
        folder: a prepared folder, complete or not.
        show: see `console.progress`.

    Raises:
        UserError: names the first file that is missing, or has another size or checksum.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    total = sum(shard.bytes for shards in manifest.shards.values() for shard in shards)
    with console.progress(total, unit="B", label="verifying", show=show) as bar:
        for split, shards in manifest.shards.items():
            lengths, start = lengths_path(folder, split), 0
            # In an unfinished folder more may follow, of a shard that was never finished.
            _see_size(lengths, 4 * manifest.documents(split), exactly=manifest.next is None)
            for shard in shards:
                _see_size(folder / shard.name, shard.bytes)
                if sha256(folder / shard.name) != shard.sha256:
                    raise _damaged(folder / shard.name, "its checksum is another")
                if sha256(lengths, start, 4 * shard.documents) != shard.lengths_sha256:
                    raise _damaged(lengths, f"its checksum for {shard.name} is another")
                start += 4 * shard.documents
                bar.update(shard.bytes)


class ShardWriter:
    """Writes one shard; it appears under its name when it is closed, whole.

    Args:
        folder: where; it exists.
        split: "train" or "held_out".
        before: the split's finished shards.
        number: the shard's, in its name.
        dtype: of the ids, "<u2" or "<u4".

    Raises:
        UserError: array_record is not installed.
    """

    def __init__(self, folder: Path, split: str, before: tuple[Shard, ...], number: int, dtype: str) -> None:
        self.tokens = 0
        self._path = folder / shard_name(split, number)
        self._draft = folder / f".{self._path.name}"
        self._lengths_path = lengths_path(folder, split)
        self._start = 4 * sum(shard.documents for shard in before)
        self._lengths = array.array("i")
        self._dtype = dtype
        try:
            self._writer = _array_record().ArrayRecordWriter(str(self._draft), _WRITER)
        except RuntimeError as error:
            raise self._unwritten(error) from error

    @property
    def documents(self) -> int:
        """Number of documents so far."""
        return len(self._lengths)

    def append(self, ids: np.ndarray) -> None:
        """Append a document.

        Args:
            ids: [tokens] integers of the vocabulary, the end token included.

        Raises:
            UserError: no room on the disk, or it cannot be written to.
        """
        try:
            self._writer.write(ids.astype(self._dtype).tobytes())
        except RuntimeError as error:
            raise self._unwritten(error) from error
        self._lengths.append(len(ids))
        self.tokens += len(ids)

    def close(self) -> Shard:
        """Finish the shard and its lengths; both have reached the disk on return.

        Raises:
            UserError: no room on the disk, or it cannot be written to.
        """
        lengths = np.array(self._lengths, "<i4").tobytes()
        try:
            self._writer.close()
            with self._draft.open("rb") as file:
                os.fsync(file.fileno())
            self._draft.replace(self._path)
            # What a killed process appended beyond the finished shards goes.
            with self._lengths_path.open("r+b" if self._lengths_path.exists() else "w+b") as file:
                file.truncate(self._start)
                file.seek(self._start)
                file.write(lengths)
                file.flush()
                os.fsync(file.fileno())
        except (RuntimeError, OSError) as error:
            raise self._unwritten(error) from error
        return Shard(
            name=self._path.name,
            documents=self.documents,
            tokens=self.tokens,
            bytes=self._path.stat().st_size,
            sha256=sha256(self._path),
            lengths_sha256=hashlib.sha256(lengths).hexdigest(),
        )

    def _unwritten(self, error: Exception) -> UserError:
        reason = " ".join(str(error).split())[:160]
        return UserError(f"cannot write {self._path}: {reason}; make room, then run the same command again to go on")


def lengths_path(folder: Path, split: str) -> Path:
    """The file of a split's lengths."""
    return folder / f"{split}.lengths"


def sha256(path: Path, start: int = 0, size: int | None = None) -> str:
    """The SHA-256 of a file or of a range of its bytes, hexadecimal, read in pieces.

    Args:
        path: the file.
        start: first byte.
        size: bytes; None means to the end.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(2**20 if size is None else min(2**20, size)):
            digest.update(piece)
            size = None if size is None else size - len(piece)
    return digest.hexdigest()


def _reader(path: Path) -> Any:
    try:
        return _array_record().ArrayRecordReader(str(path), _READER)
    except RuntimeError as error:
        raise _damaged(path, str(error)) from error


def _see_size(path: Path, size: int, *, exactly: bool = True) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing; prepare the folder anew")
    found = path.stat().st_size
    if found < size or (exactly and found > size):
        raise _damaged(path, f"it has {found} bytes instead of {size}")


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is damaged ({' '.join(reason.split())[:160]}); prepare the folder anew")


def _array_record() -> ModuleType:
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ModuleNotFoundError as error:
        raise UserError("prepared folders need array_record: pip install 'bam_jax[data]'") from error
