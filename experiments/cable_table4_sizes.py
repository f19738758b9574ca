"""CABLE's Table 4: perplexity to 15 times the context of 1024 tokens, two smaller models, FineWeb-Edu.

Paper: appendix A.2.
"""

from paper_rows import FINEWEB_EDU, cable_tables

from bam_jax.experiments.experiment import Experiment

SMALL_VALUES = """
| Sequence Length | CABLE | CABLE_NW | ALiBi |   Fire | T5-bias | Kerple |   RoPE | Learnable | Sinusoidal |
| 512             | 21.19 |    21.42 | 21.55 |  21.84 |   22.17 |  21.46 |  21.43 |     22.16 |      22.38 |
| 1024            | 20.63 |    20.89 | 20.99 |  21.26 |   21.57 |  20.86 |  20.87 |     21.56 |      21.83 |
| 2048            | 20.02 |    20.34 | 20.67 |  22.48 |   29.37 |  20.38 |  58.59 |         — |     207.53 |
| 4096            | 19.24 |    19.67 | 21.23 |  53.25 |  131.36 |  21.11 | 225.78 |         — |     956.41 |
| 8192            | 19.31 |    19.81 | 22.42 | 155.32 |  405.94 |  26.59 | 554.12 |         — |    2376.51 |
| 15360           | 19.28 |    19.82 | 22.89 | 333.91 |  757.36 |  34.91 | 957.87 |         — |    3589.97 |
"""
TINY_VALUES = """
| Sequence Length | CABLE | CABLE_NW | ALiBi |   Fire | T5-bias | Kerple |   RoPE | Learnable | Sinusoidal |
| 512             | 29.37 |    30.12 | 29.88 |  30.23 |   30.78 |  29.60 |  29.44 |     30.73 |      30.67 |
| 1024            | 28.73 |    29.57 | 29.25 |  29.56 |   30.08 |  28.95 |  28.81 |     30.11 |      30.03 |
| 2048            | 27.96 |    28.88 | 28.82 |  29.60 |   33.81 |  28.32 |  76.29 |         — |     275.28 |
| 4096            | 26.90 |    27.85 | 28.28 |  37.86 |   86.33 |  28.31 | 239.95 |         — |    1166.46 |
| 8192            | 26.97 |    27.92 | 26.80 |  70.72 |  222.60 |  32.00 | 452.67 |         — |    2561.54 |
| 15360           | 26.80 |    27.75 | 28.52 | 124.29 |  448.08 |  37.67 | 652.52 |         — |    3679.78 |
"""
PARTS = (
    (SMALL_VALUES, "GPT-2 Small", "small", FINEWEB_EDU),
    (TINY_VALUES, "GPT-2 Tiny", "tiny", FINEWEB_EDU),
)
REPEATS = "the small scale has Table 1 alone: it has one English text, and this table repeats it at other sizes"
NOTES = (
    "GPT-2 Tiny with ALiBi at 8192 is 26.80 as printed, out of line with its neighbours and equal to CABLE at 15,360.",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each length; the paper's table is transposed."""
    return cable_tables("Table 4", PARTS, scale, notes=NOTES, repeats=REPEATS)
