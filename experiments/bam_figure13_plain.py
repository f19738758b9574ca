"""BAM's Figure 13: passkey accuracy by length without Scalable Softmax, 120M models trained at 512 tokens.

Paper: appendix H.4; its numbers are only in the image.
"""

from paper_columns import passkeys
from paper_rows import bam, paper

from bam_jax.experiments.experiment import Experiment, Table

METHODS = ("Sinusoidal", "NoPE", "RoPE", "RoPE Local", "ALiBi", "BAM")


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each length."""
    rows = [bam(method, scale) for method in METHODS]
    table = Table("Figure 13: passkey accuracy", passkeys(128, scale), dict.fromkeys(METHODS, ()))
    return paper("BAM, Figure 13: passkeys without SSMax", scale, rows, [table])
