"""Batches, each a pure function of the configuration and its number, so that any batch can be made again."""

import hashlib
import json
import zlib
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from bam_jax.config import Config, DataConfig
from bam_jax.config.sections import SYNTHETIC, TRIPLET
from bam_jax.data.iterator import Batches
from bam_jax.data.packing.concat import Concatenated
from bam_jax.data.packing.first_fit import FirstFit
from bam_jax.data.packing.rows import Batch, RowSource, Shuffle
from bam_jax.data.packing.task_rows import Masked, Mixture, Planted, Synthetic, Triplets
from bam_jax.data.prepared.copies import local
from bam_jax.data.prepared.documents import Begun, Documents, InMemory, open_documents, source_of
from bam_jax.data.prepared.manifest import is_prepared, read_manifest
from bam_jax.data.sources.source import is_fetched
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system.errors import UserError, shown


def batches(
    config: Config,
    tokenizer: Tokenizer,
    split: str = "train",
    *,
    host: int = 0,
    hosts: int = 1,
    saves: bool = True,
    log: Callable[[str], None] = lambda line: None,
) -> Batches:
    """The endless batches of a run. Equal configurations give equal batches, and each host gets disjoint rows of them.

    Returns:
        An iterator over dictionaries of arrays, where B is the number of the host's rows and T the context: tokens [B, T] int32;
        targets [B, T] int32, the next tokens (for the task masked, the original tokens); weights [B, T] float32 of the targets in
        the loss; segment [B, T] int32, if documents of a row must not see each other or rows are padded: documents are numbered
        from 1, padding is 0; position [B, T] int32, if positions restart. For the task triplets instead query, positive, negative
        [B, T] int32, padded with 0, and their lengths query_length, positive_length, negative_length [B] int32.
    """
    if config.batch % hosts:
        raise UserError(f"config.batch={config.batch} must be a multiple of the {hosts} hosts")
    documents = _open_parts(config, tokenizer, split)
    for name, (_, part) in config.data.parts().items():
        opened = documents[name]
        if split == "train" and isinstance(opened, InMemory):  # `prepare` has reported it for a prepared folder
            if line := opened.out_of_vocabulary.line(part.source, tokenizer, "--config.data.tokenizer"):
                log(line)
    return Batches(
        make_rows(config, tokenizer, split, documents),
        config.batch,
        _checksum(documents),
        host=host,
        hosts=hosts,
        workers=config.data.workers,
        saves=saves,
    )


def trained_data(config: Config, tokenizer: Tokenizer, allow: Collection[str] = ()) -> int:
    """The checksum of the training documents, as in the state of `batches`. Unless they are prepared, this tokenises them."""
    for part in texts_of(config).values():
        _check_allowed(part.source, allow)
    return _checksum(_open_parts(config, tokenizer, "train"))


def _checksum(documents: dict[str, Documents | None]) -> int:
    checksums = [0 if each is None else each.checksum for each in documents.values()]
    return zlib.crc32(json.dumps(checksums).encode())


def _open_parts(config: Config, tokenizer: Tokenizer, split: str) -> dict[str, Documents | None]:
    """The documents of each part of a mixture; None for a part that is generated without text."""
    parts = {name: part for name, (_, part) in config.data.parts().items()}
    first: dict[str, tuple[str, DataConfig]] = {}
    for name, part in parts.items():
        if part.task in SYNTHETIC:
            continue
        other, before = first.setdefault(part.source, (name, part))
        for key in ("holdout", "held_out_source"):
            mine, theirs = getattr(part, key), getattr(before, key)
            if mine != theirs:
                raise UserError(
                    f"config.data.mixture.{name}.{key}={shown(mine)}, and {shown(theirs)} of mixture.{other}, whose source is "
                    f"the same, {shown(part.source)}: one would be trained on what the other holds out; give both the same"
                )
    return {name: None if part.task in SYNTHETIC else _open(part, tokenizer, split) for name, part in parts.items()}


def _open(data: DataConfig, tokenizer: Tokenizer, split: str) -> Documents:
    source = local(source_of(data, split))
    if data.task == "triplets" and (not is_prepared(source) or read_manifest(source).fields != TRIPLET):
        raise UserError(
            f"the task 'triplets' needs a folder prepared with the fields {', '.join(TRIPLET)}, and "
            f"config.data.source={source} is not one"
        )
    return open_documents(data, tokenizer, split)


def make_rows(
    config: Config, tokenizer: Tokenizer, split: str = "train", documents: dict[str, Documents | None] | None = None
) -> RowSource:
    """The rows of the batches, in their global order; `documents` are those of each part, if they are already open."""
    rows: dict[str, tuple[float, RowSource]] = {}
    documents = documents or _open_parts(config, tokenizer, split)
    for name, (weight, part) in config.data.parts().items():
        opened = documents[name]
        if opened is None:
            rows[name] = weight, Synthetic(part.task, tokenizer, config.context, seed=config.seed, split=split)
        else:
            rows[name] = weight, _task_rows(opened, part, config, tokenizer, split)
    return Mixture(rows) if config.data.mixture else rows[""][1]


