"""BAM's Table 2: perplexity within the training context, 120M models trained at 512 tokens.

Paper: appendix D.1.
"""

from paper_columns import perplexity
from paper_rows import WIKIPEDIA, bam, both_bases, paper, printed

from bam_jax.experiments.experiment import Column, Experiment, Table

VALUES = """
|                  | Wikipedia | Fineweb |
| Sinusoidal       |   18.9310 | 22.3573 |
| ALiBi            |   18.5452 | 22.1771 |
| NoPE             |   19.8609 | 23.7898 |
| BAM              |   18.9281 | 22.2640 |
| RoPE             |   18.3599 | 22.4428 |
| Sinusoidal SSMax |   19.1467 | 22.3150 |
| NoPE SSMax       |   20.3899 | 23.7581 |
| ALiBi SSMax      |   18.4967 | 22.2125 |
| BAM SSMax        |   18.6897 | 22.1363 |
| RoPE SSMax       |   20.1854 | 24.4507 |
"""
NOTES = (
    """The paper measures "sentences up to 512 tokens"; these are sequences of exactly 512 tokens from documents end to end.""",
    """RoPE SSMax has its base multiplied by 100 at evaluation, as appendix H.3 says of longer contexts, and by 50 in a row of
    its own; the paper's high values suggest that some factor was there as well.""",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each corpus."""
    heads, values = printed(VALUES)
    values = both_bases(values)
    columns = tuple(
        Column(label, perplexity(512, scale, held_out=corpus))
        for label, corpus in zip(heads, (WIKIPEDIA, ""), strict=True)
    )
    rows = [bam(method, scale, text=True) for method in values]
    table = Table("Table 2: perplexity", columns, values)
    return paper("BAM, Table 2: perplexity", scale, rows, [table], notes=NOTES)
