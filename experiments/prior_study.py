"""Starts of BAM's prior, and how much they depend on the seed: initialisation, learning rate, and what Scalable Softmax counts.

Command:  python -m bam_jax.sweep experiments/prior_study.py --records=experiments/records/prior_study
Then:     python -m bam_jax.report runs/prior_study
Hardware: a CPU; 80 models of 2 and 4 layers, some 3 core-hours.
Target:   the ladder with effective keys finds at least .97 of the keys at 64x the context, with at most ALiBi's perplexity there.
"""

from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
UNIFORM = {"encoding": "bam", "encoding_options": {"init": "uniform"}, "optimizer.prior_rate": 20.0}
LOCATED = {**UNIFORM, "encoding_options": {"init": "uniform", "train_loc": True}}
SPREAD = {"encoding": "bam", "encoding_options": {"init": "spread", "spread": 2.0}}
LADDER = {"encoding": "bam", "encoding_options": {"init": "ladder", "near_decay": None, "near_shape": 1.0}}
CONTEXTUAL = {"encoding": "bam_contextual", "encoding_options": {"near_decay": None, "near_shape": 1.0}}
STARTS = {
    "uniform, prior x20, SSMax": {**UNIFORM, "ssmax": "on"},
    "uniform, prior x20, effective": {**UNIFORM, "ssmax": "effective"},
    "uniform, prior x20, SSMax, location": {**LOCATED, "ssmax": "on"},
    "uniform, prior x20, effective, location": {**LOCATED, "ssmax": "effective"},
    "uniform, effective": {**UNIFORM, "optimizer.prior_rate": 1.0, "ssmax": "effective"},
    "spread 2, SSMax": {**SPREAD, "ssmax": "on"},
    "spread 2, effective": {**SPREAD, "ssmax": "effective"},
    "ladder": {**LADDER, "ssmax": "off"},
    "ladder, SSMax": {**LADDER, "ssmax": "on"},
    "ladder, effective": {**LADDER, "ssmax": "effective"},
    "contextual ladder": {**CONTEXTUAL, "ssmax": "off"},
    "contextual ladder, effective": {**CONTEXTUAL, "ssmax": "effective"},
    "BAM": {**UNIFORM, "ssmax": "off"},
    "ALiBi": {"encoding": "alibi", "encoding_options": {}, "ssmax": "off"},
    "CABLE": {"encoding": "cable", "encoding_options": {}, "ssmax": "off"},
}
"""Changes of the configuration by label; the last three are what the others are compared with."""
FASTER = ("ladder, effective", "contextual ladder, effective", "BAM", "ALiBi", "CABLE")
"""Labels that are tried with the rate 0.01 as well; the configuration has 0.003."""
METHODS = STARTS | {f"{label}, rate 0.01": {**STARTS[label], "optimizer.rate": 0.01} for label in FASTER}
LAYERS = (2, 4)
SEEDS = (100, 101)
"""The training seeds; those of verdicts are others."""

NOTES = (
    """"SSMax" is Scalable Softmax with the prior inside its factor, as BAM's authors have it. "Effective" is ours: the
    factor is s log(N + C) / log C with C the training context and N the keys that a head's prior leaves in play, and the
    prior stands outside. A head that looks at its neighbours has a small N however long the text, and stays as it is.""",
    """"Ladder" is a start with one head that looks far and others that look near: shape -1, and shape 1 with slopes from 1
    to 1/20 nats a token. "Contextual" has what the text between two tokens weighs for their distance.""",
    """"x20" is the rate of shape and scale alone, as a multiple of the common one. Under Adam a scalar moves by the rate in a
    step, and an output of a linear map by the rate times the sum of its inputs: the logits of CABLE's steps move some 50 times
    as fast at this width.""",
    """"Location" trains the prior's location as well, which BAM's authors leave at 0.""",
    "This is a screening: few seeds, to choose what is confirmed on fresh ones. It gives no verdict.",
)


def get_experiment() -> Experiment:
    """A row for each start and depth."""
    asked = (
        Passkey((CONTEXT, 16 * CONTEXT, 64 * CONTEXT), trials=5),
        Passkey((500 * CONTEXT,), depths=10),
        Perplexity((CONTEXT, 64 * CONTEXT)),
    )
    rows = [
        Row(f"{label}, {layers} layers", CONFIG, {**changes, "model.layers": layers}, SEEDS, asked)
        for layers in LAYERS
        for label, changes in METHODS.items()
    ]
    expected = tuple(Expected(f"ladder, effective, {layers} layers", 64 * CONTEXT, least=0.97) for layers in LAYERS)
    title = "A start of the prior that needs no luck: a screening"
    return Experiment(title, tuple(rows), expected=expected, notes=NOTES)
