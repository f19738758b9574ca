"""BAM's Figure 13: how far passkeys are found without Scalable Softmax, 120M models trained at 512 tokens.

Command:  python -m bam_jax.sweep experiments/bam_figure13_plain.py --scale=toy
Then:     python -m bam_jax.tables experiments/bam_figure13_plain.py --scale=toy
Paper:    appendix H.4; its numbers are in the image alone.
"""

from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.paper_columns import head, passkey
from bam_jax.experiments.papers import FINEWEB, bam, paper

METHODS = ("Sinusoidal", "NoPE", "RoPE", "RoPE Local", "ALiBi", "BAM")
LENGTHS = tuple(128 * 2**k for k in range(9))


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each length."""
    columns = tuple(Column(head(length), passkey(length, scale)) for length in LENGTHS)
    rows = [bam(method, scale) for method in METHODS]
    table = Table("Figure 13: passkey accuracy", columns, dict.fromkeys(METHODS, ()))
    return paper("BAM, Figure 13: passkeys without SSMax", scale, rows, [table], corpora=(FINEWEB,))
