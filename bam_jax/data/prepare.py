"""Tokenise a corpus into a prepared folder, or resume doing so.

If it is killed at any moment, the same command resumes and writes the same bytes.

python -m bam_jax.data.prepare --source=FOLDER --tokenizer=mistral --out=data/mine [--holdout-tokens=1000000] [--dry-run]
python -m bam_jax.data.prepare --preset=fineweb-10bt --out=data/fineweb
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bam_jax.data.corpora.presets import BY_SUFFIX, CORPORA, FORMATS
from bam_jax.data.prepared import shards
from bam_jax.data.prepared.preparing import PreparationRequest, forecast, prepare
from bam_jax.data.sources.corpus import check_outside, find_corpus, open_corpus
from bam_jax.data.sources.source import ERRORS, MAX_BYTES, Source
from bam_jax.data.tokenizers import BUILT_IN, Tokenizer, tokenizer
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.system import files, lock
from bam_jax.system.errors import UserError

SHARD_TOKENS = 2**26  # 128 MiB of uint16


def main(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    if options.verify:
        shards.verify(_require(options, "out"))
        print(f"{options.out}: every byte of every shard is as it was written")
        return
    if options.preset is None:
        _require(options, "source")
        if options.split is not None:
            raise UserError(
                f"--split={options.split} chooses among the files of a --preset; give one, or name the files with --source alone"
            )
    options.split = options.split or "train"
    request = PreparationRequest(
        **_limits(options),
        tokenizer=_tokenizer(options),
        source=_open(options),
        preset=options.preset,
        seed=options.seed,
        shard_tokens=options.shard_tokens,
        workers=options.workers,
    )
    fragments = request.source.fragments()
    if options.dry_run:
        print(forecast(request, fragments))
        return
    folder = Path(_require(options, "out"))
    check_outside(f"--out={folder}", folder, request.source.path)
    with lock.hold_folder(folder, f"another process is preparing {folder}; wait for it, or give another --out"):
        print(prepare(folder, request, fragments))


def _require(options: argparse.Namespace, name: str) -> Any:
    value = getattr(options, name)
    if value is None:
        raise UserError(f"--{name} is not given (see --help)")
    return value


def _tokenizer(options: argparse.Namespace) -> Tokenizer:
    if options.tokenizer is not None or options.preset is None:
        return tokenizer(_require(options, "tokenizer"))
    spec = find_corpus(options.preset, options.split).tokenizer
    try:
        # A sweep prepares its folders again. The user may have prepared one of them before, with the files of that tokenizer.
        return find_tokenizer(spec, [] if options.out is None else [options.out])
    except UserError as error:
        if spec in BUILT_IN:
            raise
        raise UserError(f"--preset={options.preset} uses {spec}; give --tokenizer={spec}:PATH ({error})") from error


def _limits(options: argparse.Namespace) -> dict[str, Any]:
    limits: dict[str, Any] = {"holdout_tokens": 0, "holdout_records": 0, "max_tokens": None, "sample_records": None}
    if options.preset is not None:
        corpus = find_corpus(options.preset, options.split)
        limits = {name: getattr(corpus, name) for name in limits}
        if options.split != "train":  # this split is held out itself
            limits |= {"holdout_tokens": 0, "holdout_records": 0}
    given = {name: getattr(options, name) for name in (*limits, "max_records")}
    limits = {"max_records": None} | limits | {name: value for name, value in given.items() if value is not None}
    drawn = [name for name in ("sample_records", "holdout_records") if limits[name]]
    first = [name for name in ("max_tokens", "max_records", "holdout_tokens") if limits[name]]
    if drawn and first:
        one, other = (f"--{names[0].replace('_', '-')}={limits[names[0]]}" for names in (drawn, first))
        raise UserError(
            f"{one} draws from the whole source and {other} goes by its beginning; give --sample-records and "
            "--holdout-records, or neither"
        )
    return limits


def _open(options: argparse.Namespace) -> Source:
    fields = None if options.text_field is None else tuple(options.text_field.split(","))
    reading: dict[str, Any] = {"errors": options.errors, "max_bytes": options.max_record_bytes}
    if options.preset is None:
        return Source(options.source, fields or ("text",), format=options.format or BY_SUFFIX, **reading)
    reading |= {"path": options.source, "fields": fields, "format": options.format}
    return open_corpus(options.preset, options.split, **reading)


def _parser() -> argparse.ArgumentParser:
    parser = errors.Parser(prog="python -m bam_jax.data.prepare", description=__doc__)
    add = parser.add_argument
    add(
        "--source", help="a file, a folder, gs://... or s3://..., tfds:NAME[:SPLIT]; of .txt, .jsonl, .parquet and more"
    )
    add("--preset", help=f"a paper's corpus: {', '.join(CORPORA)}; gives what the other options leave open")
    add("--split", help="the preset's files: train (default); of WikiText also validation or test")
    add("--tokenizer", help="char, byte, mistral, gpt2[:FOLDER], bert:PATH, bpe:PATH")
    add("--out", type=files.local, help="the folder to make; a folder begun with the same command is gone on with")
    add("--text-field", help="column or field of the text, or several with commas between (default: text)")
    add(
        "--format",
        help=f"{' or '.join((BY_SUFFIX, *FORMATS))}: cut lines into documents as this corpus does, whatever the files' suffix",
    )
    add("--errors", default="strict", help=f"{' or '.join(ERRORS)}: what bytes that are not UTF-8 become")
    add("--holdout-tokens", type=_positive, help="tokens of whole documents to hold out (default: 0, or the preset's)")
    drawn = "drawn at random from the whole source"
    add("--holdout-records", type=_natural, help=f"documents or triplets to hold out, {drawn}")
    add("--sample-records", type=_positive, help=f"documents or triplets to train on, {drawn}")
    add("--seed", type=_seed, default=0, help="of the choice which documents are held out, and which are drawn")
    add("--max-tokens", type=_positive, help="stop when so many are there to train on")
    add("--max-records", type=_positive, help="stop when so many documents or triplets are read")
    add(
        "--max-record-bytes",
        type=_positive,
        default=MAX_BYTES,
        help=f"refuse a larger document or line ({MAX_BYTES:,}): what a small file inflates to may have any size",
    )
    add("--shard-tokens", type=_positive, default=SHARD_TOKENS, help="tokens after which a shard is finished")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    add("--workers", type=_natural, default=cores, help="processes; 0: tokenise in this one")
    add("--dry-run", action="store_true", help="read a sample, say what the whole would give and take, write nothing")
    add("--verify", action="store_true", help="see that every byte of --out is as it was written")
    return parser


def _whole(least: int, text: str) -> int:
    if not text.replace("_", "").isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


_natural, _positive = functools.partial(_whole, 0), functools.partial(_whole, 1)


def _seed(text: str) -> int:
    if not text.removeprefix("-").isdecimal() or not -(2**63) <= int(text) < 2**63:  # eight bytes key the hashes
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 64 bits")
    return int(text)


if __name__ == "__main__":
    errors.run(main)
