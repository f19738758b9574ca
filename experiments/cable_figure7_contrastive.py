"""CABLE's Figure 7: the contrastive loss of encoders trained on MS MARCO's triplets, by encoding.

Paper: appendix A.1; its numbers are only in the image. The text says that CABLE has the lowest loss of all methods, and
       that Learnable and Sinusoidal lag behind.
"""

from paper_encoders import CONTEXT, ENCODER_METHODS, contrastive_loss, contrastive_row, encoder_paper, masked_row

from bam_jax.experiments.experiment import Column, Experiment, Table

NOTES = (
    """The figure draws the loss in training; the column is the loss at the end, of triplets that are held out, in nats a query.
    At the small scale these are of the documents that are tested with, by which no rate was chosen. The runs' own pages draw the
    losses in training.""",
    """The figure's methods stand in its image; the rows are those of Table 3. Each goes on from masked language modelling with
    the same encoding.""",
)


def get_experiment(scale: str) -> Experiment:
    """Two rows for each method, before and after the triplets; the table has the second, at the length of training."""
    column = Column(str(CONTEXT), contrastive_loss(CONTEXT, scale))
    table = Table("Figure 7: contrastive loss", (column,), dict.fromkeys(ENCODER_METHODS, ()))
    rows = (masked_row, contrastive_row)
    return encoder_paper("CABLE, Figure 7: contrastive training", scale, rows, [table], notes=NOTES)
