"""Documents: the text that every Python carries, or a folder of one's own; and which of it is held out."""

import ast
import gc
import hashlib
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

from bam_jax.data.sources.source import Source
from bam_jax.system.errors import UserError

STDLIB = "stdlib"
_UNREAD = {
    "__pycache__",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
}


def documents(source: str, text_field: str = "text") -> Iterator[str]:
    """The documents of a source, always in the same order; empty ones are left out.

    Args:
        source: "stdlib" (about 1.9M characters, no paragraph twice); or anything that `sources.Source` reads: a
            file, or a folder searched through, of .txt (a document each), .jsonl (a document a line), .parquet and more.
        text_field: the field or column that holds the text.

    Raises:
        UserError: nothing there, nothing in it, or a file that cannot be read or is not what its name says.
    """
    found = False
    for document in _stdlib() if source == STDLIB else _read(Source(source, (text_field,))):
        if document.strip():
            found = True
            yield document
    if not found:
        raise UserError(f"data source {source} holds no text; name a folder or file with some")


def split(texts: Iterable[str], holdout: float) -> tuple[list[str], list[str]]:
    """Divides documents into those to train on and those held out, at the very fraction of the characters.

    Documents are held out in the order of their hashes while they fit; the tail of the next one fills the
    rest (of a single document thus its end). A document that occurs twice counts once: it is never both
    trained on and held out.

    Args:
        texts: the documents.
        holdout: fraction of the characters to hold out, in [0, 1).

    Returns:
        The two lists, each in the order of `texts`.
    """
    unique = list(dict.fromkeys(texts))
    room = round(holdout * sum(map(len, unique)))
    kept: dict[int, int] = {}  # document number -> characters at its start to train on
    for number in sorted(range(len(unique)), key=lambda number: _digest(unique[number])):
        size = min(room, len(unique[number]))
        kept[number] = len(unique[number]) - size
        room -= size
    train = [text[: kept[number]] for number, text in enumerate(unique) if kept[number]]
    held_out = [text[kept[number] :] for number, text in enumerate(unique) if kept[number] < len(text)]
    return train, held_out


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _stdlib() -> Iterator[str]:
    """Python's help topics and each module's docstrings, every paragraph only where it first stands.

    Topics repeat one another's sections, and modules their bases' docstrings: a repeated paragraph could
    otherwise be trained on and held out as well.
    """
    seen: set[str] = set()
    for document in _passages():
        paragraphs = []
        for paragraph in re.split(r"\n\s*\n", document):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                paragraphs.append(paragraph.strip("\n"))
        yield "\n\n".join([*paragraphs, ""])


def _passages() -> Iterator[str]:
    for name in sorted(topics):
        yield topics[name]
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if not _UNREAD.intersection(path.relative_to(root).parts))
    collecting = gc.isenabled()
    gc.disable()  # syntax trees are many objects without a cycle: collecting takes two thirds of the time
    try:
        for path in paths:
            yield "\n\n".join(_docstrings(ast.parse(path.read_bytes())))
    finally:
        if collecting:
            gc.enable()


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler):
            yield from _docstrings(child)


def _read(source: Source) -> Iterator[str]:
    for part in source.parts():
        for (document,), _ in part.read():
            yield document
