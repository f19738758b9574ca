"""CABLE's Figure 6: the loss of masked language modelling, BERT base on FineWeb-Edu with five encodings.

Paper: appendix A.1; the values are in the image.
"""

from paper_encoders import CONTEXT, ENCODER_METHODS, early_row, encoder_paper, masked_perplexity, masked_row

from bam_jax.experiments.experiment import Column, Experiment, Table

NOTES = (
    "The figure draws the loss in training; the column is its exponential at the end, on text that is held out. The runs' own "
    "pages draw the losses in training.",
    "How fast a method converges is asked of models of their own, which have a quarter of the steps, the rate of the whole "
    "training and as many steps of warm-up.",
)


def get_experiment(scale: str) -> Experiment:
    """Two rows for each encoding, at the length that it is trained at; Table 3's go on from the first."""
    column = Column(str(CONTEXT), masked_perplexity(CONTEXT, scale))
    tables = [
        Table(f"{title}: perplexity of masked tokens", (column,), dict.fromkeys(ENCODER_METHODS, ()), group=group)
        for title, group in (("Figure 6", "masked"), ("Figure 6, after a quarter of the steps", "early"))
    ]
    rows = (masked_row, early_row)
    return encoder_paper("CABLE, Figure 6: masked language modelling", scale, rows, tables, notes=NOTES)
