"""Files in the columns of MLDR, BEIR and mteb give the same problem; what is no problem is one clear line."""

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from bam_jax.retrieval.problem import Document, load, read_documents, read_judgements, read_queries
from bam_jax.system.errors import UserError

TEXTS = {"d1": "A title first text", "d2": "second", "d3": ""}
QUERIES = {"q1": "which?", "q2": "who?"}
GRADES = {"q1": {"d1": 1}, "q2": {"d2": 1, "d3": 1}}


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def mldr(folder):
    corpus = folder / "corpus.jsonl.gz"
    corpus.write_bytes(gzip.compress("\n".join(json.dumps({"docid": n, "text": t}) for n, t in TEXTS.items()).encode()))
    positives = {q: [{"docid": name, "text": TEXTS[name]} for name in grades] for q, grades in GRADES.items()}
    records = [query(q, query=text, positive_passages=positives[q], negatives=[]) for q, text in QUERIES.items()]
    return str(corpus), lines(folder / "test.jsonl", records), ""


def beir(folder):
    titles = {"d1": ("A title", "first text")}
    texts = {name: titles[name] if name in titles else ("", text) for name, text in TEXTS.items()}
    documents = [{"_id": name, "title": title, "text": text, "metadata": {}} for name, (title, text) in texts.items()]
    (folder / "qrels").mkdir()
    rows = [f"{q}\t{name}\t{grade}" for q, grades in GRADES.items() for name, grade in grades.items()]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    queries = [{"_id": q, "text": text} for q, text in QUERIES.items()]
    return lines(folder / "corpus.jsonl", documents), lines(folder / "queries.jsonl", queries), str(folder / "qrels")


def mteb(folder):
    tables = {
        "corpus": {"id": [*TEXTS], "title": ["A title", None, ""], "text": ["first text", "second", None]},
        "queries": {"id": list(QUERIES), "text": list(QUERIES.values())},
        "qrels": {"query-id": ["q1", "q2", "q2"], "corpus-id": ["d1", "d2", "d3"], "score": [1.0, 1.0, 1.0]},
    }
    for name, columns in tables.items():
        (folder / name).mkdir()
        parquet.write_table(pyarrow.table(columns), folder / name / "test-00000-of-00001.parquet")
    return tuple(str(folder / name) for name in tables)


@pytest.mark.parametrize("schema", [mldr, beir, mteb])
def test_the_published_columns_are_read(schema, tmp_path):
    corpus, queries, qrels = schema(tmp_path)
    assert list(read_documents(corpus)) == [Document(*item) for item in TEXTS.items()]
    found = {q.id: (q.text, q.grades) for q in read_queries(queries, qrels)}
    assert found == {name: (text, GRADES[name]) for name, text in QUERIES.items()}
    problem = load(corpus, queries, qrels)
    assert problem.ids == tuple(TEXTS) and not problem.unanswered and not problem.absent
    pieces = list(problem.pieces(2))
    assert [(piece.first, len(piece.documents)) for piece in pieces] == [(0, 2), (2, 1)]
    assert len({piece.hash for piece in pieces}) == 2


def test_trec_judgements_and_lists_without_grades_are_read(tmp_path):
    (tmp_path / "qrels.tsv").write_text("q1 Q0 d1 2\nq1\t0\td2\t-1\n")
    assert read_judgements(str(tmp_path / "qrels.tsv")) == {"q1": {"d1": 2, "d2": -1}}
    listed = lines(tmp_path / "qrels.jsonl", [{"query-id": "q1", "corpus-id": "d9"}])
    assert read_judgements(listed) == {"q1": {"d9": 1}}


def query(name="q", *positives, **others):
    return {"query_id": name, "query": "?", "positive_passages": [{"docid": p} for p in positives], **others}


def make(folder, corpus=({"docid": "a", "text": "x"},), queries=None, qrels=None):
    queries = [query("q", "a")] if queries is None else queries
    judged = "" if qrels is None else lines(folder / "qrels.jsonl", qrels)
    return load(lines(folder / "corpus.jsonl", corpus), lines(folder / "queries.jsonl", queries), judged)


def judged(score):
    return {"query-id": "q", "corpus-id": "a", "score": score}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"corpus": [{"docid": "a", "text": "x"}] * 2}, "has the document a twice; remove"),
        ({"corpus": []}, "has no documents; give"),
        ({"corpus": [{"docid": "a", "body": "x"}]}, r"line 1 has no column text \(its columns: docid, body\)"),
        ({"corpus": [{"docid": "a b", "text": "x"}]}, "'a b', which must be a word without spaces"),
        ({"corpus": [{"docid": "a", "text": 3}]}, "text=3, which must be text"),
        ({"corpus": [["a", "x"]]}, "line 1 is no record but"),
        ({"queries": [query("q", "a"), query("q", "a")]}, "has the query q twice; remove"),
        ({"queries": [query("q")]}, "of the 1 queries in .*, none has a positive passage; give"),
        ({"queries": [query("q", "b")]}, "none of the 1 positives, such as b, is in .*corpus.jsonl"),
        ({"queries": [{"query_id": "q", "query": "?"}]}, "no column positive_passages .* name the file .* --qrels"),
        ({"queries": [query("q", positive_passages="a")]}, "must be a list of records"),
        ({"qrels": [judged(0)]}, "judges no document an answer"),
        ({"qrels": [judged("x")]}, "score='x', which must be a whole number"),
        ({"qrels": [judged(1), judged(2)]}, "judges a for q a second time"),
    ],
)
def test_mistakes(files, message, tmp_path):
    with pytest.raises(UserError, match=message) as error:
        make(tmp_path, **files)
    assert "\n" not in str(error.value)


def test_another_text_has_another_hash(tmp_path):
    first = make(tmp_path)
    assert make(tmp_path).hash == first.hash
    assert make(tmp_path, corpus=[{"docid": "a", "text": "y"}]).hash != first.hash
    assert make(tmp_path, queries=[query("q", "a", "gone")]).hash != first.hash


@pytest.mark.parametrize("later", ["by ax", "ax", "ax bz", "ax by cz"])
def test_a_corpus_that_changes_meanwhile_is_refused(tmp_path, later):
    corpus = lambda words: [{"docid": word[0], "text": word[1]} for word in words.split()]
    problem = make(tmp_path, corpus=corpus("ax by"))
    assert [document.id for piece in problem.pieces(1) for document in piece.documents] == ["a", "b"]
    lines(tmp_path / "corpus.jsonl", corpus(later))
    with pytest.raises(UserError, match="was changed while it was read"):
        list(problem.pieces())


def test_a_folder_without_such_files_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("x")
    with pytest.raises(UserError, match=r"has no .jsonl, .parquet or .tsv file"):
        list(read_documents(str(tmp_path)))
