"""Time retrieval over generated documents with MLDR's lengths, and estimate the time for all of MLDR.

    python -m benchmarks.retrieval_speed --run=runs/encoder --documents=20000 --length=512 --out=runs/speed

Documents have 3,308 words on average, log-normal. They, the queries and the embeddings stay in --out, so a killed command can
continue. It then reports no rates, which need an uninterrupted command.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bam_jax import config as configs
from bam_jax.config import ModelConfig
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.models.counts import CHIPS, UTILISATION, parameters_of
from bam_jax.models.transformer import split
from bam_jax.retrieval.embedding import Embedder, Reader, tokenise
from bam_jax.retrieval.metrics import DEPTH
from bam_jax.retrieval.problem import Problem, load
from bam_jax.retrieval.ranking import rank
from bam_jax.system import console, files, lock, resources
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint
from bam_jax.training.duration import span

WORDS, SPREAD = 3308, 0.8
"""The mean number of words of MLDR's English documents (Chen et al. 2024), and a spread of its logarithm."""
MLDR, LONGEST = 200_000, 16_384
"""The number of MLDR's English documents, and the largest length at which CABLE's Table 3 cuts them."""

MADE_UP = b'{"docid": "d0", "text": "'
"""The beginning of each generated corpus."""


class Work(NamedTuple):
    """The work of embedding documents once."""

    tokens: float
    operations: float


def make_up(folder: Path, documents: int, queries: int) -> None:
    """Write a problem of random words; each query is the beginning of a document."""
    whole = folder / "corpus.jsonl"
    if whole.exists():
        with whole.open("rb") as corpus:
            ours = corpus.read(len(MADE_UP)) == MADE_UP
        if not ours:
            raise UserError(f"{whole} is there, and this command did not write it; give another --out")
        return
    files.keep_other(folder / "queries.jsonl", '{"query_id": "q0", ')
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("etaoinshrdlu"), size)) for size in rng.integers(2, 9, 5000)])
    lengths = np.exp(rng.normal(np.log(WORDS) - SPREAD**2 / 2, SPREAD, documents)).astype(int) + 8
    asked = []
    draft = folder / ".corpus.jsonl.draft"  # renamed last, so an existing corpus is complete
    with draft.open("w") as corpus:
        for number, length in enumerate(lengths.tolist()):
            text = " ".join(words[rng.integers(0, len(words), length)])
            corpus.write(json.dumps({"docid": f"d{number}", "text": text}) + "\n")
            if number < queries:
                positive = [{"docid": f"d{number}"}]
                asked.append({"query_id": f"q{number}", "query": text[:60], "positive_passages": positive})
    files.write_atomically(folder / "queries.jsonl", "".join(json.dumps(record) + "\n" for record in asked))
    draft.replace(whole)


def work(model: ModelConfig, parameters: int, counts: np.ndarray, length: int, documents: int) -> Work:
    """The tokens and forward operations of embedding documents, per token: 2 N, plus 4 layers width length for attention.

    Args:
        counts: [n], tokens of some of the documents, from which the total is estimated.
    """
    cut = np.minimum(counts, length).astype(np.float64)
    pairs = 4 * model.layers * model.width * cut
    scale = documents / len(cut)
    return Work(scale * cut.sum(), scale * (cut * (2 * parameters + pairs)).sum())


def token_counts(problem: Problem, tokenizer: Tokenizer) -> np.ndarray:
    """The number of tokens of each document in a problem's first piece, [documents]."""
    piece = next(problem.pieces())
    return np.array([len(ids) for ids in tokenise(tokenizer, [document.text for document in piece.documents])])


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m benchmarks.retrieval_speed", description=__doc__)
    parser.add_argument("--run", type=files.local_path, required=True, help="the folder of a trained run")
    parser.add_argument("--out", type=files.local_path, required=True, help="the folder to write")
    for name, default in (("documents", 20_000), ("queries", 100), ("length", 512)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    configs.allow_option(parser)
    console.progress_option(parser)
    given = parser.parse_args(argv)
    if not 0 < given.queries <= given.documents or given.length < 1:
        raise UserError("--documents must be --queries or more, and --queries and --length 1 or more")
    configs.allowed(given.allow)
    config, tokenizer, model = checkpoint.restore_model(given.run)
    with lock.hold_folder(given.out, f"another process writes into {given.out}; wait for it, or give another --out"):
        make_up(given.out, given.documents, given.queries)
        problem = load(str(given.out / "corpus.jsonl"), str(given.out / "queries.jsonl"))
        if (len(problem.ids), len(problem.queries)) != (given.documents, given.queries):
            raise UserError(
                f"{given.out} has {len(problem.ids)} documents and {len(problem.queries)} queries, not {given.documents} and "
                f"{given.queries}; give another --out"
            )
        # Batches have few tokens, so any number of rows fits.
        reader = Reader(model, tokenizer, lambda length: given.documents, configs.to_json(config))
        embeddings = given.out / "embeddings"
        begun = Embedder(reader).folder(embeddings, given.length).exists()
        start = time.perf_counter()
        with console.progress(len(problem.ids), unit="document", label="embedded", show=given.progress) as bar:
            rank(problem, reader, "encoder", [given.length], bar, folder=embeddings, k=DEPTH)
        seconds = time.perf_counter() - start
    if begun:
        print(
            f"embeddings were in {embeddings} already, so that {seconds:.0f} s say no rate; remove it, or give another --out"
        )
        return
    layers = parameters_of(split(model)[1]).transformer
    estimate = functools.partial(work, config.model, layers, token_counts(problem, tokenizer))
    done = estimate(given.length, len(problem.ids))
    rate = done.operations / seconds
    print(f"{len(problem.ids):,} documents cut at {given.length} tokens, {given.queries} queries: {seconds:.0f} s,")
    memory = (resources.peak_bytes() or 0) / 2**30
    print(f"{len(problem.ids) / seconds:,.1f} documents/s, {rate / 1e9:.1f} GFLOP/s, {memory:.2f} GiB at most")
    for length in sorted({given.length, LONGEST}):
        whole = estimate(length, MLDR)
        h100 = whole.operations / (CHIPS["h100"] * UTILISATION)
        print(
            f"{MLDR:,} documents cut at {length}: {whole.tokens:.2e} tokens, {whole.operations:.2e} FLOP, "
            f"{span(whole.operations / rate)} here, {span(h100)} on one H100 at {UTILISATION:.0%} of its peak"
        )


if __name__ == "__main__":
    errors.run(main)
