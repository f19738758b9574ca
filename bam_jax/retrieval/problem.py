"""A retrieval problem as a whole: which documents there are, and the queries that they answer."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

from bam_jax.retrieval.records import Document, Query, read_documents, read_queries
from bam_jax.system.errors import UserError

PIECE = 1024
"""Documents of a corpus that are embedded together, and whose work a kill may lose."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """Documents that follow one another in a corpus."""

    first: int
    documents: Sequence[Document]  # one at least

    @property
    def hash(self) -> str:
        """Sixteen hex digits: other documents, or others before them, have others."""
        return _digest(self.documents).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Queries and the corpus that answers them; the documents' texts stay on disk."""

    corpus: str
    ids: tuple[str, ...]
    queries: tuple[Query, ...]  # those that some document answers
    unanswered: int  # number of queries without a positive, which are left out
    absent: int  # number of positives that the corpus lacks. They count as documents that no ranking finds
    repeated: frozenset[bytes]  # the `text_hash` of each text that several documents have
    documents_hash: str
    hash: str

    def pieces(self, size: int = PIECE) -> Iterator[Piece]:
        """The documents, some at a time."""
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
    """Reads a problem, and sees that it is one."""
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
        digest.update(len(encoded).to_bytes(8, "little"))  # so that no two texts are one when put together otherwise
        digest.update(encoded)
    return digest
