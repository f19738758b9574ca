"""A source of text: fragments in a fixed order, each read record by record. Memory and the size of a record are bounded."""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator

from bam_jax.data.corpora.presets import BY_SUFFIX, FORMATS
from bam_jax.data.sources import tfds
from bam_jax.data.sources.fragment import Fragment, Reading, decode, pick_texts
from bam_jax.data.sources.parquet import Columns
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.files import File, is_remote, list_files, too_large

# The contents of a file by its suffix: one document; one record per line; records in columns; WikiText articles.
SUFFIXES = {".txt": "text", ".jsonl": "jsonl", ".parquet": "parquet", ".raw": "wikitext", ".tokens": "wikitext"}
IN_FIELDS = ("jsonl", "parquet")  # contents whose records have fields
ALL_FILES = ("*",)
ERRORS = ("strict", "replace")
TFDS = "tfds:"
MAX_BYTES = 2**28  # default limit of a record's bytes: a small file may decompress to any size


@dataclasses.dataclass(frozen=True)
class Source:
    """A source of text, and how to read it."""

    path: str  # file, folder, address such as gs://bucket/folder, tfds:NAME[:SPLIT], or a corpus with `make`
    fields: tuple[str, ...] = ("text",)  # names of the fields or columns that hold a record's texts; a .txt has none
    patterns: tuple[str, ...] = ALL_FILES  # of file names below the path; the first that matches any file is used
    format: str = BY_SUFFIX  # "auto": by suffix; or the name of a format for files of any suffix: "wikitext"
    errors: str = "strict"  # raise an error for invalid UTF-8; "replace": use replacement characters
    max_bytes: int = MAX_BYTES  # limit of a record's bytes: of a .txt file, a line, an article, or a text in a column
    # combines the texts of a record's fields into one; None: each is a document
    compose: Callable[..., str] | None = None
    make: Callable[[], Iterator[str]] | None = None  # generates the documents of a source without files

    def __post_init__(self) -> None:
        for name, value, known in (("format", self.format, (BY_SUFFIX, *FORMATS)), ("errors", self.errors, ERRORS)):
            if value not in known:
                raise UserError(f"unknown {name} {value!r}; {nearest(value, known)}")
        if self.format != BY_SUFFIX and len(self.fields) > 1:
            raise UserError(
                f"--format={self.format} reads lines of one field, not of {', '.join(self.fields)}; give one"
            )

    @property
    def documents(self) -> tuple[str, ...]:
        """The names of the documents in one record."""
        return self.fields if self.compose is None else ("+".join(self.fields),)

    def fragments(self) -> list[Fragment]:
        if self.make is not None:  # sizes are in characters
            texts = list(self.make())
            read = lambda: zip(((text,) for text in texts), itertools.accumulate(map(len, texts)), strict=True)
            return [Fragment(self.path, sum(map(len, texts)), read)]
        if self.path.startswith(TFDS):
            found = tfds.fragments(self.path, self.fields, self.errors, self.max_bytes)
        else:
            found = self._of_files()
        if self.compose is None:
            return found
        return [dataclasses.replace(one, read=functools.partial(_read_composed, one, self.compose)) for one in found]

    def _of_files(self) -> list[Fragment]:
        # A folder may contain other files, so only known suffixes count, unless a corpus with a format has file name patterns.
        named = self.format != BY_SUFFIX and self.patterns != ALL_FILES
        files = [file for file in list_files(self.path, self.patterns) if named or file.kind in SUFFIXES]
        if not files:
            raise UserError(
                f"data source {self.path} has no {' or '.join(SUFFIXES)} file; name one, or a folder with some "
                "(.txt and .jsonl may be compressed: .gz, .zst)"
            )
        found: list[Fragment] = []
        in_lines: list[File] = []
        for file in files:
            kind = SUFFIXES[file.kind] if self.format == BY_SUFFIX else self.format
            if len(self.fields) > 1 and kind not in IN_FIELDS:
                raise UserError(
                    f"{file.path} has no fields {', '.join(self.fields)}; take it away, or name the files that have them"
                )
            if kind == "parquet":
                found += _row_groups(file, self)
            elif kind in _READ:
                found.append(Fragment(file.name, file.size, functools.partial(_READ[kind], file, self)))
            else:
                in_lines.append(file)
        if in_lines:
            # A single fragment for all files: a document may begin in one file and end in the next.
            name, size = " ".join(file.name for file in in_lines), sum(file.size for file in in_lines)
            found.append(Fragment(name, size, functools.partial(_read_documents_in_lines, in_lines, self)))
        return found


