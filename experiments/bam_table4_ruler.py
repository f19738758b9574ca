"""BAM's Table 4: RULER's needles in haystacks, 120M models trained at 512 tokens.

Paper: appendix F.1; 50 samples per cell.
"""

from paper_columns import ESSAY_FILES, ESSAYS, ruler_overrides
from paper_rows import bam, paper, ruler_tables

from bam_jax.experiments.experiment import Experiment

VALUES = {
    "Single 1": """
| PE               |   1K | 1.5K |   2K |   3K |   4K |   6K |   8K |  10K |  12K |
| NoPE SSMax       | 0.04 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
| RoPE SSMax       | 1.00 | 1.00 | 1.00 | 1.00 | 0.64 | 0.00 | 0.00 | 0.00 | 0.00 |
| ALiBi SSMax      | 0.96 | 0.26 | 0.22 | 0.18 | 0.16 | 0.10 | 0.02 | 0.04 | 0.02 |
| RoPE Local       | 0.40 | 0.22 | 0.24 | 0.20 | 0.12 | 0.08 | 0.00 | 0.02 | 0.00 |
| Sinusoidal SSMax | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
| BAM SSMax        | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 0.98 | 0.92 | 0.88 |
""",
    "Single 2": """
| PE               |   1K | 1.5K |   2K |   3K |   4K |   6K |   8K |  10K |  12K |
| NoPE SSMax       | 0.70 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
| RoPE SSMax       | 0.98 | 0.96 | 0.94 | 0.84 | 0.52 | 0.00 | 0.00 | 0.00 | 0.00 |
| ALiBi SSMax      | 1.00 | 0.46 | 0.12 | 0.10 | 0.06 | 0.02 | 0.00 | 0.00 | 0.00 |
| RoPE Local       | 0.84 | 0.36 | 0.10 | 0.14 | 0.10 | 0.00 | 0.00 | 0.00 | 0.00 |
| Sinusoidal SSMax | 0.70 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
| BAM SSMax        | 1.00 | 1.00 | 1.00 | 0.88 | 0.24 | 0.06 | 0.02 | 0.00 | 0.00 |
""",
    "Single 3": """
| PE               |   1K | 1.5K |   2K |   3K |   4K |   6K |   8K |  10K |  12K |
| NoPE SSMax       | 0.04 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
| RoPE SSMax       | 0.28 | 0.30 | 0.10 | 0.06 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
| ALiBi SSMax      | 0.24 | 0.04 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
| RoPE Local       | 0.10 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
| Sinusoidal SSMax | 0.08 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
| BAM SSMax        | 0.84 | 0.68 | 0.42 | 0.08 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |
""",
}
NOTES = (
    f"At the paper's scale the haystacks of Single 2 and 3 are yours, in {ESSAYS}; the paper does not name its own.",
)


def get_experiment(scale: str) -> Experiment:
    """A table for each task, with a row for each method."""
    tables = ruler_tables("Table 4", VALUES, scale)
    rows = [bam(method, scale, overrides=ruler_overrides(scale)) for method in tables[0].values]
    return paper("BAM, Table 4: RULER at 120M", scale, rows, tables, fetches=(ESSAY_FILES,), notes=NOTES)
