"""Tokenises a corpus into a prepared folder (see `shards`); killed at any moment, the same command goes on to the same bytes.

python -m bam_jax.data.prepare --source=FOLDER --tokenizer=mistral --out=data/mine [--holdout-tokens=1000000] [--dry-run]
python -m bam_jax.data.prepare --preset=fineweb-10bt --out=data/fineweb
"""

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bam_jax.data.prepared import shards
from bam_jax.data.prepared.estimate import Estimate, estimate, threshold
from bam_jax.data.prepared.filling import fill
from bam_jax.data.prepared.pool import ALL, Encoder
from bam_jax.data.prepared.sampling import draw
from bam_jax.data.sources.presets import PRESETS, preset
from bam_jax.data.sources.records import Part
from bam_jax.data.sources.source import ERRORS, FORMATS, LARGEST, Source, digest
from bam_jax.data.tokenizers import Tokenizer, tokenizer
from bam_jax.data.tokenizers.kept import FOLDER, keep
from bam_jax.system import errors, lock
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.files import listing, shortened

SHARD_TOKENS = 2**26  # 128 MiB of uint16
DOCUMENT_BYTES = 66  # that a record takes beside its ids: its chunk's header, its place in the index, its length
_DECIDED = ("threshold", "sample_threshold")  # by reading the source
_NOTHING = {"records": 0, "empty": 0, "left_out": 0, "bytes": 0}


def main(argv: Sequence[str]) -> None:
    """Prepare a corpus, estimate what that takes, or verify a prepared folder.

    Args:
        argv: the command's arguments.
    """
    options = _parser().parse_args(argv)
    if options.verify:
        shards.verify(_given(options, "out"))
        print(f"{options.out}: every byte of every shard is as it was written")
        return
    _complete(options)
    made = tokenizer(options.tokenizer)
    source, parts = _source(options)
    if options.dry_run:
        print(forecast(parts, Encoder(made, options.seed), options))
        return
    folder = Path(_given(options, "out"))
    folder.mkdir(parents=True, exist_ok=True)
    with lock.hold(folder, f"another process is preparing {folder}; wait for it, or give another --out"):
        manifest = _manifest(folder, options, source, parts, made)
        keep(made, folder)  # so that the folder can be read where the tokenizer's files are not
        if manifest.next is None:
            print(f"{folder} is complete already: {_summary(manifest)}")
            return
        encoder = Encoder(made, options.seed, manifest.recipe["sample_threshold"])
        print(_summary(fill(folder, manifest, parts, encoder, options.workers)))


def forecast(parts: list[Part], encoder: Encoder, options: argparse.Namespace) -> str:
    """What preparing would give and take, from a sample.

    Args:
        parts: of the source.
        encoder: tokenises the sample.
        options: the command's, complete.
    """
    whole = estimate(parts, encoder)
    share = _share(whole, options)
    tokens, documents = whole.tokens * share, whole.documents * share
    size = tokens * int(encoder.dtype[-1]) + documents * DOCUMENT_BYTES
    return "\n".join(
        [
            f"source      {len(parts):,} parts, {sum(part.size for part in parts) / 1e9:.3f} GB as stored",
            f"documents   about {documents:,.0f}, {whole.bytes * share / 1e9:.3f} GB of text",
            f"tokens      about {tokens:,.0f}",
            f"shards      about {size / 1e9:.3f} GB",
            f"time        about {_clock(whole.seconds * share / max(options.workers, 1))} with {options.workers} workers "
            f"({whole.tokens / whole.seconds / 1e6:.2f} M tokens/s each)",
        ]
    )


def _share(whole: Estimate, options: argparse.Namespace) -> float:
    """The part of the source that the options take, estimated."""
    records = whole.documents / len(options.text_field.split(","))
    shares = [
        (options.max_tokens or whole.tokens) / whole.tokens + options.holdout_tokens / whole.tokens,
        (options.max_records or records) / records,
        (options.sample_records or records) / records + options.holdout_records / records,
    ]
    return min(1.0, *shares)


