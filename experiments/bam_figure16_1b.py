"""BAM's Figure 16: passkeys of the 1.1B models to 1000 times their context, by length and depth.

Paper: appendix H.6; its numbers are only in the image.
"""

import dataclasses

from paper_columns import far_passkeys
from paper_rows import extended_rows, paper

from bam_jax.experiments.experiment import Experiment, Table

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
PARTS = {
    "Figure 16a": (("BAM SSMax",), ("<1K", "51K")),
    "Figure 16b": (("RoPE SSMax", "RoPE SSMax x50"), ()),
}
"""The models of each part, and the lengths of the small scale: for one claim it trains no large RoPE SSMax."""
NOTES = (
    """The text says models trained at 512 tokens and "accurate Passkey retrieval in all contexts", which Table 7 has only of
    the extended model: the extended models are measured.""",
)


def get_experiment(scale: str) -> Experiment:
    """A table for each model's mean over depths, and one for each depth."""
    tables = []
    for part, (methods, asked) in PARTS.items():
        whole = far_passkeys(scale, asked, depths=len(DEPTHS))
        tables.append(Table(f"{part}: passkey accuracy, mean over depths", whole, dict.fromkeys(methods, ())))
        for depth in DEPTHS:
            columns = tuple(dataclasses.replace(column, depth=depth) for column in whole)
            tables.append(Table(f"{part}: passkey accuracy at depth {depth:g}", columns, dict.fromkeys(methods, ())))
    return paper("BAM, Figure 16: 1.1B", scale, extended_rows(scale), tables, notes=NOTES)
