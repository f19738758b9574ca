"""BAM's Figure 16: passkeys of the 1.1B models to 1000 times their context, by length and depth.

Command:  python -m bam_jax.sweep experiments/bam_figure16_1b.py --scale=toy
Then:     python -m bam_jax.tables experiments/bam_figure16_1b.py --scale=toy
Paper:    appendix H.6; its numbers are in the image alone.
"""

import dataclasses

from bam_jax.experiments.experiment import Experiment, Table
from bam_jax.experiments.paper_columns import far_passkeys
from bam_jax.experiments.papers import FINEWEB, extended_rows, paper

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
NOTES = (
    """The text says models trained at 512 tokens and "accurate Passkey retrieval in all contexts", which Table 7 has only of
    the extended model: the extended models are measured.""",
)


def get_experiment(scale: str) -> Experiment:
    """A table for each depth, and one for the mean over depths."""
    methods = ("BAM SSMax", "RoPE SSMax", "RoPE SSMax x50")
    whole = far_passkeys(scale, ("<1K", "51K"), depths=len(DEPTHS))
    tables = [Table("Figure 16: passkey accuracy, mean over depths", whole, dict.fromkeys(methods, ()))]
    for depth in DEPTHS:
        columns = tuple(dataclasses.replace(column, depth=depth) for column in whole)
        tables.append(Table(f"Figure 16: passkey accuracy at depth {depth:g}", columns, dict.fromkeys(methods, ())))
    return paper("BAM, Figure 16: 1.1B", scale, extended_rows(scale), tables, corpora=(FINEWEB,), notes=NOTES)
