"""Recall, recall with forgetting and copying far beyond the training context, and text by position: what tells encodings apart.

Command:  python -m bam_jax.sweep experiments/synthetic.py && python -m bam_jax.tables experiments/synthetic.py
Hardware: a CPU; 16 models, each about a minute of one core, and as long to ask.
"""

import itertools
from pathlib import Path

from bam_jax.config.sections import SYNTHETIC
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.synthetic import Synthetic
from bam_jax.experiments import small
from bam_jax.experiments.experiment import Column, Experiment, Row, Table, tabled

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
TIMES = (1, 2, 4, 16, 64)
"""Lengths in training contexts."""

METHODS = {
    "NoPE": {"encoding": "nope", "ssmax": "off"},
    "RoPE": {"encoding": "rope", "ssmax": "off"},
    "RoPE Local": {"encoding": "rope", "ssmax": "off"},
    "ALiBi": {"encoding": "alibi", "ssmax": "off"},
    "Kerple": {"encoding": "kerple_log", "ssmax": "off"},
    "BAM": {"encoding": "bam", "encoding_options.init": "uniform", "optimizer.prior_rate": 20.0, "ssmax": "off"},
    "BAM SSMax": {"encoding": "bam", "encoding_options.init": "uniform", "optimizer.prior_rate": 20.0, "ssmax": "on"},
    "CABLE": {"encoding": "cable", "ssmax": "off"},
    "FoX": {"encoding": "fox", "ssmax": "off"},
}
LOCAL = {"encoding_options.window": CONTEXT}
"""The change at evaluation that makes RoPE local."""

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
    """A row for each method and model; the columns of text are windows of positions.

    Args:
        scale: "toy", of one seed, or "small", of eight.

    Raises:
        UserError: another scale.
    """
    seeds = small.seeds_of_ours(scale, "these tasks")
    rows = []
    for (method, overrides), (name, data) in itertools.product(METHODS.items(), TRAINED.items()):
        changes = LOCAL if method == "RoPE Local" else {}
        rows.append(Row(f"{method}, {name}", CONFIG, overrides | data, seeds, changes=changes))
    tables = [
        Table(f"{task}: accuracy", tuple(_asked(task)), dict.fromkeys(METHODS, ()), group="symbols")
        for task in SYNTHETIC
    ]
    far = Perplexity((TIMES[-1] * CONTEXT,))
    positions = tuple(Column(f"{times}×", far, position=times * CONTEXT) for times in TIMES)
    tables.append(Table("text: perplexity by position", positions, dict.fromkeys(METHODS, ()), group="text"))
    return tabled("Synthetic tasks far beyond the training context", rows, tables, notes=NOTES, comparable=False)


def _asked(task: str) -> list[Column]:
    return [Column(f"{times}×", Synthetic((times * CONTEXT,), tasks=(task,))) for times in TIMES]
