"""Texts to hold in memory: those of a corpus, or of a folder of one's own; and which of them are held out."""

import hashlib
from collections.abc import Iterable, Iterator

from bam_jax.data.sources.corpus import names_corpus, open_corpus
from bam_jax.data.sources.source import Source
from bam_jax.system.errors import UserError


def read_texts(source: str, text_field: str = "text") -> Iterator[str]:
    """Reads the documents of a source, always in the same order; empty ones are left out."""
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
    """Divides documents into those to train on and those held out, at the very fraction of the characters.

    Documents are held out in the order of their hashes while they fit; the tail of the next one fills the
    rest (of a single document thus its end). A document that occurs twice counts once: it is never both
    trained on and held out.

    Args:
        holdout: fraction of the characters to hold out, in [0, 1).
    """
    unique = list(dict.fromkeys(texts))
    room = round(holdout * sum(map(len, unique)))
    trained: dict[int, int] = {}  # document number -> characters at its start to train on
    # By hash, not by place: neighbours in a source are alike, and its end may be of another kind than its beginning.
    for number in sorted(range(len(unique)), key=lambda number: _hash(unique[number])):
        size = min(room, len(unique[number]))
        trained[number] = len(unique[number]) - size
        room -= size
    train = [text[: trained[number]] for number, text in enumerate(unique) if trained[number]]
    held_out = [text[trained[number] :] for number, text in enumerate(unique) if trained[number] < len(text)]
    return train, held_out


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
