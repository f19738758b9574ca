"""The ladder's near heads as ALiBi's, Gaussians and windows: which leave retrieval to the head that looks far.

Command:  python -m bam_jax.sweep experiments/prior_shapes.py --records=experiments/records/prior_shapes.jsonl
Then:     python -m bam_jax.report runs/prior_shapes
Hardware: a CPU; 34 models of 2 and 4 layers, some core-hour.
Target:   every seed of a start finds .90 of the keys or more at 64x the training context.
"""

from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
NEAR = {
    "shape 4, width 16": (4.0, 256.0),
    "shape 1, 16 nats": (1.0, 16.0),
    "Gaussian, width 16": (2.0, 16.0),
    "Gaussian, width 8": (2.0, 64.0),
}
"""Shape, and nats from a key one training context away: (context / width) ** shape."""
SEEDS = {2: (216, 208, 210, 110, 111, 112, 113)}
"""The training seeds by depth: first those on which earlier forms of the start found fewest keys."""
RATES = {2: 0.01, 4: 0.003}

NOTES = (
    "Width: the distance in tokens at which the gentlest near head takes 1 nat, at the start of training. The location trains, "
    "and Scalable Softmax counts effective keys. The rate is .01 with 2 layers and .003 with 4.",
    "The seeds 201 to 216 are those on which earlier forms of the start found fewest keys at 64 times the training context.",
    "This is a screening, to choose what is confirmed on fresh seeds. It gives no verdict.",
)


def get_experiment() -> Experiment:
    """A row for each start and depth."""
    asked = (Passkey((64 * CONTEXT,)), Perplexity((CONTEXT, 64 * CONTEXT)))
    rows = []
    for layers, seeds in SEEDS.items():
        for label, (shape, decay) in NEAR.items():
            options = {"init": "ladder", "near_shape": shape, "near_decay": decay, "train_loc": True}
            changes = {"encoding": "bam", "encoding_options": options, "ssmax": "effective"}
            made = {**changes, "model.layers": layers, "optimizer.rate": RATES[layers]}
            rows.append(Row(f"{label}, {layers} layers", CONFIG, made, seeds, asked))
    expected = tuple(Expected(row.label, 64 * CONTEXT, least=0.97) for row in rows)
    return Experiment("Shapes of the ladder's near heads: a screening", tuple(rows), expected=expected, notes=NOTES)
