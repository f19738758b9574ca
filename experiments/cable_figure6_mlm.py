"""CABLE's Figure 6: the loss of masked language modelling, BERT base on FineWeb-Edu with five encodings.

Command:  python -m bam_jax.sweep experiments/cable_figure6_mlm.py --scale=toy
Then:     python -m bam_jax.tables experiments/cable_figure6_mlm.py --scale=toy
Paper:    appendix A.1; the values are in the image.
"""

from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.paper_encoders import (
    ENCODER_CONTEXT,
    ENCODER_METHODS,
    SCALED_NOTE,
    encoder,
    masked_perplexity,
)
from bam_jax.experiments.papers import FINEWEB_EDU_BERT, paper

NOTES = (
    "The figure draws the loss in training; the column is its exponential at the end, on text that is held out. The runs' own "
    "pages draw the losses in training.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each encoding, at the length that it is trained at."""
    column = Column(str(ENCODER_CONTEXT), masked_perplexity(ENCODER_CONTEXT, scale))
    table = Table("Figure 6: perplexity of masked tokens", (column,), dict.fromkeys(ENCODER_METHODS, ()))
    rows = [encoder(method, scale) for method in ENCODER_METHODS]
    notes = NOTES if scale == "paper" else (*NOTES, SCALED_NOTE)
    title = "CABLE, Figure 6: masked language modelling"
    return paper(title, scale, rows, [table], corpora=(FINEWEB_EDU_BERT,), notes=notes)
