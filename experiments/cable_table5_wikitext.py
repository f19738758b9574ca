"""CABLE's Table 5: perplexity to 15 times the context of 1024 tokens, two larger models, WikiText-103.

Paper: appendix A.2.
"""

from paper_rows import WIKITEXT, cable_tables

from bam_jax.experiments.experiment import Experiment

MEDIUM_VALUES = """
| Sequence Length | CABLE | CABLE_NW | ALiBi |   Fire | T5-bias | Kerple |  RoPE | Learnable | Sinusoidal |
| 512             | 20.33 |    20.80 | 20.80 |  22.18 |   23.33 |  20.96 | 20.81 |     22.52 |      24.16 |
| 1024            | 19.12 |    19.63 | 19.62 |  20.89 |   22.00 |  19.73 | 19.60 |     21.23 |      22.77 |
| 2048            | 18.36 |    18.91 | 19.04 |  21.86 |   35.46 |  19.01 | 20.78 |         — |     143.58 |
| 4096            | 17.87 |    18.47 | 18.91 |  46.60 |  124.19 |  18.63 | 31.22 |         — |     467.51 |
| 8192            | 17.58 |    18.23 | 18.89 | 106.27 |  363.59 |  18.61 | 51.54 |         — |    1006.37 |
| 15360           | 17.36 |    17.95 | 18.60 | 195.93 |  726.18 |  18.79 | 91.53 |         — |    1516.97 |
"""
SMALL_VALUES = """
| Sequence Length | CABLE | CABLE_NW | ALiBi |   Fire | T5-bias | Kerple |   RoPE | Learnable | Sinusoidal |
| 512             | 20.93 |    21.34 | 21.46 |  22.03 |   22.80 |  21.50 |  21.38 |     22.51 |      23.09 |
| 1024            | 19.71 |    20.15 | 20.22 |  20.74 |   21.49 |  20.22 |  20.13 |     21.21 |      21.73 |
| 2048            | 18.95 |    19.42 | 19.62 |  21.28 |   33.85 |  19.45 |  30.14 |         — |     163.49 |
| 4096            | 18.47 |    18.98 | 19.39 |  36.02 |  123.05 |  19.04 |  63.75 |         — |     580.86 |
| 8192            | 18.20 |    18.75 | 19.29 |  81.77 |  347.22 |  18.91 | 117.81 |         — |    1121.08 |
| 15360           | 17.92 |    18.48 | 19.06 | 163.91 |  659.72 |  19.00 | 202.23 |         — |    1652.53 |
"""
PARTS = (
    (MEDIUM_VALUES, "GPT-2 Medium", "medium", WIKITEXT),
    (SMALL_VALUES, "GPT-2 Small", "small", WIKITEXT),
)

REPEATS = "the small scale has Table 1 alone: it has one English text, and this table repeats it at other sizes"


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each length; the paper's table is transposed."""
    return cable_tables("Table 5", PARTS, scale, repeats=REPEATS)
