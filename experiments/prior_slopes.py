"""The ladder's gentlest slope: which near heads leave retrieval to the head that looks far.

Command:  python -m bam_jax.sweep experiments/prior_slopes.py --records=experiments/records/prior_slopes.jsonl
Then:     python -m bam_jax.report runs/prior_slopes
Hardware: a CPU; 48 models of 4 and 8 layers, some 3 core-hours.
Target:   every seed of a start finds .90 of the keys or more at 64x the training context.
"""

from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
SEEDS = tuple(range(110, 118))
"""The training seeds; those of the first screening and of the confirmations are others."""


def _ladder(encoding: str, near_decay: float | None) -> dict:
    return {"encoding": encoding, "encoding_options": {} if near_decay is None else {"near_decay": near_decay}}


STARTS = {
    "contextual, 9 nats": _ladder("bam_contextual", 9.0),
    "positions, 9 nats": {"encoding": "bam", "encoding_options": {"init": "ladder", "near_decay": 9.0}},
    "contextual, 6 nats": _ladder("bam_contextual", 6.0),
    "contextual, slopes to exp(-3)": _ladder("bam_contextual", None),
}
"""Changes of the configuration by label. 9 nats over 64 tokens are a slope of exp(-1.96), 6 nats of exp(-2.37), and exp(-3)
takes 3.2 nats."""
DEEP = ("contextual, 9 nats", "positions, 9 nats")
"""Starts that are tried with 8 layers as well."""

NOTES = (
    "Nats: what the gentlest near head takes from a key one training context away, at the start of training. Scalable Softmax "
    "counts effective keys in every row; the rate is the configuration's .003.",
    "This is a screening, to choose what is confirmed on fresh seeds. It gives no verdict.",
)


def get_experiment() -> Experiment:
    """A row for each start at 4 layers, and for some at 8."""
    asked = (
        Passkey((64 * CONTEXT,)),
        Perplexity((CONTEXT, 64 * CONTEXT)),
    )
    rows = [
        Row(f"{label}, {layers} layers", CONFIG, {**STARTS[label], "model.layers": layers}, SEEDS, asked)
        for layers, labels in ((4, STARTS), (8, DEEP))
        for label in labels
    ]
    expected = tuple(Expected(row.label, 64 * CONTEXT, least=0.97) for row in rows)
    return Experiment("The ladder's gentlest slope: a screening", tuple(rows), expected=expected, notes=NOTES)
