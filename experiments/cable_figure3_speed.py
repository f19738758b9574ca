"""CABLE's Figure 3: speed and memory of training and inference, GPT-2 Medium.

Paper: section 5.2; its numbers are only in the image. The text says that CABLE trains as fast as ALiBi and Kerple,
       and that only Sinusoidal and Learnable are faster at inference.
"""

import functools

from paper_columns import CABLE_SHRINK, speed
from paper_rows import FINEWEB_EDU, cable, paper

from bam_jax.experiments.experiment import Experiment, Table
from benchmarks.speed import DECODED

METHODS = ("Sinusoidal", "RoPE", "Kerple", "Fire", "T5-bias", "ALiBi", "CABLE", "Learnable")
NOTES = (
    """Nothing is trained: parameters are random, the models take turns, a value is the median. Memory is what the compiled
    gradient of a batch of one takes, parameters and gradients included; the paper's is that of its training.""",
    """The paper's "unbatched inference time" is read as the time of a token that is decoded in a batch of one, since section 5.2
    caches the running sums "so there is no need to re-calculate them for all tokens each time", which only decoding would
    do. It does not say behind how many tokens: here the last ones of the training context are decoded, for which the
    learned position table still has rows.""",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method of Table 1."""
    here = functools.partial(speed, length=1024, scale=scale, shrink=CABLE_SHRINK)
    columns = (
        here("training, tokens/s", "training"),
        here("training, memory (GB)", "memory", unit=1e9),
        here("inference, time (ms)", "latency", unit=1e-3, room=DECODED),
    )
    group = "GPT-2 Medium, FineWeb-Edu-10B"
    rows = [cable(method, scale, label=f"{method}, {group}", size="medium", corpus=FINEWEB_EDU) for method in METHODS]
    table = Table("Figure 3: speed and memory", columns, dict.fromkeys(METHODS, ()), group=group)
    return paper("CABLE, Figure 3: speed", scale, rows, [table], notes=NOTES)
