"""The ladder's gentlest slope: which near heads leave retrieval to the long-range head?

Command:  python -m bam_jax.sweep experiments/prior_slopes.py --records=experiments/records/prior_slopes
Then:     python -m bam_jax.report runs/prior_slopes
Hardware: a CPU; 56 models of 2 to 8 layers, some 3 core-hours.
Target:   every seed of a start finds at least .90 of the keys at 64x the training context.
"""

from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
SEEDS = tuple(range(110, 118))
"""The training seeds; those of the first screening and of the confirmations are others."""


def _ladder(encoding: str, **options: float | bool) -> dict:
    """Changes of the configuration: an encoding that starts with one head that looks far and others that look near."""
    return {
        "encoding": encoding,
        "encoding_options": {"init": "ladder", "near_decay": 9.0, "near_shape": 1.0, **options},
    }


STARTS = {
    "contextual, 9 nats": _ladder("bam_contextual"),
    "positions, 9 nats": _ladder("bam"),
    "positions, 9 nats, location": _ladder("bam", train_loc=True),
    "CABLE": {"encoding": "cable", "encoding_options": {}, "ssmax": "off"},
}
"""Changes of the configuration by label. 9 nats over 64 tokens are a slope of exp(-1.96); exp(-3), the ladder's own,
takes 3.2."""
DEPTHS = {4: tuple(STARTS), 2: ("positions, 9 nats, location", "CABLE"), 8: ("positions, 9 nats, location",)}
"""The starts that are tried, by the number of layers."""
RATES = {2: 0.01, 4: 0.003, 8: 0.003}
"""By layers, as the first screening found them for ladders and for CABLE."""

NOTES = (
    "Nats: what the gentlest near head takes from a key one training context away, at the start of training. Scalable Softmax "
    "counts effective keys in every row but CABLE's; the rate is .01 with 2 layers and .003 with more.",
    """"Contextual" has what the text between two tokens weighs for their distance; "location" trains the prior's location as
    well, which BAM's authors leave at 0.""",
    "This is a screening, to choose what is confirmed on fresh seeds. It gives no verdict.",
)


def get_experiment() -> Experiment:
    """A row for each start and depth."""
    asked = (Passkey((64 * CONTEXT,)), Perplexity((CONTEXT, 64 * CONTEXT)))
    rows = []
    for layers, labels in DEPTHS.items():
        for label in labels:
            changes = {**STARTS[label], "model.layers": layers, "optimizer.rate": RATES[layers]}
            rows.append(Row(f"{label}, {layers} layers", CONFIG, changes, SEEDS, asked))
    expected = tuple(Expected(row.label, 64 * CONTEXT, least=0.97) for row in rows if "9 nats" in row.label)
    return Experiment("The ladder's gentlest slope: a screening", tuple(rows), expected=expected, notes=NOTES)
