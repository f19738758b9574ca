"""Retrieval of documents: nDCG@10 of a model's embeddings, or of a baseline ranking, by length.

Source: CABLE, section 5.5: texts are cut at each length, documents are ranked by the cosine of their embedding and the query's.
"""

import contextlib
import dataclasses
import functools
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired

from bam_jax.config import Config
from bam_jax.evals import schema
from bam_jax.evals.base import Evaluation, option
from bam_jax.evals.plan import Plan, Results, SampleRange, Trained, Wanted
from bam_jax.retrieval.embedding import POOLS, Embedder
from bam_jax.retrieval.metrics import DEPTH
from bam_jax.retrieval.problem import Problem, load
from bam_jax.retrieval.ranking import SCORERS, rank
from bam_jax.retrieval.results import measure_rankings
from bam_jax.system import console, regular
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.fields import Count, Line, Share

EMBEDDINGS = "embeddings"
"""The subfolder of a run for embeddings, by the problem's hash, until the records that need them are written."""


class RetrievalRecord(schema.CellRecord):
    """Queries of a problem, of which `of` have an answer; `value` is their mean nDCG@10."""

    value: Share
    recall_100: Share
    mrr_10: Share
    scorer: Line
    documents: Count
    corpus: Line
    queries: Line
    data_hash: Line
    qrels: NotRequired[str]
    depth: NotRequired[None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval(Evaluation):
    """The mean nDCG@10 of the rankings of documents for queries; texts are cut at each length.

    The queries are the first `samples` that have an answer. Costs are estimated for a corpus of `documents`.
    """

    name = "retrieval"
    encoder = True
    sample_noun = "queries"
    record = RetrievalRecord
    identity = ("scorer", "corpus", "queries", "qrels", "data_hash")
    costly = True

    corpus: Line | None = option(
        None, "the documents: .jsonl, .jsonl.gz or .parquet, with MLDR's, BEIR's or mteb's columns"
    )
    queries: Line | None = option(None, "the queries, in the same forms")
    qrels: Line = option("", "the judgements, also .tsv (positive_passages of the queries)")
    scorer: Line = option("encoder", f"what ranks the documents: {', '.join(SCORERS)}")
    samples: Count = option(10_000, "queries at most")
    documents: Count = option(200_000, "of the corpus at most")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scorer not in SCORERS:
            raise UserError(f"unknown --scorer={self.scorer!r}; {nearest(self.scorer, SCORERS)}")

    def plans(self, trained: Trained) -> list[Plan]:
        if self.corpus is None or self.queries is None:
            raise UserError(f"--{'corpus' if self.corpus is None else 'queries'} is missing: name its file or folder")
        problem = load(self.corpus, self.queries, self.qrels)
        if len(problem.ids) > self.documents:
            raise UserError(
                f"{self.corpus} has {len(problem.ids)} documents, more than --documents={self.documents}; give a larger number"
            )
        if self.scorer == "encoder":
            for length in self.lengths:
                trained.decoder.check_length(length)
        identity = {"scorer": self.scorer, "corpus": self.corpus, "queries": self.queries, "qrels": self.qrels}
        identity["data_hash"] = problem.hash
        samples = min(self.samples, len(problem.queries))
        wanted: Wanted = {(length, None): samples for length in self.lengths}
        measured = functools.partial(measure, trained, problem=problem, scorer=self.scorer)
        return [Plan(identity, wanted, measured)]

    def texts(self, length: int) -> float:
        # Rankings by words or by averages of token embeddings do not run the model.
        return self.documents + self.samples if self.scorer == "encoder" else 0.0

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        return None if record is None else min(self.samples, record["of"])

    def headings(self, record: Mapping[str, Any]) -> list[str]:
        return [record["scorer"]]

    def required(self, record: Mapping[str, Any], config: Config) -> dict[str, Any]:
        judged = {"qrels": self.qrels} if "qrels" in record else {}  # which older records lack
        return {"scorer": self.scorer, "corpus": self.corpus, "queries": self.queries} | judged


def measure(trained: Trained, todo: Sequence[SampleRange], *, problem: Problem, scorer: str) -> Results:
    """Ranks all lengths in one pass over the corpus.

    Embeddings stay in the run's folder until all records are written, so that a killed process resumes with them.
    """
    if not todo:
        return
    start = time.perf_counter()
    lengths = sorted({samples.length for samples in todo})
    asked = dataclasses.replace(problem, queries=problem.queries[: max(samples.stop for samples in todo)])
    reader = trained.reader()
    folder = None if trained.folder is None else trained.folder / EMBEDDINGS / problem.hash
    if folder is not None:
        regular.list_tree(folder.parent)
    total = len(problem.ids) * len(lengths)
    with console.progress(total, unit="document", label=f"ranked by {scorer}", show=trained.progress) as bar:
        best = rank(asked, reader, scorer, lengths, bar, folder=folder, k=DEPTH)
    seconds = round((time.perf_counter() - start) / len(lengths), 3)
    for samples in sorted(todo):
        found = measure_rankings(asked, best[samples.length])
        means = [float(values[samples.first : samples.stop].mean()) for values in found]
        result = dict(zip(("value", "recall_100", "mrr_10"), means, strict=True))
        counts = {"documents": len(problem.ids), "of": len(problem.queries)}
        yield samples, {**result, "unit": "nDCG@10", **counts, "seconds": seconds}
    if folder is not None and folder.exists() and scorer in POOLS:
        _discard(Embedder(reader, scorer), lengths, folder)


def _discard(embedder: Embedder, lengths: Sequence[int], folder: Path) -> None:
    """Remove a model's embeddings of a problem, and the folders if they are then empty."""
    for length in lengths:
        shutil.rmtree(embedder.folder(folder, length), ignore_errors=True)
    for each in (folder, folder.parent):
        with contextlib.suppress(OSError):  # other embeddings are there
            each.rmdir()
