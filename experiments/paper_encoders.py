"""CABLE's encoders as rows of experiments: masked language modelling, then contrastive training, then retrieval.

At the paper's scale they are BERT base on FineWeb-Edu and MS MARCO, and retrieve MLDR's documents. At the toy and small scales
all three come from one text: Python's documentation, from which sentences are removed (`bam_jax.data.tasks.inverse_cloze`).
Lengths are an eighth of the paper's: 64 tokens in training, up to 2048 beyond. In the code, lengths are the paper's, and a scale
is "toy", "small" or "paper".

Source: CABLE, section 5.5 and appendix A.1.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import small_scale
from paper_columns import tokens
from paper_rows import CABLE_METHODS, paper

from bam_jax.config import CONFIGS
from bam_jax.evals.contrastive import Contrastive
from bam_jax.evals.masked_perplexity import MaskedPerplexity
from bam_jax.evals.retrieval import Retrieval
from bam_jax.experiments.experiment import Column, Experiment, Fetch, Preparation, Row, Table

SHRINK = 8
"""Tokens of the paper to one of the toy and small scales."""

SEEDS = tuple(range(300, 312))
"""The training seeds of the small scale: twelve, since rankings differ by little."""

ENCODER_METHODS = ("CABLE", "ALiBi", "RoPE", "Learnable", "Sinusoidal")
"""The methods of Table 3 and Figures 6 and 7, names in `CABLE_METHODS`."""

CONTEXT = 512
"""Tokens of a training row."""
MASKED_STEPS = 14_000
"""Steps of masked language modelling."""

VOCABULARY = "corpora/bert-base-uncased"
FINEWEB_EDU, MS_MARCO = "data/fineweb-edu-10bt-bert", "data/ms-marco"
MLDR = "corpora/mldr/mldr-v1.0-en"
"""Where the user has MLDR's English files."""

VOCABULARY_FILES = Fetch(VOCABULARY, f"hf download google-bert/bert-base-uncased vocab.txt --local-dir {VOCABULARY}")
MLDR_FILES = Fetch(
    MLDR, "hf download Shitao/MLDR --repo-type dataset --include 'mldr-v1.0-en/*' --local-dir corpora/mldr"
)

PROBLEM = "corpora/inverse-cloze"
"""The folder that `bam_jax.data.make_retrieval` makes."""

_MASKED: Mapping[str, Mapping[str, Any]] = {
    "toy": {"batch": 16, "steps": 200, "optimizer.rate": 3e-3, "optimizer.warmup": 20},
    "small": {"batch": 16, "steps": 6000, "optimizer.warmup": 300},
}
_CONTRASTIVE: Mapping[str, Mapping[str, Any]] = {
    "toy": {"batch": 16, "steps": 40, "optimizer.rate": 3e-3, "optimizer.warmup": 2},
    # One epoch of 5,929 triplets, as in the paper. After the first of six epochs, models memorise the triplets, and the loss of
    # held-out triplets rises.
    "small": {"batch": 32, "steps": 185, "optimizer.warmup": 9},
}


def masked_row(method: str, scale: str, rates: Mapping[str, float] | None = None) -> Row:
    """An encoder of `CABLE_METHODS` that learns masked tokens, at the small scale with given rates or the search's."""
    if scale == "paper":
        changes: Mapping[str, Any] = {"data.source": FINEWEB_EDU, "model.vocab": 30_522, "steps": MASKED_STEPS}
        return _row(f"{method}, masked", "bert_base.py", method, scale, changes)
    changes = {**_MASKED[scale], **_rates(method, small_scale.MASKED, scale, rates), "data.holdout": 0.1}
    return _row(f"{method}, masked", "quickstart_encoder.py", method, scale, changes)


