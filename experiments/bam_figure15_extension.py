"""BAM's Figure 15: the 1.1B model's loss by position before and after 256 steps at context 1024.

Paper: appendix H.5; its numbers are only in the image. It shows the loss; our value is its exponential.
"""

from paper_columns import tokens, windows
from paper_rows import bam, bam_extended, paper

from bam_jax.experiments.experiment import Experiment, Table


def get_experiment(scale: str) -> Experiment:
    """A row for the model before and one after, a column for each window of 512 positions, named by its end."""
    window = {"context": tokens(512, scale)}
    rows = [
        bam("BAM SSMax", scale, label="1.1B", size="1.1B", changes=window),
        bam_extended("BAM SSMax", scale, "1.1B", label="1.1B Ext.", size="1.1B", changes=window),
    ]
    table = Table("Figure 15: perplexity by position", windows(512, scale), {"1.1B": (), "1.1B Ext.": ()})
    return paper("BAM, Figure 15: extension", scale, rows, [table])
