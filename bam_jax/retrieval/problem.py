"""A retrieval problem: its documents, queries and judgements, in the columns of MLDR, BEIR or mteb.

| | documents | queries | judgements |
|---|---|---|---|
| MLDR | docid, text | query_id, query, positive_passages [{docid, text}] | with the queries, or TREC's four columns in .tsv |
| BEIR | _id, title, text | _id, text | .tsv: query-id, corpus-id, score |
| mteb | _id or id, title, text | _id or id, text | query-id, corpus-id, score |

Files are .jsonl (also .gz, .zst), .parquet or, for judgements, .tsv; or a folder of them. Other columns are allowed.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, shown
from bam_jax.system.extras import import_extra
from bam_jax.system.files import File, list_files, shortened

PIECE = 1024  # documents of a corpus that are embedded together; a kill loses the work on at most these
DOCUMENT = ("docid", "_id", "id")
QUERY = ("query_id", "_id", "id")
QUERY_TEXT = ("query", "text")
POSITIVES = "positive_passages"
JUDGED_QUERY, JUDGED_DOCUMENT, GRADE = ("query-id", "query_id"), ("corpus-id", "corpus_id", "docid"), "score"

_LARGEST = 2**28  # bytes of a line: a small file may inflate to any size
_ROWS = 16  # of a parquet file, decoded at a time: each may be a long document


class Document(NamedTuple):
    """A text to be found."""

    id: str
    text: str


class Query(NamedTuple):
    """A query with the grades of the judged documents, 0 or less for a document that does not answer it."""

    id: str
    text: str
    grades: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Piece:
    """Consecutive documents of a corpus."""

    first: int
    documents: Sequence[Document]  # one at least

    @property
    def hash(self) -> str:
        return _digest(self.documents).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Queries and their corpus, whose texts stay on disk."""

    corpus: str
    ids: tuple[str, ...]
    queries: tuple[Query, ...]  # those that some document answers
    unanswered: int  # queries without a positive, which are skipped
    absent: int  # positives that the corpus lacks; no ranking finds them
    repeated: frozenset[bytes]  # the `text_hash` of each text that several documents have
    documents_hash: str
    hash: str

    def pieces(self, size: int = PIECE) -> Iterator[Piece]:
        changed = UserError(f"{self.corpus} was changed while it was read; give the command again")
        first, kept, digest = 0, list[Document](), hashlib.sha256()
        for document in read_documents(self.corpus):
            number = first + len(kept)
            if number >= len(self.ids) or document.id != self.ids[number]:
                raise changed
            digest.update(_digest([document]).digest())
            kept.append(document)
            if len(kept) == size:
                yield Piece(first, kept)
                first, kept = number + 1, []
        if kept:
            yield Piece(first, kept)
        if digest.hexdigest()[:16] != self.documents_hash:
            raise changed


def load(corpus: str, queries: str, qrels: str = "") -> Problem:
    digest, places, texts, repeated = hashlib.sha256(), dict[str, None](), set[bytes](), set[bytes]()
    for document in read_documents(corpus):
        if document.id in places:
            raise UserError(f"{corpus} has the document {document.id} twice; remove one of the two")
        places[document.id] = None
        text = text_hash(document.text)
        (repeated if text in texts else texts).add(text)
        digest.update(_digest([document]).digest())
    documents_hash = digest.hexdigest()[:16]
    if not places:
        raise UserError(f"{corpus} has no documents; give a corpus with some")
    seen, asked = set[str](), list[Query]()
    for query in read_queries(queries, qrels):
        if query.id in seen:
            raise UserError(f"{queries} has the query {query.id} twice; remove one of the two")
        seen.add(query.id)
        if any(grade > 0 for grade in query.grades.values()):
            asked.append(query)
            digest.update(_digest([Document(query.id, query.text)]).digest())
            digest.update(repr(sorted(query.grades.items())).encode())
    if not asked:
        where = f"{qrels} judges no document an answer to one" if qrels else "none has a positive passage"
        raise UserError(f"of the {len(seen)} queries in {queries}, {where}; give the judgements of these queries")
    positives = [name for query in asked for name, grade in query.grades.items() if grade > 0]
    absent = sum(name not in places for name in positives)
    if absent == len(positives):
        raise UserError(
            f"none of the {absent} positives, such as {positives[0]}, is in {corpus}; give their own corpus"
        )
    return Problem(
        corpus,
        tuple(places),
        tuple(asked),
        unanswered=len(seen) - len(asked),
        absent=absent,
        repeated=frozenset(repeated),
        documents_hash=documents_hash,
        hash=digest.hexdigest()[:16],
    )


def text_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def _digest(documents: Sequence[Document]) -> "hashlib._Hash":
    digest = hashlib.sha256()
    for part in (part for document in documents for part in document):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))  # so that equal text split in other places differs
        digest.update(encoded)
    return digest


