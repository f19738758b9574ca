"""The search for the learning rates of the small scale's encoders: all methods have equally many tries in both trainings.

Masked tokens come first. The tries with triplets start from each method's best try with masked tokens.

Command:  python experiments/encoder_rates.py
Hardware: a CPU or one GPU; 30 models of masked tokens, and 40 that start from ten of them with triplets.
Corpus:   the first step makes corpora/inverse-cloze from Python's documentation.
Expected: experiments/encoder_rates.json, which the scale reads. experiments/records/encoder_rates has the
          measurements, from which a stopped search resumes on any machine.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence

import rate_search
from paper_encoders import ENCODER_METHODS, contrastive_row, encoder_preparations, masked_row
from rate_search import Rates, label_of
from small_scale import ENCODER_RATES, MASKED, TRIPLETS, learner

from bam_jax.evals.contrastive import Contrastive
from bam_jax.evals.masked_perplexity import MaskedPerplexity
from bam_jax.experiments.experiment import Experiment, Row

SEEDS = (100, 101)
"""The seeds of training; verdicts have others."""


def _tries(kind: str, rates: Sequence[float]) -> dict[str, Sequence[Rates]]:
    tried = tuple({"optimizer.rate": rate} for rate in rates)
    return {learner(method, kind): tried for method in ENCODER_METHODS}


MASKED_TRIES = _tries(MASKED, (1e-3, 3e-3, 1e-2))
# Training with triplets starts from weights that another rate has made.
TRIPLET_TRIES = _tries(TRIPLETS, (3e-4, 1e-3, 3e-3, 1e-2))


def get_experiment() -> Experiment:
    """A row for each try, evaluated at the training length; triplets come once masked tokens are searched."""
    rows = rate_search.try_rows(MASKED_TRIES, _masked, seeds=SEEDS)
    found = json.loads(ENCODER_RATES.read_text())["found"] if ENCODER_RATES.is_file() else {}
    if MASKED_TRIES.keys() <= found.keys():
        best = {masked: rate_search.best(found[masked]) for masked in MASKED_TRIES}
        rows += rate_search.try_rows(TRIPLET_TRIES, lambda name, rates: _contrastive(name, rates, best), seeds=SEEDS)
    preparations = encoder_preparations("small")
    return Experiment("Learning rates of encoders", tuple(rows), platform="", preparations=preparations)


def _masked(name: str, rates: Rates) -> Row:
    made = masked_row(name.removesuffix(f", {MASKED}"), "small", rates)
    return dataclasses.replace(made, evaluations=(MaskedPerplexity((made.overrides["context"],), tokens=2**15),))


def _contrastive(name: str, rates: Rates, best: Mapping[str, int]) -> Row:
    """A try of triplets, which starts from the method's best try of masked tokens."""
    method = name.removesuffix(f", {TRIPLETS}")
    made, masked = contrastive_row(method, "small", rates), learner(method, MASKED)
    evaluation = Contrastive((made.overrides["context"],), batch=made.overrides["batch"])
    return dataclasses.replace(made, start=label_of(masked, best[masked]), evaluations=(evaluation,))


if __name__ == "__main__":
    rate_search.main(__file__, ENCODER_RATES, MASKED_TRIES, MASKED_TRIES | TRIPLET_TRIES)
