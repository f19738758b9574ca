"""BAM's Figure 6: perplexity by position to 64 times the context, FineWeb, 120M models trained at 512 tokens.

Paper: appendix D.2; its numbers are only in the image.
"""

from paper_columns import windows
from paper_rows import BAM_METHODS, bam, paper

from bam_jax.experiments.experiment import Experiment, Table


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each window of 512 positions, named by its end."""
    rows = [bam(method, scale, text=True) for method in BAM_METHODS]
    table = Table("Figure 6: perplexity by position", windows(512, scale), dict.fromkeys(BAM_METHODS, ()))
    return paper("BAM, Figure 6: perplexity by position", scale, rows, [table])
