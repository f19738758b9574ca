"""The text of a named corpus or of a source, and the part of it that is held out."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bam_jax.data.corpora.presets import CORPORA, Corpus
from bam_jax.data.sources.source import MAX_BYTES, TFDS, Source
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.files import list_files

STDLIB = "stdlib"  # the corpus that comes with every Python


def names_corpus(source: str) -> bool:
    """True for the name of a corpus. A file or folder of that name takes precedence over a corpus that is read from files."""
    return source in CORPORA and (CORPORA[source].make is not None or not Path(source).exists())


def check_outside(name: str, path: Path, source: str) -> None:
    """Raise UserError if an output path is inside a source, where it would be read as data."""
    if names_corpus(source):
        if CORPORA[source].make is not None:  # it is read from no files
            return
        source = f"corpora/{source}"
    if path.resolve().is_relative_to(Path(source).resolve()):
        raise UserError(
            f"{name} lies in the data source {source}, where it would be read as data; give one outside of it"
        )


def find_corpus(name: str, split: str) -> Corpus:
    if name not in CORPORA:
        raise UserError(f"unknown preset {name!r}; {nearest(name, CORPORA)}")
    corpus = CORPORA[name]
    if split not in corpus.splits:
        raise UserError(f"{name} has no split {split!r}; {nearest(split, corpus.splits)}")
    return corpus


def open_corpus(
    name: str, split: str = "train", *, errors: str = "strict", max_bytes: int = MAX_BYTES, **given: Any
) -> Source:
    """The source of a corpus, whose files must exist; `given` are a path, fields and a format that replace its own."""
    corpus = find_corpus(name, split)
    given = {field: value for field, value in given.items() if value is not None}
    if corpus.make is not None:
        if given:
            raise UserError(f"{name} is read from no files; leave --source, --text-field and --format out")
        return Source(name, make=corpus.make)
    own: dict[str, Any] = {"path": f"corpora/{name}", "fields": corpus.fields, "format": corpus.format}
    compose = None if "fields" in given else corpus.compose
    patterns = corpus.splits[split]
    source = Source(**own | given, patterns=patterns, errors=errors, max_bytes=max_bytes, compose=compose)
    try:
        found = source.path.startswith(TFDS) or bool(list_files(source.path, source.patterns))
    except UserError:  # no such folder; an unreadable one is detected when it is read
        found = False
    if not found:
        raise UserError(
            f"{name} ({split}) is not at {source.path}; "
            f"fetch it there (licence: {corpus.licence}): {corpus.download(source.path)}  (or name its folder with --source)"
        )
    return source


def read_texts(source: str, text_field: str = "text") -> Iterator[str]:
    """Read the documents of a source, always in the same order, without empty ones."""
    opened = open_corpus(source) if names_corpus(source) else Source(source, (text_field,))
    if len(opened.documents) > 1:
        raise UserError(
            f"the records of {source} are {', '.join(opened.documents)}, which only a prepared folder keeps together; "
            f"prepare it: python -m bam_jax.data.prepare --preset={source} --out=FOLDER"
        )
    empty = True
    for fragment in opened.fragments():
        for (text,), _ in fragment.read():
            if text.strip():
                empty = False
                yield text
    if empty:
        raise UserError(f"data source {source} holds no text; name a folder or file with some")


def divide(texts: Iterable[str], holdout: float) -> tuple[list[str], list[str]]:
    """Divide documents into those to train on and those held out, at an exact fraction of the characters.

    Documents are held out in the order of their hashes while they fit; the tail of the next one fills the rest. Duplicate
    documents count once.
    """
    unique = list(dict.fromkeys(texts))
    room = round(holdout * sum(map(len, unique)))
    trained: dict[int, int] = {}  # document number -> characters at its start to train on
    # By hash, not by position: neighbours in a source are similar, and its end may differ from its beginning.
    digest = lambda number: hashlib.sha256(unique[number].encode("utf-8", "surrogatepass")).digest()
    for number in sorted(range(len(unique)), key=digest):
        size = min(room, len(unique[number]))
        trained[number] = len(unique[number]) - size
        room -= size
    train = [text[: trained[number]] for number, text in enumerate(unique) if trained[number]]
    held_out = [text[trained[number] :] for number, text in enumerate(unique) if trained[number] < len(text)]
    return train, held_out
