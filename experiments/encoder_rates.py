"""The search for the learning rates of the small scale's encoders: every method has as many tries in both of its trainings.

Masked tokens come first. The tries of triplets go on from each method's own best.

Command:  python experiments/encoder_rates.py
Hardware: a CPU or one GPU; 30 models of masked tokens, and 40 that go on from ten of them with triplets.
Corpus:   the first step makes corpora/inverse-cloze of Python's documentation.
Expected: experiments/encoder_rates.json, which the scale reads. experiments/records/encoder_rates has what was measured:
          a search that was stopped goes on from there, on any machine.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.evals.contrastive import Contrastive
from bam_jax.evals.masked_perplexity import MaskedPerplexity
from bam_jax.experiments import paper_encoders, rate_search, small
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.experiments.rate_search import Rates, label_of
from bam_jax.system import errors

SEEDS = (100, 101)
"""The seeds of training; verdicts have others."""
RATES = {small.MASKED: (1e-3, 3e-3, 1e-2), small.TRIPLETS: (3e-4, 1e-3, 3e-3, 1e-2)}
"""The tries of each training; that with triplets goes on from weights that another rate has made."""


def _tries(kind: str) -> dict[str, Sequence[Rates]]:
    """The tries of each method in a training, by learner."""
    tried = tuple({"optimizer.rate": rate} for rate in RATES[kind])
    return {small.learner(method, kind): tried for method in paper_encoders.ENCODER_METHODS}


def get_experiment() -> Experiment:
    """A row for each try, evaluated at the training length; triplets come once masked tokens are searched."""
    rows = [
        _masked(method, number, rates)
        for method in paper_encoders.ENCODER_METHODS
        for number, rates in enumerate(_tries(small.MASKED)[small.learner(method, small.MASKED)])
    ]
    found = json.loads(small.ENCODER_RATES.read_text())["found"] if small.ENCODER_RATES.is_file() else {}
    if {*_tries(small.MASKED)} <= {*found}:
        rows += [
            _contrastive(method, number, rates, found)
            for method in paper_encoders.ENCODER_METHODS
            for number, rates in enumerate(_tries(small.TRIPLETS)[small.learner(method, small.TRIPLETS)])
        ]
    preparations = paper_encoders.encoder_preparations("small")
    return Experiment("Learning rates of encoders", tuple(rows), platform="", preparations=preparations)


def _masked(method: str, number: int, rates: Rates) -> Row:
    """A try of masked tokens."""
    made = paper_encoders.masked_row(method, "small", rates)
    label = label_of(small.learner(method, small.MASKED), number)
    return dataclasses.replace(
        made, label=label, seeds=SEEDS, evaluations=(MaskedPerplexity((made.overrides["context"],), tokens=2**15),)
    )


def _contrastive(method: str, number: int, rates: Rates, found: Mapping[str, Any]) -> Row:
    """A try of triplets, which goes on from the method's best try of masked tokens."""
    made, masked = paper_encoders.contrastive_row(method, "small", rates), small.learner(method, small.MASKED)
    label, start = (
        label_of(small.learner(method, small.TRIPLETS), number),
        label_of(masked, rate_search.best(found[masked])),
    )
    evaluation = Contrastive((made.overrides["context"],), batch=made.overrides["batch"])
    return dataclasses.replace(made, label=label, start=start, seeds=SEEDS, evaluations=(evaluation,))


def main(argv: Sequence[str]) -> None:
    """Searches the rates of masked tokens, then those of triplets.

    Raises:
        UserError: bad arguments, or a run that failed.
    """
    masked = _tries(small.MASKED)
    for tries in (masked, masked | _tries(small.TRIPLETS)):
        rate_search.command(Path(__file__), tries, small.ENCODER_RATES, argv)


if __name__ == "__main__":
    errors.run(main)
