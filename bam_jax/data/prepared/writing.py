"""The loop of `prepare` that writes documents into shards, and can be killed at any moment."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bam_jax.data.prepared.manifest import MANIFEST, SPLITS, Manifest, Shard
from bam_jax.data.prepared.shards import ShardWriter, lengths_path
from bam_jax.data.prepared.tokenising import EncodedBatch, Encoder, batch_records, tokenise
from bam_jax.data.sources.fragment import Fragment
from bam_jax.system import console, regular
from bam_jax.system.errors import UserError


def write_shards(
    folder: Path, manifest: Manifest, fragments: list[Fragment], encoder: Encoder, workers: int
) -> Manifest:
    """Writes the shards that are missing.

    A section of the source gives a train shard and, if any of its documents is held out, one of these; the manifest is written
    after each section, and says where the next begins. A record whose hash is below the threshold is held out until there is
    enough, and left out after that: equal texts are never both trained on and held out. One whose hash is not below that of
    the sample is left out.
    """
    assert manifest.next is not None
    section = _Section(folder, manifest)
    batches = tokenise(batch_records(fragments, manifest.next), encoder, workers)
    with contextlib.closing(batches), _progress(manifest, fragments) as bar:
        start, bytes_before = time.perf_counter(), section.counts["bytes"]
        for batch, encoded in batches:
            for end, (texts, digest, size) in zip(batch.ends, _divide(encoded), strict=True):
                section.add(texts, digest, size)
                if section.enough:
                    bar.update(bar.total - bar.n)
                    return section.finish()
                if section.full:
                    section.close(end)
            counts, tokens = section.counts, sum(map(section.tokens, SPLITS))
            rate = (counts["bytes"] - bytes_before) / (time.perf_counter() - start)
            bar.set_postfix_str(
                f"{counts['records']:,} documents, {tokens / 1e6:,.1f}M tokens, {rate / 1e6:.1f} MB/s of text",
                refresh=False,
            )
            bar.update(batch.read - bar.n)
    return section.finish()


def _divide(encoded: EncodedBatch) -> Iterator[tuple[list[np.ndarray], int, int]]:
    """Each record of a batch: the ids of its texts, [tokens] each, its hash, and its bytes."""
    start = 0
    columns = (encoded.lengths.tolist(), encoded.hashes.tolist(), encoded.bytes.tolist())
    for lengths, digest, size in zip(*columns, strict=True):
        texts = []
        for length in lengths:
            texts.append(encoded.ids[start : start + length])
            start += length
        yield texts, digest, size


class _Section:
    """The shards that are being written, one of each split at most, and the manifest of those that are finished."""

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
        """Adds a record, the ids of each of its texts, to its split, or leaves it out."""
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
        """True once a split has all that it is to have: equal records may be more than were to be drawn."""
        wanted = self._recipe["holdout_records" if split == "held_out" else "sample_records"]
        if wanted:
            return self._documents(split) >= wanted * len(self._manifest.fields)
        return split == "held_out" and self.tokens(split) >= self._recipe["holdout_tokens"]

    def _documents(self, split: str) -> int:
        return self._manifest.documents(split) + (self._writers[split].documents if split in self._writers else 0)

    def close(self, end: tuple[int, int] | None) -> Manifest:
        shards = {split: (*finished, *self._close_writer(split)) for split, finished in self._manifest.shards.items()}
        # After the shards, never before: what the manifest names is whole, and what it does not name is written again.
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
        for draft in self._folder.glob(f".{MANIFEST}.*"):  # of a process that was killed as it wrote
            draft.unlink()
        return manifest

    def _close_writer(self, split: str) -> list[Shard]:
        return [self._writers[split].close()] if split in self._writers else []


def _progress(manifest: Manifest, fragments: list[Fragment]) -> console.Bar:
    assert manifest.next is not None
    sizes = [fragment.size for fragment in fragments]
    bar = console.progress(sum(sizes), done=sum(sizes[: manifest.next[0]]), unit="B", label="preparing")
    bar.unit_scale = True
    return bar
