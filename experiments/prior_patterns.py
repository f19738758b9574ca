"""Ladders with alternating layers: one models text with wider near heads or CABLE, the next leaves retrieval to its far head.

Command:  python -m bam_jax.sweep experiments/prior_patterns.py --records=experiments/records/prior_patterns
Then:     python -m bam_jax.report runs/prior_patterns
Hardware: a CPU; 28 models of 2 and 4 layers, about half an hour of two cores.
Target:   every seed of a start finds at least .90 of the keys at 64x the training context.
"""

from pathlib import Path
from typing import Any, NamedTuple

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
HARD = (208, 210, 216, 221)
"""Training seeds on which earlier forms of the start found few keys with 2 layers."""
LADDER: dict[str, Any] = {"init": "ladder", "near_shape": 1.0, "train_loc": True}


class Start(NamedTuple):
    """A start: the pattern that layers repeat, options of all its places, and what the rates were found for."""

    pattern: str
    layers: int
    rate: float
    seeds: tuple[int, ...]
    options: dict[str, Any] = LADDER


STARTS = {
    "9 and 16 nats, 4 layers": Start("bam:near_decay=9.0/bam:near_decay=16.0", 4, 0.003, tuple(range(110, 118))),
    "4 and 16 nats, 4 layers": Start("bam:near_decay=4.0/bam:near_decay=16.0", 4, 0.003, tuple(range(110, 114))),
    "CABLE and 16 nats, 4 layers": Start(
        "cable:ssmax=off/bam:init=ladder,near_decay=16.0,train_loc=true", 4, 0.003, tuple(range(110, 114)), {}
    ),
    "9 and 16 nats, 2 layers": Start("bam:near_decay=9.0/bam:near_decay=16.0", 2, 0.01, (*HARD, *range(110, 118))),
}
"""Starts by label; the last layer is always one of 16 nats. On the seeds 110 to 117 experiments/prior_slopes.py has CABLE, and 9
nats in all layers."""

NOTES = (
    "Layers take turns. Nats: what a ladder's widest near head takes from a key one training context away, at the start of "
    "training. The location trains, and Scalable Softmax counts effective keys, but in CABLE's layers, which have none. The "
    "rate is .01 with 2 layers and .003 with 4.",
    "On the seeds above 200 earlier forms of the start found few keys at 64 times the training context.",
    "This is a screening, to choose what is confirmed on fresh seeds. It gives no verdict.",
)


def get_experiment() -> Experiment:
    """A row for each start."""
    asked = (Passkey((64 * CONTEXT,)), Perplexity((CONTEXT, 64 * CONTEXT)))
    rows = []
    for label, start in STARTS.items():
        changes = {"encoding": start.pattern, "encoding_options": start.options, "ssmax": "effective"}
        changes |= {"model.layers": start.layers, "optimizer.rate": start.rate}
        rows.append(Row(label, CONFIG, changes, start.seeds, asked))
    expected = tuple(Expected(row.label, 64 * CONTEXT, least=0.97) for row in rows)
    return Experiment("The ladder's layers take turns: a screening", tuple(rows), expected=expected, notes=NOTES)