def _parser() -> argparse.ArgumentParser:
    parser = errors.Parser(prog="python -m bam_jax.data.prepare", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--source", help="a file, a folder, gs://... or s3://..., tfds:NAME[:SPLIT]; of .txt, .jsonl, .parquet and more"
    )
    add("--preset", help=f"a paper's corpus: {', '.join(PRESETS)}; gives what the other options leave open")
    add("--split", default="train", help="the preset's files: train; of WikiText also validation or test")
    add("--tokenizer", help="char, byte, mistral, gpt2[:FOLDER], bert:PATH, bpe:PATH")
    add("--out", help="the folder to make; a folder begun with the same command is gone on with")
    add("--text-field", help="column or field of the text, or several with commas between (default: text)")
    add("--format", help=f"{' or '.join(FORMATS)}: documents begin at lines ' = Title = ' (default: by suffix)")
    add("--errors", default="strict", help=f"{' or '.join(ERRORS)}: what bytes that are not UTF-8 become")
    add("--holdout-tokens", type=_count, help="tokens of whole documents to hold out (default: 0, or the preset's)")
    add(
        "--holdout-records",
        type=_any_count,
        help="documents or triplets to hold out, drawn at random from the whole source",
    )
    add(
        "--sample-records", type=_count, help="documents or triplets to train on, drawn at random from the whole source"
    )
    add("--seed", type=int, default=0, help="of the choice which documents are held out, and which are drawn")
    add("--max-tokens", type=_count, help="stop when so many are there to train on")
    add("--max-records", type=_count, help="stop when so many documents or triplets are read")
    add(
        "--max-record-bytes",
        type=_count,
        default=LARGEST,
        help=f"refuse a larger document or line ({LARGEST:,}): what a small file inflates to may have any size",
    )
    add("--shard-tokens", type=_count, default=SHARD_TOKENS, help="tokens after which a shard is finished")
    add("--workers", type=_any_count, default=_cores(), help="processes; 0: tokenise in this one")
    add("--dry-run", action="store_true", help="read a sample, say what the whole would give and take, write nothing")
    add("--verify", action="store_true", help="see that every byte of --out is as it was written")
    return parser


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count(text: str) -> int:
    return _whole(text, 1)