def held_out(config: Config, tokenizer: Tokenizer, allow: Collection[str] = ()) -> np.ndarray:
    """The held-out documents end to end, without begin and end tokens: [tokens] int32."""
    sources = texts_of(config)
    for part in sources.values():
        _check_allowed(part.held_out_source or part.source, allow)
    ids: list[np.ndarray] = []
    for part in sources.values():
        documents = open_documents(part, tokenizer, "held_out")
        ids += documents.read(np.arange(documents.shards[-1]))
    if not ids:
        first = next(iter(sources.values()))
        raise UserError(
            f"config.data.holdout={first.holdout} holds no text out; give for example 0.1 (a prepared folder decides "
            "for itself: prepare it with a hold-out, or name text with config.data.held_out_source)"
        )
    ending = tokenizer.eos is not None
    return np.concatenate([text[:-1] if ending else text for text in ids])


def texts_of(config: Config) -> dict[tuple[str, str, float, str], DataConfig]:
    """The parts of a configuration's data, keyed by the text that they read and what they hold out of it; each text once."""
    parts = [part for _, part in config.data.parts().values()]
    # The source of a generated part is only the default.
    read = [part for part in parts if part.task not in SYNTHETIC] or parts
    return {(part.source, part.text_field, part.holdout, part.held_out_source): part for part in read}


def _check_allowed(source: str, allow: Collection[str]) -> None:
    if is_fetched(source) and source not in allow:
        raise UserError(
            f"the held-out text is at {shown(source)}, and what a run names is fetched only on your word: "
            f"add --allow={shown(source)}, or name other text with --config.data.source"
        )


def held_out_triplets(config: Config, tokenizer: Tokenizer, length: int) -> Triplets:
    """The held-out triplets of a run, in an order that is the same for every seed."""
    if config.data.mixture or config.data.task != "triplets":
        raise UserError(
            f"config.data.task={config.data.task!r} of one source has no triplets to hold out; name some with "
            "--config.data.task=triplets --config.data.source=FOLDER, and of a mixture --config.data.mixture={}"
        )
    if is_fetched(source := source_of(config.data, "held_out")):
        raise UserError(
            f"an evaluation does not fetch triplets from {source}; copy the folder and give it as --config.data.source"
        )
    documents = _open(config.data, tokenizer, "held_out")
    return Triplets(documents, Shuffle(documents, 0, config.data.shuffle), length, eos=tokenizer.eos)


def held_out_hash(config: Config) -> str:
    """Sixteen hex digits that identify the shards read by `held_out_triplets`."""
    shards = read_manifest(source_of(config.data, "held_out")).shards
    digests = [shard.sha256 for shard in shards["held_out"] or shards["train"]]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]


def mask_texts(texts: np.ndarray, first: int, data: DataConfig, tokenizer: Tokenizer) -> Batch:
    """Texts [texts, T] as rows of the task masked; which tokens are masked depends only on the text's number."""

    class Texts:
        def take(self, numbers: np.ndarray) -> Batch:
            return {"targets": texts[numbers - first]}

    numbers = np.arange(first, first + len(texts))
    return Masked(Texts(), tokenizer, fraction=data.mask_fraction, seed=0).take(numbers)


def _task_rows(documents: Documents, data: DataConfig, config: Config, tokenizer: Tokenizer, split: str) -> RowSource:
    match data.task:
        case "passkey":
            keys = {"fraction": data.passkey_fraction, "answer_weight": data.answer_weight}
            return Planted(
                documents, tokenizer, config.context, block=config.batch, seed=config.seed, split=split, **keys
            )
        case "triplets":
            shuffle = Shuffle(documents, config.seed, data.shuffle)
            return Triplets(documents, shuffle, config.context, eos=tokenizer.eos)
        case "masked":
            rows = _packed(documents, data, config, tokenizer, shift=0)
            return Masked(rows, tokenizer, fraction=data.mask_fraction, seed=config.seed)
        case _:
            return _packed(documents, data, config, tokenizer, shift=1)


def _packed(documents: Documents, data: DataConfig, config: Config, tokenizer: Tokenizer, shift: int) -> RowSource:
    if data.packing == "framed":
        if tokenizer.bos is None:
            raise UserError(
                f"tokenizer {tokenizer.spec!r} has no begin token, which config.data.packing='framed' needs; "
                "give --config.data.packing=concat, or tokenizer 'mistral'"
            )
        documents = Begun(documents, tokenizer.bos)
    shuffle = Shuffle(documents, config.seed, data.shuffle)
    options: dict[str, Any] = {"document_mask": data.document_mask, "restart": data.positions == "restart"}
    if data.packing == "first_fit":
        return FirstFit(documents, shuffle, config.context, shift=shift, **options)
    across = data.packing == "framed"
    return Concatenated(documents, shuffle, config.context, shift=shift, across=across, **options)
