"""CABLE's encoders as rows of experiments: masked language modelling, then contrastive training, then retrieval.

At the paper's scale they are BERT base on FineWeb-Edu and MS MARCO, and retrieve MLDR's documents. At the toy and small scales
all three come from one text: Python's documentation, of which sentences are taken out (`bam_jax.data.tasks.inverse_cloze`).
Lengths are an eighth of the paper's: 64 tokens in training, up to 2048 beyond.

Source: CABLE, section 5.5 and appendix A.1.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bam_jax.config import CONFIGS
from bam_jax.evals.contrastive import Contrastive
from bam_jax.evals.masked_perplexity import MaskedPerplexity
from bam_jax.evals.retrieval import Retrieval
from bam_jax.experiments import small
from bam_jax.experiments.experiment import Column, Fetch, Preparation, Row
from bam_jax.experiments.paper_columns import tokens
from bam_jax.experiments.papers import CABLE_METHODS

SHRINK = 8
"""Tokens of the paper to one of the toy and small scales."""

SEEDS = tuple(range(300, 312))
"""The training seeds of the small scale: twelve, since rankings differ by little."""

ENCODER_METHODS = ("CABLE", "ALiBi", "RoPE", "Learnable", "Sinusoidal")
"""The methods of Table 3 and Figures 6 and 7, names in `CABLE_METHODS`."""

CONTEXT = 512
"""Tokens of a training row, the paper's."""
MASKED_STEPS = 14_000
"""Steps of masked language modelling, the paper's."""
MASKED_CONFIG, CONTRASTIVE_CONFIG = "bert_base.py", "bert_base_msmarco.py"
SMALL_MASKED_CONFIG, SMALL_CONTRASTIVE_CONFIG = "quickstart_encoder.py", "quickstart_retrieval.py"
"""The files in configs/ of both trainings, at the paper's scale and below it."""

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
    # One epoch of 5,929 triplets, as in the paper. Of six epochs all but the first are learned by heart: the loss of held-out
    # triplets rises.
    "small": {"batch": 32, "steps": 185, "optimizer.warmup": 9},
}


def masked_row(method: str, scale: str, rates: Mapping[str, float] | None = None) -> Row:
    """An encoder that learns masked tokens.

    Args:
        method: a name in `CABLE_METHODS`.
        scale: "toy", "small" or "paper".
        rates: overrides at the small scale; None: those that the search has chosen.
    """
    changes: dict[str, Any] = {"data.source": FINEWEB_EDU, "model.vocab": 30_522, "steps": MASKED_STEPS}
    if scale != "paper":
        changes = {**_MASKED[scale], **_rates(method, small.MASKED, scale, rates), "data.holdout": 0.1}
    config = MASKED_CONFIG if scale == "paper" else SMALL_MASKED_CONFIG
    return _row(f"{method}, masked", config, method, scale, changes)


