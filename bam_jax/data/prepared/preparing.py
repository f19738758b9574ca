"""Prepares a corpus. If it is killed at any moment, the same request resumes and writes the same bytes."""

import contextlib
import dataclasses
import datetime
import itertools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax.data.prepared.manifest import MANIFEST, SPLITS, Manifest, read_manifest
from bam_jax.data.prepared.sampling import SourceSize, count_in_source, draw, estimate, reserve
from bam_jax.data.prepared.shards import ShardWriter, lengths_path
from bam_jax.data.prepared.tokenising import ALL_HASHES, EncodedBatch, Encoder, batch_records, tokenise
from bam_jax.data.sources.fragment import Fragment
from bam_jax.data.sources.source import Source, hash_fragments
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.data.tokenizers.copies import FOLDER, save_tokenizer
from bam_jax.system import console, regular
from bam_jax.system.errors import UserError
from bam_jax.system.files import shortened

DOCUMENT_BYTES = 66  # per document besides its ids: its chunk's header, its entry in the index, its length

_THRESHOLDS = ("threshold", "sample_threshold")  # the entries of a recipe that are computed from the source
_ASKED = ("holdout_tokens", "max_tokens", "max_records", "holdout_records", "sample_records", "shard_tokens")
_NOTHING_READ = {"records": 0, "empty": 0, "left_out": 0, "bytes": 0}


@dataclasses.dataclass(frozen=True)
class PreparationRequest:
    """A corpus to prepare, and how to do it."""

    source: Source
    tokenizer: Tokenizer
    shard_tokens: int  # after which a shard is finished
    workers: int  # processes that tokenise
    preset: str | None = None  # the name of the corpus, if it has one
    seed: int = 0  # for choosing the records that are held out or drawn
    holdout_tokens: int = 0  # of whole documents
    holdout_records: int = 0  # drawn from the whole source
    max_tokens: int | None = None  # to train on
    max_records: int | None = None  # to read
    sample_records: int | None = None  # to train on, drawn from the whole source


def prepare(folder: Path, request: PreparationRequest, fragments: list[Fragment]) -> str:
    """Make a prepared folder, or resume one that was begun with the same request.

    Each section of the source gives a train shard and, if any of its documents is held out, a held-out shard. The manifest is
    written after each section, with the position where the next one begins. Records whose hash is below the threshold are held
    out until there are enough, and skipped from then on. Equal texts are therefore never both trained on and held out.
    """
    manifest = _begin(folder, request, fragments)
    save_tokenizer(request.tokenizer, folder)  # so that the folder can be read without the tokenizer's original files
    if manifest.next is None:
        return f"{folder} is complete already: {_summarise(manifest)}"
    encoder = Encoder(request.tokenizer, request.seed, manifest.recipe["sample_threshold"])
    section = _Section(folder, manifest)
    batches = tokenise(batch_records(fragments, manifest.next), encoder, request.workers)
    sizes = [fragment.size for fragment in fragments]
    progress = console.progress(sum(sizes), done=sum(sizes[: manifest.next[0]]), unit="B", label="preparing")
    progress.unit_scale = True
    with contextlib.closing(batches), progress as bar:
        start, bytes_before = time.perf_counter(), section.counts["bytes"]
        for batch, encoded in batches:
            for end, (texts, digest, size) in zip(batch.ends, _divide(encoded), strict=True):
                section.add(texts, digest, size)
                if section.enough:
                    bar.update(bar.total - bar.n)
                    return _summarise(section.finish())
                if section.full:
                    section.close(end)
            counts, tokens = section.counts, sum(map(section.tokens, SPLITS))
            rate = (counts["bytes"] - bytes_before) / (time.perf_counter() - start)
            bar.set_postfix_str(
                f"{counts['records']:,} documents, {tokens / 1e6:,.1f}M tokens, {rate / 1e6:.1f} MB/s of text",
                refresh=False,
            )
            bar.update(batch.read - bar.n)
    return _summarise(section.finish())


