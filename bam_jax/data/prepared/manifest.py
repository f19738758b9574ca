"""The manifest of a prepared folder: what its shards were made from, and the counts and checksums of each."""

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from bam_jax.system import files, jsonl, typed_json
from bam_jax.system.errors import UserError, shown
from bam_jax.system.files import read_json, shortened

FORMAT = "bam_jax.data.shards"  # in every folder that was ever prepared: keep it even if this module is renamed
VERSION = 1
MANIFEST = "manifest.json"
SPLITS = ("train", "held_out")

_REMEDY = "prepare the folder with python -m bam_jax.data.prepare"
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


@dataclasses.dataclass(frozen=True)
class Shard:
    """One finished shard."""

    name: str
    documents: _Count
    tokens: _Count
    bytes: _Count
    sha256: _Digest
    lengths_sha256: _Digest


class _Shards(TypedDict):
    train: list[Shard]
    held_out: list[Shard]


class _Tokenizer(TypedDict):
    spec: str
    name: str
    hash: str
    size: _Count
    eos: _Count | None


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of a prepared folder."""

    # source, preset, hold-out and the like, checked where they are used; none may change while shards are made
    recipe: dict[str, Any]
    # the fields of consecutive documents, which repeat: ("text",), or ("query", "positive", "negative")
    fields: Annotated[tuple[str, ...], Meta(min_length=1)]
    tokenizer: dict[str, Any]  # spec, name, hash, size (number of ids) and eos (the id that ends a document, or None)
    dtype: Annotated[str, Meta(pattern=r"^<u[24]\Z")]  # of the ids in the shards
    shards: dict[str, tuple[Shard, ...]]
    counts: dict[str, _Count]  # records read, empty and left out, and bytes of text read
    next: tuple[_Count, _Count] | None  # (fragment, record in it) of the next shard; None: the folder is complete

    def documents(self, split: str) -> int:
        return sum(shard.documents for shard in self.shards[split])

    def tokens(self, split: str) -> int:
        return sum(shard.tokens for shard in self.shards[split])

    def write(self, folder: Path) -> None:
        record = {"format": FORMAT, "version": VERSION} | dataclasses.asdict(self)
        files.write_atomically(folder / MANIFEST, jsonl.document(record, 1))


def is_prepared(path: str | os.PathLike) -> bool:
    """True for a folder with a manifest of this format, finished or not."""
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
    version = record["version"] if "version" in record else None
    if type(version) is not int or version != VERSION:
        raise UserError(
            f"{path} is of version {shown(version)} of the format and this bam_jax reads version {VERSION}; "
            f"install the bam_jax that wrote it, or {_REMEDY} anew"
        )
    remedy = f"{_REMEDY} anew"
    jsonl.verified(record, str(path), remedy)
    for name, kind in (("tokenizer", _Tokenizer), ("shards", _Shards)):
        if name in record:  # before the rest: an error in a `Manifest` does not name a key
            typed_json.check(record[name], kind, str(path), remedy, name)
            _refuse_others(record[name], kind.__annotations__, f"{path}: {name}")
    typed_json.check(record, Manifest, str(path), remedy)
    _refuse_others(record, {"format", "version", *Manifest.__annotations__}, str(path))
    for split in SPLITS:
        for number, shard in enumerate(record["shards"][split]):
            where = f"{path}: shards.{split}[{number}]"
            _refuse_others(shard, Shard.__annotations__, where)
            if shard["name"] != shard_name(split, number):  # a name could point to any file on the machine
                raise UserError(f"{where}: the field 'name' is not {shard_name(split, number)}; {remedy}")
            if shard["documents"] % len(record["fields"]):
                raise UserError(f"{where}: its documents do not go by {len(record['fields'])} fields; {remedy}")
    return msgspec.convert(record, Manifest)


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05}.array_record"


def _refuse_others(record: dict[str, Any], known: Collection[str], where: str) -> None:
    others = record.keys() - known
    if others:
        raise UserError(f"{where} has fields that are not known: {shortened(others)}; {_REMEDY} anew")
