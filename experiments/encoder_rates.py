"""The search for the learning rates of the small scale's encoders: every method has three tries in both of its trainings.

Command:  python experiments/encoder_rates.py
Hardware: a CPU or one GPU; 15 models of masked tokens, and 15 that go on from five of them with triplets.
Corpus:   the first step makes corpora/inverse-cloze of Python's documentation.
Expected: experiments/encoder_rates.json, which the scale reads. experiments/records/encoder_rates.jsonl has what was measured:
          a search that was stopped goes on from there, on any machine.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from bam_jax.evals.contrastive import Contrastive
from bam_jax.experiments import paper_encoders, rate_search, small
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.experiments.rate_search import Rates, label_of
from bam_jax.system import errors

SEEDS = (100,)
"""The seed of training; the small scale has 0 to 7."""
START = 1
"""The try of masked tokens from which all tries of triplets go on."""

TRIES: dict[str, Sequence[Rates]] = {
    **{
        small.learner(method, small.MASKED): tuple({"optimizer.rate": rate} for rate in (3e-4, 1e-3, 3e-3))
        for method in paper_encoders.ENCODER_METHODS
    },
    **{
        small.learner(method, small.TRIPLETS): tuple({"optimizer.rate": rate} for rate in (3e-4, 1e-3, 3e-3))
        for method in paper_encoders.ENCODER_METHODS
    },
}
"""The tries of each learner."""


def get_experiment() -> Experiment:
    """A row for each learner with each of its tries, evaluated at the training length only."""
    rows = [_row(learner, number) for learner, tried in TRIES.items() for number in range(len(tried))]
    preparations = paper_encoders.encoder_preparations("small")
    return Experiment("Learning rates of encoders", tuple(rows), platform="", preparations=preparations)


def _row(learner: str, number: int) -> Row:
    method, _, kind = learner.rpartition(", ")
    if kind == small.MASKED:
        made, start = paper_encoders.masked_row(method, "small"), ""
        evaluation = paper_encoders.masked_perplexity(paper_encoders.CONTEXT, "small")
    else:
        made, start = (
            paper_encoders.contrastive_row(method, "small"),
            label_of(small.learner(method, small.MASKED), START),
        )
        evaluation = Contrastive((made.overrides["context"],), batch=made.overrides["batch"])
    overrides = {**made.overrides, **TRIES[learner][number]}
    changed = {"label": label_of(learner, number), "overrides": overrides, "seeds": SEEDS, "start": start}
    return dataclasses.replace(made, evaluations=(evaluation,), **changed)


if __name__ == "__main__":
    errors.run(functools.partial(rate_search.command, Path(__file__), TRIES, small.ENCODER_RATES))
