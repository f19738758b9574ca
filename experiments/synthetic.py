"""Tasks that distinguish encodings: recall, recall with forgetting, and copying far beyond the context, and text by position.

Command:  python -m bam_jax.sweep experiments/synthetic.py && python -m bam_jax.tables experiments/synthetic.py
Hardware: a CPU; 16 models, each about a minute of one core, and as long to evaluate; 128 at the small scale.
Claims:   experiments/claims/synthetic.toml, for the small scale; experiments/synthetic_rates.py finds its learning rates.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import small_scale

from bam_jax.config.sections import SYNTHETIC
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.synthetic import Synthetic
from bam_jax.experiments.experiment import UNPRINTED, Column, Experiment, Row, Table, tabled

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
TIMES = (1, 2, 4, 16, 64)
"""Lengths in training contexts."""

METHODS = {
    "BAM ladder": {},
    "NoPE": {"encoding": "nope", "ssmax": "off"},
    "RoPE": {"encoding": "rope", "ssmax": "off"},
    "RoPE Local": {"encoding": "rope", "ssmax": "off"},
    "ALiBi": {"encoding": "alibi", "ssmax": "off"},
    "BAM": {"encoding": "bam", "encoding_options": {"init": "uniform"}, "optimizer.prior_rate": 20.0, "ssmax": "off"},
    "BAM SSMax": {
        "encoding": "bam",
        "encoding_options": {"init": "uniform"},
        "optimizer.prior_rate": 20.0,
        "ssmax": "on",
    },
    "CABLE": {"encoding": "cable", "ssmax": "off"},
    "FoX": {"encoding": "fox", "ssmax": "off"},
}
"""Changes of the configuration, which is of BAM ladder with effective SSMax."""
LOCAL = {"encoding_options.window": CONTEXT}
"""The change at evaluation that makes RoPE local."""
TRAINED_METHODS = tuple(method for method in METHODS if method != "RoPE Local")
"""The methods that are trained; Local RoPE is a model of RoPE."""
SEEDS = tuple(range(300, 308))
"""The training seeds of the small scale."""

TRAINED = {
    "symbols": {"data.mixture": {task: {"weight": 1.0, "task": task} for task in SYNTHETIC}},
    "text": {"data.task": "packed"},
}
"""The two models of a method: one learns all tasks, from as many rows each."""

NOTES = (
    "A method that does not do a task at 1× has not learned it: what it does beyond says nothing of its reach.",
    "Who finds a key's pairs and does not know which came last is right about a third of the time in recall_last.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method and model; the toy scale has one seed, the small one eight."""
    seeds = (0,) if scale == "toy" else SEEDS
    rows = []
    for method, kind in itertools.product(METHODS, TRAINED):
        learner = small_scale.learner("RoPE" if method == "RoPE Local" else method, kind)
        rates = small_scale.chosen_rates(learner, small_scale.SYNTHETIC_RATES) if scale == "small" else {}
        rows.append(make_row(method, kind, seeds, rates))
    tables = [
        Table(f"{task}: accuracy", tuple(_asked(task)), dict.fromkeys(METHODS, ()), group="symbols")
        for task in SYNTHETIC
    ]
    far = Perplexity((TIMES[-1] * CONTEXT,), tokens=2**17)
    positions = tuple(Column(f"{times}×", far, position=times * CONTEXT) for times in TIMES)
    tables.append(Table("text: perplexity by position", positions, dict.fromkeys(METHODS, ()), group="text"))
    title = "Synthetic tasks far beyond the training context"
    return tabled(title, rows, tables, notes=NOTES, comparable=False, scales=UNPRINTED)


def make_row(method: str, kind: str, seeds: Sequence[int], rates: Mapping[str, float]) -> Row:
    """A model of one of `METHODS` that learns one of `TRAINED`."""
    changes = LOCAL if method == "RoPE Local" else {}
    return Row(
        f"{method}, {kind}", CONFIG, {**METHODS[method], **TRAINED[kind], **rates}, tuple(seeds), changes=changes
    )


def _asked(task: str) -> list[Column]:
    return [Column(f"{times}×", Synthetic((times * CONTEXT,), tasks=(task,))) for times in TIMES]