def early_row(method: str, scale: str) -> Row:
    """The encoder of `masked_row` with a quarter of the steps, in which its schedule ends, and as many of warm-up."""
    whole = masked_row(method, scale)
    steps = {"steps": whole.overrides["steps"] // 4}
    return dataclasses.replace(whole, label=f"{method}, early", overrides={**whole.overrides, **steps})


def contrastive_row(method: str, scale: str, rates: Mapping[str, float] | None = None) -> Row:
    """The encoder of `masked_row`, trained further with triplets."""
    if scale == "paper":
        made = _row(method, "bert_base_msmarco.py", method, scale, {"data.source": MS_MARCO, "model.vocab": 30_522})
    else:
        changes = {**_CONTRASTIVE[scale], **_rates(method, small_scale.TRIPLETS, scale, rates)}
        made = _row(method, "quickstart_retrieval.py", method, scale, changes)
    return dataclasses.replace(made, start=f"{method}, masked")


def _rates(method: str, kind: str, scale: str, rates: Mapping[str, float] | None) -> Mapping[str, float]:
    if scale != "small" or rates is not None:  # the toy scale has one rate for all
        return rates or {}
    return small_scale.chosen_rates(small_scale.learner(method, kind), small_scale.ENCODER_RATES)


def _row(label: str, config: str, method: str, scale: str, changes: Mapping[str, Any]) -> Row:
    every = {"encoding": CABLE_METHODS[method], "context": tokens(CONTEXT, scale, SHRINK), **changes}
    return Row(label, str(CONFIGS / config), every, SEEDS if scale == "small" else (0,))


def masked_perplexity(length: int, scale: str) -> MaskedPerplexity:
    """Perplexity of masked tokens; at the small scale of the texts that are tested with."""
    measured = {"toy": 2**15, "small": 2**18, "paper": 2**24}[scale]
    text = {"data.held_out_source": f"{PROBLEM}/corpus.jsonl"} if scale == "small" else {}
    return MaskedPerplexity((tokens(length, scale, SHRINK),), tokens=measured, overrides=text)


def contrastive_loss(length: int, scale: str) -> Contrastive:
    """Contrastive loss; at the small scale of triplets of the documents that are tested with."""
    # As many triplets as in training, because the loss depends on the number of candidates.
    batch = 128 if scale == "paper" else _CONTRASTIVE[scale]["batch"]
    text = {"data.held_out_source": f"{PROBLEM}/test_triplets"} if scale == "small" else {}
    return Contrastive((tokens(length, scale, SHRINK),), batch=batch, overrides=text)


def retrieval(length: int, scale: str, scorer: str = "encoder") -> Retrieval:
    """Retrieval with a scorer of `bam_jax.retrieval.ranking.SCORERS`."""
    corpus, queries, samples, documents = f"{PROBLEM}/corpus.jsonl", f"{PROBLEM}/queries.jsonl", 2000, 200
    if scale == "paper":
        corpus, queries, samples, documents = f"{MLDR}/corpus.jsonl.gz", f"{MLDR}/test.jsonl.gz", 800, 200_000
    return Retrieval(
        (tokens(length, scale, SHRINK),),
        corpus=corpus,
        queries=queries,
        scorer=scorer,
        samples=samples,
        documents=documents,
    )


def retrieval_columns(lengths: Sequence[str], scale: str, scorer: str = "encoder") -> tuple[Column, ...]:
    """A column of `retrieval` for each length, in percent as in the paper."""
    return tuple(Column(length, retrieval(int(length), scale, scorer), unit=0.01) for length in lengths)


def encoder_paper(
    title: str,
    scale: str,
    makers: Sequence[Callable[[str, str], Row]],
    tables: Sequence[Table],
    *,
    notes: Sequence[str],
    fetches: Sequence[Fetch] = (),
) -> Experiment:
    """The experiment of a table or figure of encoders: rows that the makers give of each method; see `paper`."""
    rows = [make(method, scale) for method in ENCODER_METHODS for make in makers]
    preparations = encoder_preparations(scale)
    return paper(title, scale, rows, tables, fetches=fetches, preparations=preparations, notes=notes)


def encoder_preparations(scale: str) -> tuple[Preparation | Fetch, ...]:
    """The commands that make the data of both trainings and, at the toy and small scales, the retrieval problem itself."""
    prepare, bert = "bam_jax.data.prepare", f"--tokenizer=bert:{VOCABULARY}"
    if scale == "paper":
        return (
            VOCABULARY_FILES,
            Preparation(prepare, ("--preset=fineweb-edu-10bt", bert, f"--out={FINEWEB_EDU}")),
            Preparation(prepare, ("--preset=ms-marco", bert, f"--out={MS_MARCO}")),
        )
    made = ("--source=stdlib", "--vocab=2048", f"--out={PROBLEM}")
    return (Preparation("bam_jax.data.make_retrieval", made, makes=f"{PROBLEM}/queries.jsonl"),)
