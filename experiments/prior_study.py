"""A start of BAM's prior that needs no luck: where it begins, at what rate it learns, and what Scalable Softmax counts.

Command:  python -m bam_jax.sweep experiments/prior_study.py --records=experiments/records/prior_study.jsonl
Then:     python -m bam_jax.report runs/prior_study
Hardware: a CPU; 77 models of 2 and 4 layers, some 4 core-hours.
Target:   with effective keys, at 64x the context .97 of the keys or more, and the perplexity of ALiBi or less there.
"""

import itertools
from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
CONTEXT = 64
STARTS = {
    "uniform": {"encoding_options": {"init": "uniform"}},
    "spread 2": {"encoding_options": {"init": "spread", "spread": 2.0}},
}
RATES = (1.0, 20.0)
COUNTS = {"all keys": "on", "effective keys": "effective"}
OTHERS = {"BAM, no SSMax": "bam", "ALiBi": "alibi", "CABLE": "cable"}
LAYERS = {2: (100, 101, 102, 103), 4: (100, 101, 102)}
"""The training seeds of each depth; those of verdicts are others."""

NOTES = (
    """"All keys" is Scalable Softmax with the prior inside its factor, as BAM's authors have it. "Effective keys" is ours: the
    factor is s log(N + C) / log C with C the training context and N the keys that a head's prior leaves in play, and the
    prior stands outside. A head that looks at its neighbours has a small N however long the text, and stays as it is.""",
    """The rate is a multiple of the common one, for shape and scale alone. BAM without SSMax has the uniform start and 20 times
    the rate. Under Adam a scalar moves by the rate in a step, and an output of a linear map by the rate times the sum of its
    inputs: the logits of CABLE's steps move some 50 times as fast at this width.""",
    "This is a screening: few seeds, to choose what is confirmed on fresh ones. It gives no verdict.",
)


def get_experiment() -> Experiment:
    """A row for each start, rate, count and depth, and for what they are compared with."""
    asked = (
        Passkey((CONTEXT, 16 * CONTEXT, 64 * CONTEXT), trials=5),
        Passkey((500 * CONTEXT,), depths=10),
        Perplexity((CONTEXT, 64 * CONTEXT)),
    )
    rows = []
    for layers, seeds in LAYERS.items():
        for (start, options), rate, (count, ssmax) in itertools.product(STARTS.items(), RATES, COUNTS.items()):
            changes = {**options, "optimizer.prior_rate": rate, "ssmax": ssmax, "model.layers": layers}
            rows.append(Row(f"{start}, rate x{rate:g}, {count}, {layers} layers", CONFIG, changes, seeds, asked))
        for label, encoding in OTHERS.items():
            changes = {"encoding": encoding, "encoding_options": {}, "ssmax": "off", "model.layers": layers}
            changes |= {"optimizer.prior_rate": 20.0} if encoding == "bam" else {}
            rows.append(Row(f"{label}, {layers} layers", CONFIG, changes, seeds, asked))
    expected = [
        Expected(f"uniform, rate x20, effective keys, {layers} layers", 64 * CONTEXT, least=0.97) for layers in LAYERS
    ]
    notes = tuple(" ".join(note.split()) for note in NOTES)
    return Experiment(
        "A start of the prior that needs no luck: a screening", tuple(rows), expected=tuple(expected), notes=notes
    )
