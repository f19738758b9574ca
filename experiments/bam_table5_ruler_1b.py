"""BAM's Table 5: RULER's needles in haystacks, 1.1B models.

Paper: appendix F.2; 50 samples per cell.
"""

from paper_columns import ESSAY_FILES, ESSAYS, ruler_overrides
from paper_rows import extended_rows, paper, ruler_tables

from bam_jax.experiments.experiment import Experiment

VALUES = {
    "Single 1": """
| PE         | 1024 | 1536 | 2048 | 3072 | 4096 | 6144 | 8192 | 12288 | 16384 | 24576 | 32768 |
| BAM SSMax  | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |  1.00 |  1.00 |  1.00 |  1.00 |
| RoPE SSMax | 1.00 | 0.88 | 0.68 | 0.40 | 0.30 | 0.10 | 0.02 |  0.00 |  0.00 |  0.00 |  0.00 |
""",
    "Single 2": """
| PE         | 1024 | 1536 | 2048 | 3072 | 4096 | 6144 | 8192 | 12288 | 16384 | 24576 | 32768 |
| BAM SSMax  | 1.00 | 1.00 | 1.00 | 0.98 | 1.00 | 0.88 | 0.82 |  0.46 |  0.18 |  0.06 |  0.02 |
| RoPE SSMax | 1.00 | 0.82 | 0.62 | 0.32 | 0.18 | 0.04 | 0.00 |  0.00 |  0.00 |  0.00 |  0.00 |
""",
    "Single 3": """
| PE         | 1024 | 1536 | 2048 | 3072 | 4096 | 6144 | 8192 | 12288 | 16384 | 24576 | 32768 |
| BAM SSMax  | 0.88 | 0.92 | 0.88 | 0.86 | 0.80 | 0.62 | 0.30 |  0.10 |  0.02 |  0.00 |  0.00 |
| RoPE SSMax | 0.76 | 0.30 | 0.16 | 0.04 | 0.02 | 0.00 | 0.00 |  0.00 |  0.00 |  0.00 |  0.00 |
""",
    "MultiKey 1": """
| PE         | 1024 | 1536 | 2048 | 3072 | 4096 | 6144 | 8192 | 12288 | 16384 | 24576 | 32768 |
| BAM SSMax  | 0.84 | 0.86 | 0.94 | 0.92 | 0.86 | 0.76 | 0.66 |  0.56 |  0.24 |  0.10 |  0.06 |
| RoPE SSMax | 0.80 | 0.86 | 0.68 | 0.38 | 0.32 | 0.08 | 0.06 |  0.00 |  0.00 |  0.00 |  0.00 |
""",
    "MultiKey 2": """
| PE         | 1024 | 1536 | 2048 | 3072 | 4096 | 6144 | 8192 | 12288 | 16384 | 24576 | 32768 |
| BAM SSMax  | 0.22 | 0.16 | 0.12 | 0.04 | 0.04 | 0.00 | 0.02 |  0.02 |  0.00 |  0.00 |  0.00 |
| RoPE SSMax | 0.26 | 0.14 | 0.04 | 0.00 | 0.00 | 0.00 | 0.00 |  0.00 |  0.00 |  0.00 |  0.00 |
""",
    "MultiKey 3": """
| PE         | 1024 | 1536 | 2048 | 3072 | 4096 | 6144 | 8192 | 12288 | 16384 | 24576 | 32768 |
| BAM SSMax  | 0.12 | 0.04 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |  0.00 |  0.00 |  0.00 |  0.00 |
| RoPE SSMax | 0.18 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |  0.00 |  0.00 |  0.00 |  0.00 |
""",
    "MultiQuery": """
| PE         | 1024 | 1536 | 2048 | 3072 | 4096 | 6144 | 8192 | 12288 | 16384 | 24576 | 32768 |
| BAM SSMax  | 0.88 | 0.88 | 0.85 | 0.82 | 0.71 | 0.68 | 0.62 |  0.44 |  0.23 |  0.10 |  0.02 |
| RoPE SSMax | 0.85 | 0.76 | 0.42 | 0.17 | 0.11 | 0.06 | 0.03 |  0.03 |  0.01 |  0.01 |  0.01 |
""",
    "MultiValue": """
| PE         | 1024 | 1536 | 2048 | 3072 | 4096 | 6144 | 8192 | 12288 | 16384 | 24576 | 32768 |
| BAM SSMax  | 0.96 | 0.94 | 0.92 | 0.92 | 0.82 | 0.84 | 0.76 |  0.70 |  0.38 |  0.14 |  0.00 |
| RoPE SSMax | 0.96 | 1.00 | 1.00 | 0.78 | 0.70 | 0.42 | 0.32 |  0.10 |  0.04 |  0.08 |  0.00 |
""",
}
NOTES = (
    "The models are those extended to 1024 tokens, which appendix C says the evaluations used.",
    f"At the paper's scale the haystacks that are essays are texts of yours in {ESSAYS}; the paper does not name its own.",
)


def get_experiment(scale: str) -> Experiment:
    """A table for each task, with a row for each model."""
    tables = ruler_tables("Table 5", VALUES, scale)
    rows = extended_rows(scale, overrides=ruler_overrides(scale))
    return paper("BAM, Table 5: RULER at 1.1B", scale, rows, tables, fetches=(ESSAY_FILES,), notes=NOTES)
