"""BAM's Figure 10: perplexity by position to 32 times the context, FineWeb, 120M models trained at 1024 tokens.

Paper: appendix H.3; its numbers are only in the image.
"""

from paper_columns import windows
from paper_rows import BAM_METHODS, bam, paper

from bam_jax.experiments.experiment import Experiment, Table

UNASKED = ("Sinusoidal SSMax", "NoPE SSMax", "ALiBi SSMax", "BAM")
"""The rows of which text and caption say nothing; the small scale leaves them out."""


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each window of 1024 positions, named by its end."""
    methods = [method for method in BAM_METHODS if scale != "small" or method not in UNASKED]
    rows = [bam(method, scale, context=1024, text=True) for method in methods]
    table = Table("Figure 10: perplexity by position", windows(1024, scale), dict.fromkeys(methods, ()))
    return paper("BAM, Figure 10: perplexity by position", scale, rows, [table])
