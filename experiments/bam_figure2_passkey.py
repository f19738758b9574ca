"""BAM's Figure 2: passkey accuracy by length, 120M models trained at 512 tokens.

Paper: section 3.1; its text and caption state an accuracy of 1 for BAM SSMax at every length, and no other number.
"""

from paper_columns import far_passkeys, passkeys
from paper_rows import bam, paper

from bam_jax.experiments.experiment import Experiment, Table

METHODS = (
    "Sinusoidal SSMax",
    "NoPE SSMax",
    "RoPE SSMax",
    "RoPE SSMax x50",
    "RoPE SSMax x1",
    "RoPE Local",
    "ALiBi SSMax",
    "BAM",
    "BAM SSMax",
)
FAR = ("51K", "102K", "256K")
"""Section 5: only BAM recovers information at 250,000 tokens."""
UNASKED = ("BAM",)
"""The rows of which section 5 says nothing that BAM SSMax does not show; the small scale leaves them out there."""
NEAR_ONLY = ("RoPE SSMax x1",)
"""The rows that show what SSMax alone does, which appendix H.4 says of the lengths of Figures 2 and 13."""


def get_experiment(scale: str) -> Experiment:
    """A row for each method; a table to 64 times the context, and one beyond."""
    near = passkeys(128, scale)
    values = {method: ("1.00",) * len(near) if method == "BAM SSMax" else () for method in METHODS}
    rows = [bam(method, scale) for method in METHODS]
    far = tuple(column for column in far_passkeys(scale, FAR) if column.label in FAR)
    left_out = NEAR_ONLY + (UNASKED if scale == "small" else ())
    beyond = [method for method in METHODS if method not in left_out]
    tables = [
        Table("Figure 2: passkey accuracy", near, values),
        Table("Section 5: passkey accuracy beyond", far, dict.fromkeys(beyond, ())),
    ]
    return paper("BAM, Figure 2: passkeys", scale, rows, tables)
