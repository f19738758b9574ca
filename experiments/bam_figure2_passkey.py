"""BAM's Figure 2: how far passkeys are found, 120M models trained at 512 tokens.

Command:  python -m bam_jax.sweep experiments/bam_figure2_passkey.py --scale=toy
Then:     python -m bam_jax.tables experiments/bam_figure2_passkey.py --scale=toy
Paper:    section 3.1; its text and caption give BAM SSMax 1 at every length, and no other number.
"""

from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.paper_columns import head, passkey
from bam_jax.experiments.papers import FINEWEB, bam, paper

METHODS = (
    "Sinusoidal SSMax",
    "NoPE SSMax",
    "RoPE SSMax",
    "RoPE SSMax x50",
    "RoPE Local",
    "ALiBi SSMax",
    "BAM",
    "BAM SSMax",
)
LENGTHS = tuple(128 * 2**k for k in range(9))
VALUES = {method: ("1.00",) * len(LENGTHS) if method == "BAM SSMax" else () for method in METHODS}


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each length."""
    columns = tuple(Column(head(length), passkey(length, scale)) for length in LENGTHS)
    rows = [bam(method, scale) for method in METHODS]
    table = Table("Figure 2: passkey accuracy", columns, VALUES)
    return paper("BAM, Figure 2: passkeys", scale, rows, [table], corpora=(FINEWEB,))
