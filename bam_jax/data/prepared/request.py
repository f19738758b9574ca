"""A request to prepare a corpus: the options of the command, completed from the preset or the defaults."""

import argparse
import dataclasses
from typing import Any

from bam_jax.data.sources.corpus import find_corpus, open_corpus
from bam_jax.data.sources.source import BY_SUFFIX, Source
from bam_jax.data.tokenizers import BUILT_IN, Tokenizer, tokenizer
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.system.errors import UserError

_LIMITS = ("holdout_tokens", "holdout_records", "max_tokens", "max_records", "sample_records")


@dataclasses.dataclass(frozen=True)
class PreparationRequest:
    """A corpus to prepare, and the way to do it.

    Args:
        source: what is read.
        preset: the name of the corpus; None: it has none.
        tokenizer: makes texts ids.
        seed: of the choice which records are held out, and which are drawn.
        holdout_tokens: tokens of whole documents to hold out.
        holdout_records: records to hold out, drawn from the whole source.
        max_tokens: tokens to train on, at most; None: all.
        max_records: records to read, at most; None: all.
        sample_records: records to train on, drawn from the whole source; None: all.
        shard_tokens: tokens after which a shard is finished.
        workers: processes that tokenise.
    """

    source: Source
    preset: str | None
    tokenizer: Tokenizer
    seed: int
    holdout_tokens: int
    holdout_records: int
    max_tokens: int | None
    max_records: int | None
    sample_records: int | None
    shard_tokens: int
    workers: int


def complete(options: argparse.Namespace) -> PreparationRequest:
    """Fills in what the options leave open: from the preset, or the defaults."""
    if options.preset is None:
        require(options, "source")
        if options.split is not None:
            raise UserError(
                f"--split={options.split} chooses among the files of a --preset; give one, or name the files with --source alone"
            )
    if options.split is None:
        options.split = "train"
    limits = _limits(options)
    _check_limits(limits)
    made = _tokenizer(options)
    return PreparationRequest(
        source=_open(options),
        preset=options.preset,
        tokenizer=made,
        seed=options.seed,
        shard_tokens=options.shard_tokens,
        workers=options.workers,
        **limits,
    )


def require(options: argparse.Namespace, name: str) -> Any:
    """The value of an option."""
    value = getattr(options, name)
    if value is None:
        raise UserError(f"--{name} is not given (see --help)")
    return value


def _tokenizer(options: argparse.Namespace) -> Tokenizer:
    """The tokenizer that is given, or else the preset's."""
    if options.tokenizer is not None or options.preset is None:
        return tokenizer(require(options, "tokenizer"))
    spec = find_corpus(options.preset, options.split).tokenizer
    try:
        # A sweep prepares its folders once more, of which the user may have prepared one with the files of that tokenizer.
        return find_tokenizer(spec, [] if options.out is None else [options.out])
    except UserError as error:
        if spec in BUILT_IN:
            raise
        raise UserError(f"--preset={options.preset} uses {spec}; give --tokenizer={spec}:PATH ({error})") from error


def _limits(options: argparse.Namespace) -> dict[str, Any]:
    """The numbers of tokens and records: those given, or else the preset's."""
    limits: dict[str, Any] = {"holdout_tokens": 0, "holdout_records": 0}
    limits |= {"max_tokens": None, "max_records": None, "sample_records": None}
    if options.preset is not None:
        corpus = find_corpus(options.preset, options.split)
        limits |= {"max_tokens": corpus.max_tokens, "sample_records": corpus.sample_records}
        if options.split == "train":  # other splits are held out already
            limits |= {"holdout_tokens": corpus.holdout_tokens, "holdout_records": corpus.holdout_records}
    given = {name: getattr(options, name) for name in _LIMITS}
    return limits | {name: value for name, value in given.items() if value is not None}


def _check_limits(limits: dict[str, Any]) -> None:
    drawn = [name for name in ("sample_records", "holdout_records") if limits[name]]
    first = [name for name in ("max_tokens", "max_records", "holdout_tokens") if limits[name]]
    if drawn and first:
        one, other = (f"--{names[0].replace('_', '-')}={limits[names[0]]}" for names in (drawn, first))
        raise UserError(
            f"{one} draws from the whole source and {other} goes by its beginning; give --sample-records and "
            "--holdout-records, or neither"
        )


def _open(options: argparse.Namespace) -> Source:
    fields = None if options.text_field is None else tuple(options.text_field.split(","))
    if options.preset is not None:
        return open_corpus(
            options.preset,
            options.split,
            path=options.source,
            fields=fields,
            format=options.format,
            errors=options.errors,
            largest=options.max_record_bytes,
        )
    return Source(
        path=options.source,
        fields=("text",) if fields is None else fields,
        format=BY_SUFFIX if options.format is None else options.format,
        errors=options.errors,
        largest=options.max_record_bytes,
    )
