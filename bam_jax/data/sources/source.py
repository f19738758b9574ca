"""Where text comes from: a source is a list of parts, always in the same order, each read record by record.

Memory is bounded by the largest record, whatever the size of the source, and how large a record may be is bounded as well.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator

from bam_jax.data.sources import tfds
from bam_jax.data.sources.parquet import Columns
from bam_jax.data.sources.records import Part, Read, chosen, decoded
from bam_jax.data.sources.wikitext import articles
from bam_jax.system import strict_json
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.files import File, is_remote, listing, too_large

SUFFIXES = {".txt": "text", ".jsonl": "jsonl", ".parquet": "parquet", ".raw": "wikitext", ".tokens": "wikitext"}
"""What a file holds: a document; a record a line; records in columns; WikiText's articles."""
PATTERNS = ("*",)
FORMATS = ("auto", "wikitext")
ERRORS = ("strict", "replace")
TFDS = "tfds:"
LARGEST = 2**28
"""Bytes of a record at most, unless said otherwise: a small file may inflate to any size."""


@dataclasses.dataclass(frozen=True)
class Source:
    """What to read and how.

    Args:
        path: a file, a folder, an address such as gs://bucket/folder, or tfds:NAME[:SPLIT].
        fields: names of the fields or columns that hold a record's texts; a .txt has none.
        patterns: of the files' names below the path; those of the first that matches any.
        format: "auto", by the files' suffixes, or "wikitext": documents begin at title lines whatever the suffix.
        errors: what bytes that are not UTF-8 are: "strict", an error, or "replace", the replacement character each.
        largest: bytes of a record at most: of a .txt, a line, an article, a text in a column.
    """

    path: str
    fields: tuple[str, ...] = ("text",)
    patterns: tuple[str, ...] = PATTERNS
    format: str = "auto"
    errors: str = "strict"
    largest: int = LARGEST

    def __post_init__(self) -> None:
        for name, value, known in (("format", self.format, FORMATS), ("errors", self.errors, ERRORS)):
            if value not in known:
                raise UserError(f"unknown {name} {value!r}; {nearest(value, known)}")

    def parts(self) -> list[Part]:
        """Its parts, always in the same order.

        Raises:
            UserError: nothing there, no file of a known kind, or one that cannot be opened.
        """
        if self.path.startswith(TFDS):
            return tfds.parts(self.path, self.fields, self.errors, self.largest)
        files = [file for file in listing(self.path, self.patterns) if file.kind in SUFFIXES]
        if not files:
            raise UserError(
                f"data source {self.path} has no {' or '.join(SUFFIXES)} file; name one, or a folder with some "
                "(.txt and .jsonl may be compressed: .gz, .zst)"
            )
        kinds = [("wikitext" if self.format == "wikitext" else SUFFIXES[file.kind]) for file in files]
        # An article may begin in one file of WikiText and end in the next.
        wiki = tuple(file for file, kind in zip(files, kinds, strict=True) if kind == "wikitext")
        found = [part for file, kind in zip(files, kinds, strict=True) for part in self._parts(file, kind)]
        if wiki:
            read = functools.partial(_wikitext, wiki, self)
            found.append(Part(" ".join(file.name for file in wiki), sum(file.size for file in wiki), read))
        return found

    def _parts(self, file: File, kind: str) -> list[Part]:
        match kind:
            case "text":
                return [Part(file.name, file.size, functools.partial(_text, file, self))]
            case "jsonl":
                return [Part(file.name, file.size, functools.partial(_jsonl, file, self))]
            case "parquet":
                return _row_groups(file, self)
        return []


def is_fetched(path: str) -> bool:
    """Whether a source is read from elsewhere than a path of this machine: an address for fsspec, or a dataset by its name.

    >>> is_fetched("s3://bucket/corpus"), is_fetched("tfds:wiki40b/en"), is_fetched("corpora/fineweb")
    (True, True, False)
    """
    return path.startswith(TFDS) or is_remote(path)


def digest(parts: list[Part]) -> str:
    """Sixteen hex digits of the parts' names and sizes: another source, or another version of it, has others.

    Args:
        parts: of a source.
    """
    listing = json.dumps([(part.name, part.size) for part in parts])
    return hashlib.sha256(listing.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _text(file: File, source: Source) -> Read:
    text = decoded(file.whole(source.largest), source.errors, file.path)
    # What Python's text files do with the ends of lines.
    yield (text.replace("\r\n", "\n").replace("\r", "\n"),), file.size


def _jsonl(file: File, source: Source) -> Read:
    start = 0
    for number, (line, read) in enumerate(file.lines(source.largest), 1):
        if not line.isspace():
            where = f"{file.path} line {number}"
            record = strict_json.parse(decoded(line, source.errors, file.path, start), where, strict=False)
            yield chosen(record, source.fields, where), read
        start += len(line)


def _row_groups(file: File, source: Source) -> list[Part]:
    """A part for each row group: reading goes on at any of them without reading those before."""
    columns = Columns(file, source.fields, source.largest)
    return [
        Part(f"{file.name}#{number}", size, functools.partial(_rows, file, source, columns, number, size, rows))
        for number, (size, rows) in enumerate(columns.groups())
    ]


def _rows(file: File, source: Source, columns: Columns, group: int, size: int, rows: int) -> Read:
    for number, texts in enumerate(columns.rows(group), 1):
        where = f"{file.path} row {number} of group {group}"
        yield tuple(decoded(text, source.errors, where) for text in texts), size * number // rows


def _wikitext(files: tuple[File, ...], source: Source) -> Read:
    done = article = 0

    def lines() -> Iterator[str]:
        nonlocal done, article
        for file in files:
            before = done
            for number, (line, read) in enumerate(_wiki_lines(file, source), 1):
                done = before + read
                article += len(line)
                if article > source.largest:
                    raise too_large(f"the article that goes on in {file.path} at line {number}", source.largest)
                yield line
            done = before + file.size

    for text in articles(lines()):
        article = 0
        yield (text,), done


def _wiki_lines(file: File, source: Source) -> Iterator[tuple[str, int]]:
    if file.kind == ".parquet":
        columns = Columns(file, source.fields, source.largest)
        groups = columns.groups()
        for number, (_, rows) in enumerate(groups):
            for row, (text,) in enumerate(columns.rows(number), 1):
                where = f"{file.path} row {row} of group {number}"
                yield decoded(text, source.errors, where), file.size * (number * rows + row) // (len(groups) * rows)
        return
    start = 0
    for line, read in file.lines(source.largest):
        yield decoded(line, source.errors, file.path, start), read
        start += len(line)
