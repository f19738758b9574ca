"""The manifest of a prepared folder: what its shards were made from, and the counts and checksums of each.

What a manifest says may be anyone's: every field is held against its type before it is used.
"""

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from bam_jax.system import files, jsonl, strict_json
from bam_jax.system.errors import UserError
from bam_jax.system.files import read_json, shortened

FORMAT = "bam_jax.data.shards"
"""It stands in every folder that was ever prepared, and stays whatever this module is called."""
VERSION = 1
MANIFEST = "manifest.json"
SPLITS = ("train", "held_out")

_REMEDY = "prepare the folder with python -m bam_jax.data.prepare"


@dataclasses.dataclass(frozen=True)
class Shard:
    """One finished shard."""

    name: str
    documents: int
    tokens: int
    bytes: int
    sha256: str
    lengths_sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of a prepared folder."""

    recipe: dict[str, Any]  # source, preset, hold-out and the like; nothing of it may change while shards are made
    fields: tuple[str, ...]  # consecutive documents are ("text",), or ("query", "positive", "negative"), repeatedly
    tokenizer: dict[str, Any]  # spec, name, hash, size (number of ids) and eos (the id that ends a document, or None)
    dtype: str  # of the ids in the shards, "<u2" or "<u4"
    shards: dict[str, tuple[Shard, ...]]
    counts: dict[str, int]  # what was read and left out, in documents
    next: tuple[int, int] | None  # (fragment, record of it) where the next shard begins; None: the folder is complete

    def documents(self, split: str) -> int:
        return sum(shard.documents for shard in self.shards[split])

    def tokens(self, split: str) -> int:
        return sum(shard.tokens for shard in self.shards[split])

    def write(self, folder: Path) -> None:
        """Write it into the folder, all at once or not at all."""
        record = {"format": FORMAT, "version": VERSION} | dataclasses.asdict(self)
        files.write_atomically(folder / MANIFEST, jsonl.document(record, 1))


_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Names = Annotated[list[str], Meta(min_length=1)]


class _Tokenizer(TypedDict):
    spec: str
    name: str
    hash: str
    size: _Count
    eos: _Count | None


class _Shard(TypedDict):
    name: str
    documents: _Count
    tokens: _Count
    bytes: _Count
    sha256: _Digest
    lengths_sha256: _Digest


class _Shards(TypedDict):
    train: list[_Shard]
    held_out: list[_Shard]


class _Record(TypedDict):
    """The JSON of a manifest; what is in its recipe is checked where it is used."""

    format: str
    version: _Count
    recipe: dict
    fields: _Names
    tokenizer: _Tokenizer
    dtype: Literal["<u2", "<u4"]
    shards: _Shards
    counts: dict[str, _Count]
    next: tuple[_Count, _Count] | None


def is_prepared(path: str | os.PathLike) -> bool:
    """True of a folder with a manifest of this format, finished or not."""
    manifest = Path(path) / MANIFEST
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:  # other programs' manifests may be large
        return f'"{FORMAT}"'.encode() in file.read(200)


def read_manifest(folder: str | os.PathLike) -> Manifest:
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder} holds no {MANIFEST}; {_REMEDY}, or name another")
    record = read_json(path)
    if not isinstance(record, dict) or "format" not in record or record["format"] != FORMAT:
        raise UserError(f"{path} is another program's, not of the format {FORMAT}; {_REMEDY}, or name another")
    if "version" in record and type(record["version"]) is int and record["version"] != VERSION:
        raise UserError(
            f"{path} is of version {record['version']} of the format and this bam_jax reads version {VERSION}; "
            f"install the bam_jax that wrote it, or {_REMEDY} anew"
        )
    strict_json.check(jsonl.verified(record, str(path), f"{_REMEDY} anew"), _Record, str(path), f"{_REMEDY} anew")
    _refuse_others(record, _Record, str(path))
    _refuse_others(record["tokenizer"], _Tokenizer, f"{path}: tokenizer")
    _refuse_others(record["shards"], _Shards, f"{path}: shards")
    shards: dict[str, tuple[Shard, ...]] = {}
    for split in SPLITS:
        shards[split] = tuple(
            _make_shard(shard, shard_name(split, number), len(record["fields"]), f"{path}: shards.{split}[{number}]")
            for number, shard in enumerate(record["shards"][split])
        )
    return Manifest(
        recipe=record["recipe"],
        fields=tuple(record["fields"]),
        tokenizer=record["tokenizer"],
        dtype=record["dtype"],
        shards=shards,
        counts=record["counts"],
        next=None if record["next"] is None else tuple(record["next"]),
    )


def shard_name(split: str, number: int) -> str:
    """The name of a shard's file.

    >>> shard_name("train", 3)
    'train-00003.array_record'
    """
    return f"{split}-{number:05}.array_record"


def _make_shard(record: dict[str, Any], name: str, fields: int, where: str) -> Shard:
    _refuse_others(record, _Shard, where)
    shard = Shard(**record)
    if shard.name != name:  # a name may lead to any file of the machine
        raise UserError(f"{where}: the field 'name' is not {name}; {_REMEDY} anew")
    if shard.documents % fields:
        raise UserError(f"{where}: its documents do not go by {fields}; {_REMEDY} anew")
    return shard


def _refuse_others(record: dict[str, Any], kind: Any, where: str) -> None:
    """Refuses fields that a kind of record does not have: another version's, whose meaning is not known."""
    others = record.keys() - kind.__annotations__.keys()
    if others:
        raise UserError(f"{where} has fields that are not known: {shortened(others)}; {_REMEDY} anew")