def early_row(method: str, scale: str) -> Row:
    """The encoder of `masked_row` with a quarter of the steps, in which its schedule ends; its warm-up has as many as there.

    Args:
        method, scale: as in `masked_row`.
    """
    whole = masked_row(method, scale)
    steps = {"steps": whole.overrides["steps"] // 4}
    return dataclasses.replace(whole, label=f"{method}, early", overrides={**whole.overrides, **steps})


def contrastive_row(method: str, scale: str, rates: Mapping[str, float] | None = None) -> Row:
    """The same encoder, which goes on from its `masked_row` with triplets.

    Args:
        method, scale, rates: as in `masked_row`.
    """
    changes: dict[str, Any] = {"data.source": MS_MARCO, "model.vocab": 30_522}
    if scale != "paper":
        changes = {**_CONTRASTIVE[scale], **_rates(method, small.TRIPLETS, scale, rates)}
    config = CONTRASTIVE_CONFIG if scale == "paper" else SMALL_CONTRASTIVE_CONFIG
    made = _row(method, config, method, scale, changes)
    return dataclasses.replace(made, start=f"{method}, masked")


def _rates(method: str, kind: str, scale: str, rates: Mapping[str, float] | None) -> Mapping[str, float]:
    """The rates that are given, or else those that the small scale's search has chosen; the toy scale has one for all."""
    if scale != "small" or rates is not None:
        return rates or {}
    return small.chosen_rates(small.learner(method, kind), small.ENCODER_RATES)


def _row(label: str, config: str, method: str, scale: str, changes: Mapping[str, Any]) -> Row:
    every = {"encoding": CABLE_METHODS[method], "context": tokens(CONTEXT, scale, SHRINK), **changes}
    return Row(label, str(CONFIGS / config), every, SEEDS if scale == "small" else (0,))


def masked_perplexity(length: int, scale: str) -> MaskedPerplexity:
    """Perplexity of masked tokens at a length of the paper; at the small scale of the texts that are tested with.

    Args:
        length: tokens, the paper's.
        scale: "toy", "small" or "paper".
    """
    measured = {"toy": 2**15, "small": 2**18, "paper": 2**24}[scale]
    text = {"data.held_out_source": f"{PROBLEM}/corpus.jsonl"} if scale == "small" else {}
    return MaskedPerplexity((tokens(length, scale, SHRINK),), tokens=measured, overrides=text)


def contrastive_loss(length: int, scale: str) -> Contrastive:
    """Contrastive loss at a length of the paper; at the small scale of triplets of the documents that are tested with.

    A batch has as many triplets as in training: a loss depends on the number of candidates.

    Args:
        length: tokens, the paper's.
        scale: "toy", "small" or "paper".
    """
    batch = 128 if scale == "paper" else _CONTRASTIVE[scale]["batch"]
    text = {"data.held_out_source": f"{PROBLEM}/test_triplets"} if scale == "small" else {}
    return Contrastive((tokens(length, scale, SHRINK),), batch=batch, overrides=text)


def retrieval(length: int, scale: str, scorer: str = "encoder") -> Retrieval:
    """Retrieval at a length of the paper.

    Args:
        length: tokens, the paper's.
        scale: "toy", "small" or "paper".
        scorer: a name in `bam_jax.retrieval.ranking.SCORERS`.
    """
    here = (tokens(length, scale, SHRINK),)
    if scale == "paper":
        return Retrieval(
            here,
            corpus=f"{MLDR}/corpus.jsonl.gz",
            queries=f"{MLDR}/test.jsonl.gz",
            scorer=scorer,
            samples=800,
            documents=200_000,
        )
    return Retrieval(
        here,
        corpus=f"{PROBLEM}/corpus.jsonl",
        queries=f"{PROBLEM}/queries.jsonl",
        scorer=scorer,
        samples=2000,
        documents=200,
    )


def retrieval_columns(lengths: Sequence[str], scale: str, scorer: str = "encoder") -> tuple[Column, ...]:
    """A column for each length, in percent as the paper has them.

    Args:
        lengths: the paper's tokens, as its heads have them.
        scale, scorer: as in `retrieval`.
    """
    return tuple(Column(length, retrieval(int(length), scale, scorer), unit=0.01) for length in lengths)


def encoder_preparations(scale: str) -> tuple[Preparation | Fetch, ...]:
    """The commands that make the data of both trainings and, at the toy and small scales, the problem itself.

    Args:
        scale: "toy", "small" or "paper".
    """
    prepare, bert = "bam_jax.data.prepare", f"--tokenizer=bert:{VOCABULARY}"
    if scale == "paper":
        return (
            VOCABULARY_FILES,
            Preparation(prepare, ("--preset=fineweb-edu-10bt", bert, f"--out={FINEWEB_EDU}")),
            Preparation(prepare, ("--preset=ms-marco", bert, f"--out={MS_MARCO}")),
        )
    made = ("--source=stdlib", "--vocab=2048", f"--out={PROBLEM}")
    return (Preparation("bam_jax.data.make_retrieval", made, makes=f"{PROBLEM}/queries.jsonl"),)