def forecast(request: PreparationRequest, fragments: list[Fragment]) -> str:
    """Estimate the results and the cost of preparing from a sample, as a table."""
    encoder = Encoder(request.tokenizer, request.seed)
    whole = estimate(fragments, encoder)
    share = _share(whole, request)
    tokens, documents = whole.tokens * share, whole.documents * share
    size = tokens * int(encoder.dtype[-1]) + documents * DOCUMENT_BYTES
    duration = datetime.timedelta(seconds=round(whole.seconds * share / max(request.workers, 1)))
    unit = lambda n: f"{n / 1e9:,.3f} GB" if n >= 1e9 else f"{n / 1e6:,.3f} MB"
    return (
        f"source      {len(fragments):,} parts, {unit(sum(fragment.size for fragment in fragments))} as stored\n"
        f"documents   about {documents:,.0f}, {unit(whole.bytes * share)} of text\n"
        f"tokens      about {tokens:,.0f}\n"
        f"shards      about {unit(size)}\n"
        f"time        about {duration} with {request.workers} workers "
        f"({whole.tokens / whole.seconds / 1e6:.2f} M tokens/s each)"
    )


def _share(whole: SourceSize, request: PreparationRequest) -> float:
    records = whole.documents / len(request.source.documents)
    shares = [
        (request.max_tokens or whole.tokens) / whole.tokens + request.holdout_tokens / whole.tokens,
        (request.max_records or records) / records,
        (request.sample_records or records) / records + request.holdout_records / records,
    ]
    return min(1.0, *shares)


def _begin(folder: Path, request: PreparationRequest, fragments: list[Fragment]) -> Manifest:
    """The manifest of the folder, if it was begun with the same request; otherwise a new one."""
    source = request.source
    recipe = {
        "source": source.path,
        "preset": request.preset,
        "parts": len(fragments),
        "parts_hash": hash_fragments(fragments),
        "format": source.format,
        "errors": source.errors,
        "seed": request.seed,
        **{name: getattr(request, name) for name in _ASKED},
    }
    begun = read_manifest(folder) if (folder / MANIFEST).exists() else None
    if begun is not None and any(begun.shards.values()):
        _check_begun(folder, begun, recipe, request)
        return begun
    if begun is not None:  # without a finished shard, nothing is lost by starting over
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
    elif any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UserError(f"--out={folder} holds other files; name a folder that is empty or not there yet")
    if line := count_in_source(fragments, request.tokenizer).line(source.path, request.tokenizer, "--tokenizer"):
        console.log(line)
    encoder = Encoder(request.tokenizer, request.seed)
    recipe |= dict(zip(_THRESHOLDS, _thresholds(request, fragments, encoder), strict=True))
    fresh = Manifest(
        recipe=recipe,
        fields=source.documents,
        tokenizer=request.tokenizer.identity(),
        dtype=encoder.dtype,
        shards=dict.fromkeys(SPLITS, ()),
        counts=_NOTHING_READ,
        next=(0, 0),
    )
    # Before the first shard, so that the thresholds are computed only once, and a resumed process finds the same ones.
    fresh.write(folder)
    return fresh


def _check_begun(folder: Path, begun: Manifest, recipe: dict[str, Any], request: PreparationRequest) -> None:
    """Raise UserError if the folder was begun by another version of bam_jax, or with another request."""
    for name, wanted in (("recipe", {*recipe, *_THRESHOLDS}), ("counts", set(_NOTHING_READ))):
        if other := getattr(begun, name).keys() ^ wanted:
            listed = shortened(sorted(other))
            raise UserError(f"{folder} was begun by another version of bam_jax ({name}: {listed}); give another --out")
    for name in _THRESHOLDS:
        if type(begun.recipe[name]) is not int or not 0 <= begun.recipe[name] <= ALL_HASHES:
            raise UserError(f"{folder}: the field 'recipe.{name}' of its manifest is not a hash; give another --out")
    values = {
        "--tokenizer": (begun.tokenizer["hash"], request.tokenizer.hash),
        "--text-field": (",".join(begun.fields), ",".join(request.source.documents)),
        "the files of the source": (begun.recipe["parts_hash"], recipe["parts_hash"]),
    }
    for name in ("format", "errors", "seed", *_ASKED):  # the source may have moved and have another name
        values[f"--{name.replace('_', '-')}"] = begun.recipe[name], recipe[name]
    for what, (before, given) in values.items():
        if before != given:
            raise UserError(
                f"{folder} was begun with another value of {what} ({before}, not {given}); "
                "give the same, or another --out, or remove that folder to begin anew"
            )


