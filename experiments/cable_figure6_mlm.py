"""CABLE's Figure 6: the loss of masked language modelling, BERT base on FineWeb-Edu with five encodings.

Command:  python -m bam_jax.sweep experiments/cable_figure6_mlm.py --scale=toy
Then:     python -m bam_jax.tables experiments/cable_figure6_mlm.py --scale=toy
Paper:    appendix A.1; the values are in the image.
"""

import dataclasses

from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.paper_encoders import (
    CONTEXT,
    ENCODER_METHODS,
    encoder_preparations,
    masked_perplexity,
    masked_row,
)
from bam_jax.experiments.papers import paper

NOTES = (
    "The figure draws the loss in training; the column is its exponential at the end, on text that is held out. The runs' own "
    "pages draw the losses in training.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each encoding, at the length that it is trained at; the rows are those that Table 3's go on from."""
    column = Column(str(CONTEXT), masked_perplexity(CONTEXT, scale))
    methods = {f"{method}, masked": () for method in ENCODER_METHODS}
    table = Table("Figure 6: perplexity of masked tokens", (column,), methods)
    rows = [masked_row(method, scale) for method in ENCODER_METHODS]
    made = paper("CABLE, Figure 6: masked language modelling", scale, rows, [table], notes=NOTES)
    return dataclasses.replace(made, preparations=encoder_preparations(scale))
