"""The search for the learning rates of the small scale: every learner has three tries, at the smallest size.

Command:  python experiments/small_rates.py
Hardware: a CPU or one GPU; 150 models.
Corpus:   corpora/english, as for the small scale itself.
Expected: experiments/small_rates.json, which the scale reads. experiments/records/small_rates has what was measured: a
          search that was stopped goes on from there, on any machine.
"""

import dataclasses
import functools
import runpy
from collections.abc import Sequence
from pathlib import Path

from bam_jax.evals.base import Evaluation
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import rate_search, small
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.experiments.papers import BAM_METHODS, CABLE_METHODS, SAME_TRAINING, WIKITEXT, bam, cable
from bam_jax.experiments.rate_search import Rates, label_of
from bam_jax.system import errors

SEEDS = (100, 101)
"""The seeds of training; the small scale has 0 to 7. One seed may miss a fragile rate, since keys are found or not by seed."""
CONTEXT = 64
TEXT: tuple[Evaluation, ...] = (Perplexity((CONTEXT,), tokens=2**17),)
KEYS: tuple[Evaluation, ...] = (Passkey((CONTEXT,), trials=5, seed=SEEDS[0]), *TEXT)

METHODS = tuple(method for method in BAM_METHODS if method not in SAME_TRAINING)
ABLATIONS = {
    **runpy.run_path(str(Path(__file__).with_name("bam_figure8_passkey.py")))["LEARNERS"],
    **runpy.run_path(str(Path(__file__).with_name("bam_figure9_passkey.py")))["LEARNERS"],
}
"""The changes of BAM's ablations, by learner: each has rates of its own, as the methods have."""

TRIES: dict[str, Sequence[Rates]] = {
    **{small.learner(method, kind): small.tries(method) for method in METHODS for kind in (small.KEYS, small.TEXT)},
    **{small.learner(name, small.KEYS): small.tries("BAM SSMax") for name in ABLATIONS},
    **{small.learner(method, small.GPT2): small.tries(method) for method in CABLE_METHODS},
}
"""The tries of each learner."""


def get_experiment() -> Experiment:
    """A row for each learner with each of its tries, evaluated at the training context only."""
    rows = [_row(learner, number) for learner, tried in TRIES.items() for number in range(len(tried))]
    return Experiment(title="Learning rates of the small scale", rows=tuple(rows), platform="")


def _row(learner: str, number: int) -> Row:
    name, _, kind = learner.rpartition(", ")
    label, rates = label_of(learner, number), TRIES[learner][number]
    if kind == small.GPT2:
        made = cable(name, "small", label=label, size="tiny", corpus=WIKITEXT, overrides=rates)
    elif name in ABLATIONS:
        made = bam("BAM SSMax", "small", label=label, overrides={**ABLATIONS[name], **rates})
    else:
        made = bam(name, "small", label=label, overrides=rates, text=kind == small.TEXT)
    evaluations, seeds = (KEYS, SEEDS) if kind == small.KEYS else (TEXT, SEEDS[:1])
    # Within the training context a model is read as it was trained: the base of RoPE is not multiplied.
    return dataclasses.replace(made, evaluations=evaluations, seeds=seeds, changes={})


if __name__ == "__main__":
    errors.run(functools.partial(rate_search.command, Path(__file__), TRIES, small.RATES))
