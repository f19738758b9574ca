"""BAM's Figure 6: perplexity by position to 64 times the context, FineWeb, 120M models trained at 512 tokens.

Command:  python -m bam_jax.sweep experiments/bam_figure6_perplexity.py --scale=toy
Then:     python -m bam_jax.tables experiments/bam_figure6_perplexity.py --scale=toy
Paper:    appendix D.2; its numbers are in the image alone.
"""

from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.paper_columns import BAM_SHRINK, head, perplexity, tokens
from bam_jax.experiments.papers import BAM_METHODS, FINEWEB, bam, paper

LONGEST = 32_768
POSITIONS = tuple(512 * 2**k for k in range(7))


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each window of 512 positions, named by its end."""
    measured = perplexity(LONGEST, scale, shrink=BAM_SHRINK)
    columns = tuple(Column(head(end), measured, position=tokens(end, scale)) for end in POSITIONS)
    rows = [bam(method, scale, text=True) for method in BAM_METHODS]
    table = Table("Figure 6: perplexity by position", columns, dict.fromkeys(BAM_METHODS, ()))
    return paper("BAM, Figure 6: perplexity by position", scale, rows, [table], corpora=(FINEWEB,))
