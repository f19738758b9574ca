"""BAM's Figure 3: passkeys of the 120M model to 1000 times its context, by length and depth.

Paper: section 3.1: above 80% at 500 times the training length (512 tokens), 0% in 3 of 55 cells; the rest is in the image.
"""

import dataclasses

from paper_columns import far_passkeys
from paper_rows import bam, paper

from bam_jax.experiments.experiment import Experiment, Table

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
ASKED = ("<1K", "51K", "102K", "153K", "204K", "256K", "512K")
"""The lengths of the small scale: of those between 256K and 512K nothing is said but how many of 55 cells are 1 or 0."""
NOTES = (
    """55 cells are 11 lengths, those of Table 7, and 5 depths. That 3 of them are 0 is what the text says; which is in the
    image.""",
)


def get_experiment(scale: str) -> Experiment:
    """A table for each depth, and one for the mean over depths."""
    whole = far_passkeys(scale, ASKED, depths=len(DEPTHS))
    value = tuple(">0.80" if column.label == "256K" else "" for column in whole)
    tables = [Table("Figure 3: passkey accuracy, mean over depths", whole, {"BAM SSMax": value})]
    for depth in DEPTHS:
        columns = tuple(dataclasses.replace(column, depth=depth) for column in whole)
        tables.append(Table(f"Figure 3: passkey accuracy at depth {depth:.2f}", columns, {"BAM SSMax": ()}))
    return paper("BAM, Figure 3: passkeys by depth", scale, [bam("BAM SSMax", scale)], tables, notes=NOTES)
