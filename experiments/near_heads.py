"""Do wide short-range heads break retrieval? Ladders with a reach that we set, and trained ladders whose near heads are reset.

Command:  PYTHONPATH=experiments python -m bam_jax.sweep experiments/near_heads.py --scale=small
Hardware: a CPU or one GPU; 80 models of 2 layers, some 2 core-hours of a CPU.
Target:   the claims on near heads in experiments/claims/null_models.toml.
"""

import jax.numpy as jnp
import null_models
import small_scale
from flax import nnx

from bam_jax import biases
from bam_jax.encodings.base import Dims, among
from bam_jax.encodings.prior import BAM, far_and_near
from bam_jax.experiments.experiment import UNPRINTED, Experiment, Row, Table, tabled


class AtStart(BAM):
    """BAM's ladder, some of whose heads always have the prior with which they would start.

    A model that trains with it has these priors frozen. A BAM model that is evaluated with it gets them back.
    """

    def __init__(self, dims: Dims, *, heads: str = "near", near_decay: float = 16.0, rngs: nnx.Rngs):
        super().__init__(dims, init="ladder", near_decay=near_decay, train_loc=True, rngs=rngs)
        self.dims, self.near_decay, self.near = dims, near_decay, among("heads", heads, ("near", "far")) == "near"

    def bias(self) -> biases.Bias:
        shape, log_scale = far_and_near(self.dims, self.near_decay)
        at_start = (jnp.arange(self.dims.heads) > 0) == self.near
        pick = lambda start, trained: jnp.where(at_start, start, trained[...])
        return biases.GeneralisedGaussian(pick(shape, self.shape), pick(log_scale, self.log_scale), pick(0.0, self.loc))


NATS = (16.0, 9.0, 5.0, 3.2)
"""What the widest near head takes from a key one training context away, at the start. A prior of n nats has nine tenths of its
mass within 147 / n tokens: 9, 16, 29 and 46."""
SEEDS = {"toy": (320,), "small": tuple(range(320, 330))}
TRAINED = "trained"
FROZEN = "near heads frozen"
PUT_BACK = {
    "near heads put back": {"heads": "near"},
    "near heads at 16 nats": {"heads": "near", "near_decay": 16.0},
    "far head put back": {"heads": "far"},
}
"""Changes of the trained ladder's priors at evaluation."""
METHODS = (TRAINED, *PUT_BACK, FROZEN)

NOTES = (
    "The ladder of configs/quickstart.py: 2 layers of 4 heads, effective SSMax. Nats: what the widest near head takes from a key "
    "one training context away at the start; 16 is the default.",
    "Frozen near heads keep their start while the rest of the model trains, so that their reach is ours to choose. The other "
    "rows change the priors of the trained models at evaluation and nothing else.",
    "40 passkeys of a seed at 20 depths.",
)


def _at_start(nats: float, **options: str | float) -> dict:
    return {"encoding": "near_heads:AtStart", "encoding_options": {"near_decay": nats, **options}}


def get_experiment(scale: str) -> Experiment:
    """A row for each start and method; the toy scale has one seed, the small one ten."""
    rates = {} if scale == "toy" else small_scale.chosen_rates("ladder, 2 layers", small_scale.NULL_RATES)
    rows = []
    for nats in NATS:
        ladder = {"encoding": "bam", "encoding_options": {**null_models.LADDER, "near_decay": nats, "train_loc": True}}
        for method in METHODS:
            trained = _at_start(nats) if method == FROZEN else ladder
            changes = _at_start(nats, **PUT_BACK[method]) if method in PUT_BACK else {}
            label, overrides = f"{nats:g} nats, {method}", {**trained, "ssmax": "effective", **rates}
            rows.append(
                Row(label, null_models.CONFIG, overrides, SEEDS["toy" if scale == "toy" else "small"], changes=changes)
            )
    labels = dict.fromkeys((row.label for row in rows), ())
    tables = [
        Table("Keys: accuracy", null_models.KEYS, labels),
        Table("Text: perplexity", null_models.PERPLEXITIES, labels),
    ]
    return tabled("Near heads and retrieval", rows, tables, notes=NOTES, comparable=False, scales=UNPRINTED)
