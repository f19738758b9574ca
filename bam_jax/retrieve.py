"""Rank documents with a trained encoder, and evaluate the ranking at several lengths.

    python -m bam_jax.retrieve --run=runs/x --corpus=corpus.jsonl.gz --queries=test.jsonl.gz --lengths=512,1024 --out=runs/ranked

It writes a TREC run file for each length and `metrics.json` into --out, and prints a table with intervals over the queries. If
it is killed, the same command continues from the embeddings in --out, which are saved in a file for each thousand documents.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
import dataclasses
import functools
from collections.abc import Sequence

from bam_jax import config as configs
from bam_jax.data.sources.corpus import check_outside
from bam_jax.evals.plan import check_memory, rows_within
from bam_jax.parallel import sharding
from bam_jax.retrieval import results
from bam_jax.retrieval.embedding import Reader
from bam_jax.retrieval.metrics import DEPTH
from bam_jax.retrieval.problem import Problem, load
from bam_jax.retrieval.ranking import SCORERS, rank
from bam_jax.retrieval.results import EMBEDDINGS, Origin, Setting
from bam_jax.system import console, files, git, lock, programs, resources
from bam_jax.system.errors import UserError, nearest
from bam_jax.training import checkpoint, run_folder


def main(argv: Sequence[str]) -> None:
    given, overrides = configs.parse(argv, _parser())
    overrides, mesh = sharding.take_mesh(overrides)
    lengths, scorers = sorted(set(configs.lengths_of(given.lengths))), given.scorers.split(",")
    _check(given, lengths, scorers)
    configs.allowed(given.allow)
    resources.keep_freed_memory()
    programs.keep()
    out, name = given.out, f"--out={given.out}"
    for source in filter(None, (given.corpus, given.queries, given.qrels)):
        check_outside(name, out, source)
    problem = load(given.corpus, given.queries, given.qrels)
    _note(problem)
    own, step = run_folder.read_config(given.run), run_folder.trained_step(given.run)
    run_folder.check_outside_data(name, out, own)
    config, tokenizer, model = checkpoint.restore_model(given.run, overrides=overrides, step=step, mesh=mesh)
    if "encoder" in scorers:
        if config.model.causal:
            raise UserError(
                f"{given.run} is a decoder, which reads only backwards and is not trained to embed texts; give the run of an "
                "encoder, or --scorers=tokens,bm25"
            )
        for length in lengths:
            model.check_length(length)
    origin: Origin = {
        "run": str(given.run),
        "config": configs.digest(own),
        "step": step,
        "overrides": configs.typed(overrides),
        "tokenizer": tokenizer.hash,
        "data_hash": problem.hash,
        "queries": len(problem.queries),
        "documents": len(problem.ids),
        "corpus": given.corpus,
    }
    model.config = dataclasses.replace(config.model, scan=True)  # one layer is compiled instead of each
    rows = functools.partial(rows_within, given.memory * 2**30, config=config.model)
    reader = Reader(model, tokenizer, rows, configs.to_json(config))
    with lock.hold_folder(out, f"another process retrieves into {out}; wait for it, or give another --out"):
        found = results.read_results(out, origin)
        for scorer in scorers:
            total = len(problem.ids) * len(lengths)
            bar = console.progress(total, unit="document", label=scorer, show=given.progress)
            with bar, sharding.active(mesh):
                best = rank(problem, reader, scorer, lengths, bar, folder=out / EMBEDDINGS, k=given.top)
            for length in lengths:
                summary = results.summarise(results.measure_rankings(problem, best[length]))
                found[Setting(scorer, length)] = {"commit": git.describe(), **summary}
            results.write_results(out, origin, found)  # first, because it marks the folder as ours
            for length in lengths:
                results.write_run(out / f"{scorer}-{length}.run", problem, best[length], f"bam_jax-{scorer}-{length}")
    print("\n".join(results.table(found)))


def _parser() -> argparse.ArgumentParser:
    parser = errors.Parser(prog="python -m bam_jax.retrieve", description=__doc__)
    add = parser.add_argument
    add("--run", type=files.local_path, required=True, help="the folder of a trained run")
    add(
        "--corpus",
        required=True,
        help="documents: .jsonl, .jsonl.gz or .parquet, with MLDR's, BEIR's or mteb's columns",
    )
    add("--queries", required=True, help="queries, in the same forms")
    add("--qrels", default="", help="their judgements, also .tsv (default: the positive_passages of the queries)")
    add("--lengths", required=True, help="tokens at which texts are cut, as in 512,1024")
    add(
        "--out",
        type=files.local_path,
        required=True,
        help="the folder to write: new, empty, or of rankings of the same step and problem",
    )
    add("--scorers", default="encoder", help=f"what ranks, with commas, of {', '.join(SCORERS)} (encoder)")
    add("--top", type=int, default=DEPTH, help=f"documents of each query in the run files, {DEPTH} or more ({DEPTH})")
    add("--memory", type=float, default=2.0, help="for activations, GiB (2)")
    configs.allow_option(parser)
    console.progress_option(parser)
    return parser


def _check(given: argparse.Namespace, lengths: Sequence[int], scorers: Sequence[str]) -> None:
    """Raise UserError if the arguments are invalid for every run."""
    if lengths[0] < 1:
        raise UserError(f"--lengths={given.lengths} must be 1 token or more, as in --lengths=512,1024")
    for scorer in scorers:
        if scorer not in SCORERS:
            raise UserError(f"unknown scorer {scorer!r} in --scorers={given.scorers}; {nearest(scorer, SCORERS)}")
    if given.top < DEPTH:
        raise UserError(f"--top={given.top} must be {DEPTH} or more, which recall@{DEPTH} looks at")
    check_memory(given.memory)


def _note(problem: Problem) -> None:
    """Log which queries of a problem are skipped, and how many positives can never be found."""
    if problem.unanswered:
        console.log(f"{problem.unanswered} queries have no positive and are left out; {len(problem.queries)} are asked")
    if problem.absent:
        console.log(f"{problem.absent} positives are not in the corpus and count as not found")


if __name__ == "__main__":
    errors.run(main)
