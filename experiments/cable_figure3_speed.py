"""CABLE's Figure 3: speed and memory of training and inference, GPT-2 Medium.

Command:  python -m bam_jax.sweep experiments/cable_figure3_speed.py --scale=toy
Then:     python -m bam_jax.tables experiments/cable_figure3_speed.py --scale=toy
Paper:    section 5.2; no numbers but in the image: CABLE trains as fast as ALiBi and Kerple, and only
          Sinusoidal and Learnable infer faster.
"""

from bam_jax.experiment import Column, Experiment, Table
from bam_jax.papers import FINEWEB_EDU, cable, paper

METHODS = ("Sinusoidal", "RoPE", "Kerple", "Fire", "T5-bias", "ALiBi", "CABLE", "Learnable")
MISSING = "not measurable yet: bam_jax has no evaluation of a whole model's speed"


def get_experiment(scale: str) -> Experiment:
    """A row for each method; the runs are those of Table 1."""
    columns = (
        Column("training, tokens/s", quantity="tokens_per_second"),
        Column("training, memory", missing=MISSING),
        Column("inference, time", missing=MISSING),
    )
    group = "GPT-2 Medium, FineWeb-Edu-10B"
    rows = [cable(method, scale, label=f"{method}, {group}", size="medium", corpus=FINEWEB_EDU) for method in METHODS]
    table = Table("Figure 3: speed and memory", columns, dict.fromkeys(METHODS, ()), group=group)
    return paper("CABLE, Figure 3: speed", scale, rows, [table], corpora=(FINEWEB_EDU,))