def _any_count(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.replace("_", "").isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def _given(options: argparse.Namespace, name: str) -> str:
    value = getattr(options, name.replace("-", "_"))
    if value is None:
        raise UserError(f"--{name} is not given (see --help)")
    return value


def _complete(options: argparse.Namespace) -> None:
    """Fills in what is not given: from the preset, or the defaults."""
    if options.preset is None:
        _given(options, "source")
        options.patterns = ("*",)
        defaults: dict[str, Any] = {"format": "auto", "holdout_tokens": 0, "holdout_records": 0, "text_field": "text"}
    else:
        chosen = preset(options.preset)
        if options.split not in chosen.patterns:
            raise UserError(
                f"{options.preset} has no split {options.split!r}; {nearest(options.split, chosen.patterns)}"
            )
        options.patterns = chosen.patterns[options.split]
        defaults = {
            "source": f"corpora/{options.preset}",
            "format": chosen.format,
            "text_field": ",".join(chosen.fields),
            "tokenizer": chosen.tokenizer,
            "holdout_tokens": chosen.holdout_tokens if options.split == "train" else 0,
            "holdout_records": chosen.holdout_records if options.split == "train" else 0,
            "max_tokens": chosen.max_tokens,
            "sample_records": chosen.sample_records,
        }
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    _given(options, "tokenizer")
    drawn = [name for name in ("sample_records", "holdout_records") if getattr(options, name)]
    first = [name for name in ("max_tokens", "max_records", "holdout_tokens") if getattr(options, name)]
    if drawn and first:
        one, other = (f"--{names[0].replace('_', '-')}={getattr(options, names[0])}" for names in (drawn, first))
        raise UserError(
            f"{one} draws from the whole source and {other} goes by its beginning; give --sample-records and "
            "--holdout-records, or neither"
        )


def _source(options: argparse.Namespace) -> tuple[Source, list[Part]]:
    fields = tuple(options.text_field.split(","))
    source = Source(options.source, fields, options.patterns, options.format, options.errors, options.max_record_bytes)
    if options.preset is not None and not source.path.startswith("tfds:"):
        try:
            there = bool(listing(source.path, source.patterns))
        except UserError:
            there = False
        if not there:
            raise UserError(
                f"{options.preset} ({options.split}) is not at {source.path}; "
                f"fetch it there: {preset(options.preset).download(source.path)}  (or name its folder with --source)"
            )
    return source, source.parts()


def _manifest(
    folder: Path, options: argparse.Namespace, source: Source, parts: list[Part], made: Tokenizer
) -> shards.Manifest:
    """That of the folder, if it was begun in the same way; otherwise a new one."""
    recipe = {
        "source": source.path,
        "preset": options.preset,
        "parts": len(parts),
        "parts_hash": digest(parts),
        "format": source.format,
        "errors": source.errors,
        "seed": options.seed,
        "holdout_tokens": options.holdout_tokens,
        "max_tokens": options.max_tokens,
        "max_records": options.max_records,
        "holdout_records": options.holdout_records,
        "sample_records": options.sample_records,
        "shard_tokens": options.shard_tokens,
    }
    fields = source.fields
    begun = shards.read_manifest(folder) if (folder / shards.MANIFEST).exists() else None
    if begun is not None and any(begun.shards.values()):
        for name, there, wanted in (
            ("recipe", begun.recipe, {*recipe, *_DECIDED}),
            ("counts", begun.counts, set(_NOTHING)),
        ):
            if there.keys() != wanted:
                other = shortened(sorted(there.keys() ^ wanted))
                raise UserError(
                    f"{folder} was begun by another version of bam_jax ({name}: {other}); give another --out"
                )
        for name in _DECIDED:
            if type(begun.recipe[name]) is not int or not 0 <= begun.recipe[name] <= ALL:
                raise UserError(
                    f"{folder}: the field 'recipe.{name}' of its manifest is not a hash; give another --out"
                )
        _same(folder, "tokenizer", begun.tokenizer["hash"], made.hash)
        _same(folder, "text-field", ",".join(begun.fields), ",".join(fields))
        for key, value in recipe.items():
            if key not in ("source", "preset", "parts"):  # wherever it lies now, and however it was named
                _same(folder, key, begun.recipe[key], value)
        return begun
    if begun is not None:  # without a finished shard nothing is lost by beginning anew
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
    elif any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UserError(f"--out={folder} holds other files; name a folder that is empty or not there yet")
    recipe |= dict(zip(_DECIDED, _thresholds(parts, Encoder(made, options.seed), options), strict=True))
    fresh = shards.Manifest(
        recipe=recipe,
        fields=fields,
        tokenizer=made.identity(),
        dtype=Encoder(made, options.seed).dtype,
        shards=dict.fromkeys(shards.SPLITS, ()),
        counts=_NOTHING,
        next=(0, 0),
    )
    fresh.write(folder)
    return fresh


def _thresholds(parts: list[Part], encoder: Encoder, options: argparse.Namespace) -> tuple[int, int]:
    """The hash below which a record is held out, and that from which on it is left out."""
    if options.sample_records or options.holdout_records:
        return draw(parts, encoder, options.holdout_records, options.sample_records)
    if not options.holdout_tokens:
        return 0, ALL
    whole = estimate(parts, encoder)
    return threshold(options.holdout_tokens, round(whole.tokens * _share(whole, options))), ALL


def _same(folder: Path, name: str, begun: Any, given: Any) -> None:
    if begun != given:
        what = "the files of the source" if name == "parts_hash" else f"--{name.replace('_', '-')}"
        raise UserError(
            f"{folder} was begun with another value of {what} ({begun}, not {given}); "
            "give the same, or another --out, or remove that folder to begin anew"
        )


def _summary(manifest: shards.Manifest) -> str:
    lines = []
    for split in shards.SPLITS:
        lines.append(
            f"{split} {manifest.tokens(split):,} tokens in {manifest.documents(split):,} documents, "
            f"{len(manifest.shards[split])} shards"
        )
    counts = manifest.counts
    lines.append(f"{counts['records']:,} records read, {counts['empty']:,} of them empty")
    short = manifest.recipe["holdout_tokens"] - manifest.tokens("held_out")
    if short > 0:
        lines.append(
            f"{short:,} tokens fewer held out than asked for, as the reserved documents were short: "
            "another --seed chooses others"
        )
    return "; ".join(lines)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


if __name__ == "__main__":
    errors.run(main)
