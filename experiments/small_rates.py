"""The search for the learning rates of the small scale: every learner has three tries, at the smallest size.

Command:  python experiments/small_rates.py
Hardware: a CPU or one GPU; 150 models.
Corpus:   corpora/english, as for the small scale itself.
Expected: experiments/small_rates.json, which the scale reads. experiments/records/small_rates has the measurements,
          from which a stopped search resumes on any machine.
"""

import dataclasses

import bam_figure8_passkey
import bam_figure9_passkey
import rate_search
import small_scale
from paper_rows import BAM_METHODS, CABLE_METHODS, SAME_TRAINING, WIKITEXT, bam, cable
from rate_search import Rates
from small_scale import GPT2, KEYS, TEXT, learner

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Experiment, Row

SEEDS = (100, 101)
"""The seeds of training; the small scale has 0 to 7. One seed may miss a fragile rate, since keys are found or not by seed."""
CONTEXT = 64
PERPLEXITY = Perplexity((CONTEXT,), tokens=2**17)

METHODS = tuple(method for method in BAM_METHODS if method not in SAME_TRAINING)
ABLATIONS = {**bam_figure8_passkey.LEARNERS, **bam_figure9_passkey.LEARNERS}
"""The changes of BAM's ablations, by learner: each has rates of its own, as the methods have."""
TRIES = {
    **{learner(method, kind): small_scale.tries(method) for method in METHODS for kind in (KEYS, TEXT)},
    **{learner(name, KEYS): small_scale.tries("BAM SSMax") for name in ABLATIONS},
    **{learner(method, GPT2): small_scale.tries(method) for method in CABLE_METHODS},
}
"""The tries of each learner."""


def get_experiment() -> Experiment:
    """A row for each learner with each of its tries, evaluated at the training context only."""
    return Experiment("Learning rates of the small scale", tuple(rate_search.try_rows(TRIES, _row)), platform="")


def _row(learner: str, rates: Rates) -> Row:
    name, _, kind = learner.rpartition(", ")
    if kind == GPT2:
        made = cable(name, "small", label=name, size="tiny", corpus=WIKITEXT, overrides=rates)
    elif name in ABLATIONS:
        made = bam("BAM SSMax", "small", overrides={**ABLATIONS[name], **rates})
    else:
        made = bam(name, "small", overrides=rates, text=kind == TEXT)
    # Within the training context a model is read as it was trained: the base of RoPE is not multiplied.
    made = dataclasses.replace(made, evaluations=(PERPLEXITY,), seeds=SEEDS[:1], changes={})
    if kind != KEYS:
        return made
    keys = Passkey((CONTEXT,), trials=5, seed=SEEDS[0])
    return dataclasses.replace(made, evaluations=(keys, PERPLEXITY), seeds=SEEDS)


if __name__ == "__main__":
    rate_search.main(__file__, small_scale.RATES, TRIES)