def read_documents(path: str) -> Iterator[Document]:
    """Reads the documents in a fixed order; a title goes before its text."""
    for row, where in _read_rows(path):
        text, title = _text(row, ("text",), where), row["title"] if "title" in row else ""
        if title is not None and not isinstance(title, str):
            raise UserError(f"{where} has title={shown(title)}, which must be text; mend it")
        yield Document(_identifier(row, DOCUMENT, where), f"{title} {text}" if title else text)


def read_queries(path: str, qrels: str = "") -> Iterator[Query]:
    judged = read_judgements(qrels) if qrels else None
    for row, where in _read_rows(path):
        name = _identifier(row, QUERY, where)
        grades = _passages(row, where) if judged is None else judged.get(name, {})
        yield Query(name, _text(row, QUERY_TEXT, where), grades)


def read_judgements(path: str) -> dict[str, dict[str, int]]:
    judged: dict[str, dict[str, int]] = {}
    for row, where in _read_rows(path):
        query, document = _identifier(row, JUDGED_QUERY, where), _identifier(row, JUDGED_DOCUMENT, where)
        grade = _grade(row[GRADE], where) if GRADE in row else 1  # some lists contain only positives, without grades
        grades = judged.setdefault(query, {})
        if grades.setdefault(document, grade) != grade:
            raise UserError(
                f"{where} judges {document} for {query} a second time, otherwise; leave one line of the two"
            )
    return judged


def _passages(row: Mapping[str, Any], where: str) -> dict[str, int]:
    if POSITIVES not in row:
        raise UserError(
            f"{where} has no column {POSITIVES} (its columns: {shortened(row)}); name the file of judgements with --qrels"
        )
    passages = row[POSITIVES]
    if not isinstance(passages, list) or not all(isinstance(passage, dict) for passage in passages):
        raise UserError(
            f"{where} has {POSITIVES}={shown(passages)}, which must be a list of records with docid; mend it"
        )
    return {_identifier(passage, DOCUMENT, f"{where}, {POSITIVES},"): 1 for passage in passages}


def _column(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
    """The value of the first of these columns that is present."""
    for name in names:
        if name in row:
            return row[name]
    raise UserError(
        f"{where} has no column {' or '.join(names)} (its columns: {shortened(row)}); rename the one that is meant"
    )


def _text(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> str:
    value = _column(row, names, where)
    if value is not None and not isinstance(value, str):
        raise UserError(f"{where} has {' or '.join(names)}={shown(value)}, which must be text; mend it")
    return value or ""


def _identifier(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> str:
    """An identifier as TREC files allow it: printable, without spaces."""
    value = _column(row, names, where)
    name = str(value) if type(value) in (str, int) else ""
    if not name or not name.isprintable() or re.search(r"\s", name):
        raise UserError(
            f"{where} has {' or '.join(names)}={shown(value)}, which must be a word without spaces; mend or remove it"
        )
    return name


def _grade(value: Any, where: str) -> int:
    """A whole number; .tsv files have text, .parquet files also floats."""
    text = str(value).removesuffix(".0")
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise UserError(f"{where} has {GRADE}={shown(value)}, which must be a whole number; mend it")
    return int(text)


def _read_rows(path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each record of the files of a path, and its name in errors."""
    readers = {".jsonl": _read_jsonl, ".parquet": _read_parquet, ".tsv": _read_tsv}
    files = [file for file in list_files(path, ("*",)) if file.kind in readers]
    if not files:
        raise UserError(f"{path} has no .jsonl, .parquet or .tsv file; name one, or a folder with some")
    for file in files:
        yield from readers[file.kind](file)


def _read_jsonl(file: File) -> Iterator[tuple[Mapping[str, Any], str]]:
    for number, (line, _) in enumerate(file.read_lines(_LARGEST), 1):
        if line.isspace():
            continue
        where = f"{file.path} line {number}"
        row = typed_json.parse(bytes(line), where, strict=False)
        if not isinstance(row, dict):
            raise UserError(f"{where} is no record but {shown(row)}; mend or remove it")
        yield row, where


def _read_parquet(file: File) -> Iterator[tuple[Mapping[str, Any], str]]:
    arrow = import_extra("pyarrow", file.path, "data")
    parquet = import_extra("pyarrow.parquet", file.path, "data")
    with file.named_in_errors(arrow.ArrowException), file.open_raw() as raw:
        batches = parquet.ParquetFile(raw, pre_buffer=False).iter_batches(batch_size=_ROWS)
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            yield row, f"{file.path} row {number}"


def _read_tsv(file: File) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Judgements below a line of names, as in BEIR, or in TREC's columns without names."""
    names: list[str] = []
    for number, (line, _) in enumerate(file.read_lines(_LARGEST), 1):
        where = f"{file.path} line {number}"
        cells = line.decode("utf-8", "replace").split()
        if not cells:
            continue
        if not names:
            if set(cells) & set(JUDGED_QUERY):
                names = cells
                continue
            names = [JUDGED_QUERY[0], "iteration", JUDGED_DOCUMENT[0], GRADE]
        if len(cells) != len(names):
            raise UserError(f"{where} has {len(cells)} columns and not {len(names)}: {', '.join(names)}; mend it")
        yield dict(zip(names, cells, strict=True)), where