def _thresholds(request: PreparationRequest, fragments: list[Fragment], encoder: Encoder) -> tuple[int, int]:
    """The hash below which records are held out, and the hash from which on they are skipped."""
    if request.sample_records or request.holdout_records:
        return draw(fragments, encoder, request.holdout_records, request.sample_records)
    if not request.holdout_tokens:
        return 0, ALL_HASHES
    whole = estimate(fragments, encoder)
    return reserve(request.holdout_tokens, round(whole.tokens * _share(whole, request))), ALL_HASHES


def _summarise(manifest: Manifest) -> str:
    counts = manifest.counts
    lines = [
        f"{split} {manifest.tokens(split):,} tokens in {manifest.documents(split):,} documents, {len(shards)} shards"
        for split, shards in manifest.shards.items()
    ]
    lines.append(f"{counts['records']:,} records read, {counts['empty']:,} of them empty")
    short = manifest.recipe["holdout_tokens"] - manifest.tokens("held_out")
    if short > 0:
        lines.append(
            f"{short:,} tokens fewer held out than asked for, as the reserved documents were short: "
            "another --seed chooses others"
        )
    return "; ".join(lines)


def _divide(encoded: EncodedBatch) -> Iterator[tuple[list[np.ndarray], int, int]]:
    """Each record of a batch: the ids of its texts, [tokens] each, its hash, and its bytes."""
    start = 0
    columns = (encoded.lengths.tolist(), encoded.hashes.tolist(), encoded.bytes.tolist())
    for lengths, digest, size in zip(*columns, strict=True):
        stops = list(itertools.accumulate(lengths, initial=start))
        yield [encoded.ids[a:b] for a, b in itertools.pairwise(stops)], digest, size
        start = stops[-1]


class _Section:
    """The shards that are being written, at most one per split, and the manifest of the finished ones."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.counts = dict(manifest.counts)
        self._folder, self._manifest, self._recipe = folder, manifest, manifest.recipe
        self._writers: dict[str, ShardWriter] = {}

    def tokens(self, split: str) -> int:
        return self._manifest.tokens(split) + (self._writers[split].tokens if split in self._writers else 0)

    @property
    def full(self) -> bool:
        return sum(writer.tokens for writer in self._writers.values()) >= self._recipe["shard_tokens"]

    @property
    def enough(self) -> bool:
        tokens, records = self._recipe["max_tokens"], self._recipe["max_records"]
        return (tokens is not None and self.tokens("train") >= tokens) or self.counts["records"] == records

    def add(self, texts: list[np.ndarray], digest: int, size: int) -> None:
        """Add a record, given as the ids of each of its texts, to its split, or skip it."""
        self.counts["records"] += 1
        self.counts["bytes"] += size
        if digest >= self._recipe["sample_threshold"]:
            self.counts["left_out"] += 1
            return
        if not len(texts[0]):
            self.counts["empty"] += 1
            return
        split = "held_out" if digest < self._recipe["threshold"] else "train"
        if self._is_complete(split):
            self.counts["left_out"] += 1
            return
        if split not in self._writers:
            finished = self._manifest.shards[split]
            self._writers[split] = ShardWriter(self._folder, split, finished, len(finished), self._manifest.dtype)
        for text in texts:
            self._writers[split].append(text)

    def _is_complete(self, split: str) -> bool:
        """True once a split has as much as requested: copies of a record have equal hashes, so too many may be drawn."""
        wanted = self._recipe["holdout_records" if split == "held_out" else "sample_records"]
        if wanted:
            begun = self._writers[split].documents if split in self._writers else 0
            return self._manifest.documents(split) + begun >= wanted * len(self._manifest.fields)
        return split == "held_out" and self.tokens(split) >= self._recipe["holdout_tokens"]

    def close(self, end: tuple[int, int] | None) -> Manifest:
        shards = dict(self._manifest.shards)
        for split in SPLITS:
            if split in self._writers:
                shards[split] = (*shards[split], self._writers[split].close())
        # Always after the shards: what the manifest names is complete, and what it does not name is written again.
        self._manifest = dataclasses.replace(self._manifest, shards=shards, counts=dict(self.counts), next=end)
        self._writers = {}
        self._manifest.write(self._folder)
        return self._manifest

    def finish(self) -> Manifest:
        if not self.tokens("train"):
            raise UserError(f"the source {self._recipe['source']} holds no text to train on; name another")
        for split in SPLITS:
            open(lengths_path(self._folder, split), "ab", opener=regular.opener).close()
        manifest = self.close(None)
        for draft in self._folder.glob(f".{MANIFEST}.*"):  # of a process that was killed while writing
            draft.unlink()
        return manifest
