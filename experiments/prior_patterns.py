"""Ladders whose layers take turns: one serves the text with wider near heads or CABLE, the next leaves retrieval to its far head.

Command:  python -m bam_jax.sweep experiments/prior_patterns.py --records=experiments/records/prior_patterns.jsonl
Then:     python -m bam_jax.report runs/prior_patterns
Hardware: a CPU; 40 models of 2 and 4 layers, some one and a half core-hours.
Target:   every seed of a start finds .90 of the keys or more at 64x the training context.
"""

from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
SEEDS = tuple(range(110, 118))
"""The training seeds, those of experiments/prior_slopes.py, which has CABLE and 9 nats in all layers on them."""
STARTS = {
    "9 and 16 nats": "bam:near_decay=9.0/bam:near_decay=16.0",
    "4 and 16 nats": "bam:near_decay=4.0/bam:near_decay=16.0",
    "CABLE and 16 nats": "cable:ssmax=off/bam:init=ladder,near_decay=16.0,train_loc=true",
}
"""The patterns by label; the last layer is always one of 16 nats."""
OPTIONS = {"init": "ladder", "near_shape": 1.0, "train_loc": True}
DEPTHS = {4: tuple(STARTS), 2: ("4 and 16 nats", "CABLE and 16 nats")}
"""The starts that are tried, by the number of layers."""
RATES = {2: 0.01, 4: 0.003}
"""By layers, as the first screening found them for ladders and for CABLE."""

NOTES = (
    "Layers take turns. Nats: what a ladder's widest near head takes from a key one training context away, at the start of "
    "training. The location trains, and Scalable Softmax counts effective keys, but in CABLE's layers, which have none. The "
    "rate is .01 with 2 layers and .003 with 4.",
    "This is a screening, to choose what is confirmed on fresh seeds. It gives no verdict.",
)


def get_experiment() -> Experiment:
    """A row for each start and depth."""
    asked = (Passkey((64 * CONTEXT,)), Perplexity((CONTEXT, 64 * CONTEXT)))
    rows = []
    for layers, labels in DEPTHS.items():
        for label in labels:
            options = {} if "CABLE" in label else OPTIONS
            changes = {"encoding": STARTS[label], "encoding_options": options, "ssmax": "effective"}
            changes |= {"model.layers": layers, "optimizer.rate": RATES[layers]}
            rows.append(Row(f"{label}, {layers} layers", CONFIG, changes, SEEDS, asked))
    expected = tuple(Expected(row.label, 64 * CONTEXT, least=0.97) for row in rows)
    return Experiment("The ladder's layers take turns: a screening", tuple(rows), expected=expected, notes=NOTES)
