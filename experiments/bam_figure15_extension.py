"""BAM's Figure 15: the 1.1B model's loss by position before and after 256 steps at context 1024.

Command:  python -m bam_jax.sweep experiments/bam_figure15_extension.py --scale=toy
Then:     python -m bam_jax.tables experiments/bam_figure15_extension.py --scale=toy
Paper:    appendix H.5; its numbers are in the image alone. It shows the loss; ours is its exponential.
"""

from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.paper_columns import BAM_SHRINK, head, perplexity, tokens
from bam_jax.experiments.papers import FINEWEB, bam, bam_extended, paper

POSITIONS = tuple(512 * 2**k for k in range(7))


def get_experiment(scale: str) -> Experiment:
    """A row for the model before and one after, a column for each window of 512 positions, named by its end."""
    measured = perplexity(POSITIONS[-1], scale, shrink=BAM_SHRINK)
    columns = tuple(Column(head(end), measured, position=tokens(end, scale)) for end in POSITIONS)
    window = {"context": tokens(512, scale)}
    rows = [
        bam("BAM SSMax", scale, label="1.1B", size="1.1B", changes=window),
        bam_extended("BAM SSMax", scale, "1.1B", label="1.1B Ext.", size="1.1B", changes=window),
    ]
    table = Table("Figure 15: perplexity by position", columns, {"1.1B": (), "1.1B Ext.": ()})
    return paper("BAM, Figure 15: extension", scale, rows, [table], corpora=(FINEWEB,))
