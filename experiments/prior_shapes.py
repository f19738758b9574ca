"""The ladder's near heads, sharper ones or nearly windows: which leave retrieval to the head that looks far.

Command:  python -m bam_jax.sweep experiments/prior_shapes.py --records=experiments/records/prior_shapes.jsonl
Then:     python -m bam_jax.report runs/prior_shapes
Hardware: a CPU; 29 models of 2 and 4 layers, some core-hour.
Target:   every seed of a start finds .90 of the keys or more at 64x the training context.
"""

from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
NEAR = {"16 nats": (1.0, 16.0), "shapes to 4, width 24": (4.0, (64 / 24) ** 4), "shapes to 4, width 16": (4.0, 256.0)}
"""Shape of the widest near head, and nats that it takes from a key one training context away: (context / width) ** shape."""
TRIED = {4: ("shapes to 4, width 16",), 2: tuple(NEAR)}
"""The starts that are tried, by the number of layers."""
SEEDS = {2: (216, 208, 210, 110, 111, 112, 113), 4: (202, 204, 206, 208, 110, 111, 112, 113)}
"""The training seeds by the number of layers: first some on which earlier forms of the start found fewest keys."""
RATES = {2: 0.01, 4: 0.003}

NOTES = (
    "16 nats: what the widest near head takes from a key one training context away, at the start of training; its shape is 1. "
    "Shapes to 4: near heads have shapes from 1 to 4, and the widest takes 1 nat from a key as many tokens away as its width is. "
    "The location trains, and Scalable Softmax counts effective keys. The rate is .01 with 2 layers and .003 with 4.",
    "On the seeds above 200 earlier forms of the start found fewest keys at 64 times the training context.",
    "This is a screening, to choose what is confirmed on fresh seeds. It gives no verdict.",
)


def get_experiment() -> Experiment:
    """A row for each start and depth."""
    asked = (Passkey((64 * CONTEXT,)), Perplexity((CONTEXT, 64 * CONTEXT)))
    rows = []
    for layers, labels in TRIED.items():
        for label in labels:
            shape, decay = NEAR[label]
            options = {"init": "ladder", "near_shape": shape, "near_decay": decay, "train_loc": True}
            changes = {"encoding": "bam", "encoding_options": options, "ssmax": "effective"}
            made = {**changes, "model.layers": layers, "optimizer.rate": RATES[layers]}
            rows.append(Row(f"{label}, {layers} layers", CONFIG, made, SEEDS[layers], asked))
    expected = tuple(Expected(row.label, 64 * CONTEXT, least=0.97) for row in rows)
    return Experiment("Shapes of the ladder's near heads: a screening", tuple(rows), expected=expected, notes=NOTES)