def is_fetched(path: str) -> bool:
    """True for a source that is not a local path: an address for fsspec, or the name of a dataset."""
    return path.startswith(TFDS) or is_remote(path)


def hash_fragments(fragments: list[Fragment]) -> str:
    """Sixteen hex digits of the fragments' names and sizes, which identify a source and its version."""
    listed = json.dumps([(fragment.name, fragment.size) for fragment in fragments])
    return hashlib.sha256(listed.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _read_composed(fragment: Fragment, compose: Callable[..., str]) -> Reading:
    for texts, done in fragment.read():
        yield (compose(*texts),), done


def _read_text(file: File, source: Source) -> Reading:
    text = decode(file.read_whole(source.max_bytes), source.errors, file.path)
    # Convert line ends, as Python's text files do.
    yield (text.replace("\r\n", "\n").replace("\r", "\n"),), file.size


def _read_jsonl(file: File, source: Source) -> Reading:
    start = 0
    for number, (line, done) in enumerate(file.read_lines(source.max_bytes), 1):
        if not line.isspace():
            where = f"{file.path} line {number}"
            record = typed_json.parse(decode(line, source.errors, file.path, start), where, strict=False)
            yield pick_texts(record, source.fields, where), done
        start += len(line)


_READ = {"text": _read_text, "jsonl": _read_jsonl}


def _row_groups(file: File, source: Source) -> list[Fragment]:
    """A fragment for each row group, so that reading can resume at any of them without reading earlier ones."""
    columns = Columns(file, source.fields, source.max_bytes)

    def read(group: int, size: int, rows: int) -> Reading:
        for number, texts in enumerate(columns.rows(group), 1):
            where = f"{file.path} row {number} of group {group}"
            yield tuple(decode(text, source.errors, where) for text in texts), size * number // rows

    return [
        Fragment(f"{file.name}#{group}", size, functools.partial(read, group, size, rows))
        for group, (size, rows) in enumerate(columns.groups())
    ]


def _read_documents_in_lines(files: list[File], source: Source) -> Reading:
    cut = FORMATS["wikitext" if source.format == BY_SUFFIX else source.format]
    done = size = 0  # bytes of the files read so far; size of the current document

    def lines() -> Iterator[str]:
        nonlocal done, size
        for file in files:
            before = done
            for number, (line, read) in enumerate(_read_lines(file, source), 1):
                done = before + read
                size += len(line)
                # A file without titles would be one document of any size.
                if size > source.max_bytes:
                    raise too_large(f"the article that goes on in {file.path} at line {number}", source.max_bytes)
                yield line
            done = before + file.size

    for text in cut(lines()):
        size = 0
        yield (text,), done


def _read_lines(file: File, source: Source) -> Iterator[tuple[str, int]]:
    """The lines of a file, or the rows of a parquet file, each with the bytes read so far."""
    if file.kind == ".parquet":
        columns = Columns(file, source.fields, source.max_bytes)
        groups = columns.groups()
        for number, (_, rows) in enumerate(groups):
            for row, (text,) in enumerate(columns.rows(number), 1):
                where = f"{file.path} row {row} of group {number}"
                yield decode(text, source.errors, where), file.size * (number * rows + row) // (len(groups) * rows)
        return
    start = 0
    for line, read in file.read_lines(source.max_bytes):
        yield decode(line, source.errors, file.path, start), read
        start += len(line)
