"""BAM's Figure 10: perplexity by position to 32 times the context, FineWeb, 120M models trained at 1024 tokens.

Command:  python -m bam_jax.sweep experiments/bam_figure10_context1024.py --scale=toy
Then:     python -m bam_jax.tables experiments/bam_figure10_context1024.py --scale=toy
Paper:    appendix H.3; its numbers are in the image alone.
"""

from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.paper_columns import BAM_SHRINK, head, perplexity, tokens
from bam_jax.experiments.papers import BAM_METHODS, FINEWEB, bam, paper

LONGEST = 32_768
POSITIONS = tuple(1024 * 2**k for k in range(6))
UNASKED = ("Sinusoidal SSMax", "NoPE SSMax", "ALiBi SSMax", "BAM")
"""The rows of which text and caption say nothing; the small scale leaves them out."""


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each window of 1024 positions, named by its end."""
    measured = perplexity(LONGEST, scale, shrink=BAM_SHRINK)
    columns = tuple(Column(head(end), measured, position=tokens(end, scale)) for end in POSITIONS)
    methods = [method for method in BAM_METHODS if scale != "small" or method not in UNASKED]
    rows = [bam(method, scale, context=1024, text=True) for method in methods]
    table = Table("Figure 10: perplexity by position", columns, dict.fromkeys(methods, ()))
    return paper("BAM, Figure 10: perplexity by position", scale, rows, [table], corpora=(FINEWEB,))
