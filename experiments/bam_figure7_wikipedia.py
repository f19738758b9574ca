"""BAM's Figure 7: perplexity by position to 64 times the context, Wikipedia, 120M models trained at 512 tokens.

Paper: appendix D.2; its numbers are only in the image. It uses articles as long as the sequences; ours are concatenated.
"""

from paper_columns import windows
from paper_rows import BAM_METHODS, WIKIPEDIA, bam, paper

from bam_jax.experiments.experiment import Experiment, Table


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each window of 512 positions, named by its end."""
    columns = windows(512, scale, held_out=WIKIPEDIA)
    rows = [bam(method, scale, text=True) for method in BAM_METHODS]
    table = Table("Figure 7: perplexity by position", columns, dict.fromkeys(BAM_METHODS, ()))
    return paper("BAM, Figure 7: perplexity by position", scale, rows, [table])
