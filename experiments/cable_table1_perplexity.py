"""CABLE's Table 1: perplexity to 15 times the context of 1024 tokens.

Paper: section 5.1.
"""

from paper_rows import FINEWEB_EDU, WIKITEXT, cable_tables

from bam_jax.experiments.experiment import Experiment

FINEWEB_VALUES = """
| Sequence Length | CABLE | CABLE_NW | ALiBi |   Fire | T5-bias | Kerple |   RoPE | Learnable | Sinusoidal |
| 512             | 17.00 |    17.22 | 17.30 |  17.60 |   17.79 |  17.22 |  17.39 |     17.99 |      17.98 |
| 1024            | 16.52 |    16.73 | 16.79 |  17.11 |   17.26 |  16.70 |  16.89 |     17.47 |      17.48 |
| 2048            | 15.97 |    16.24 | 16.56 |  19.60 |   38.32 |  16.28 |  38.95 |         — |     219.80 |
| 4096            | 15.34 |    15.79 | 16.67 | 101.98 |  243.69 |  16.78 | 146.72 |         — |    1058.84 |
| 8192            | 15.41 |    15.97 | 17.23 | 383.08 |  799.53 |  20.32 | 361.26 |         — |    2485.84 |
| 15360           | 15.41 |    16.03 | 17.46 | 835.92 | 1450.83 |  26.13 | 691.90 |         — |    3355.86 |
"""
WIKITEXT_VALUES = """
| Sequence Length | CABLE | CABLE_NW | ALiBi |   Fire | T5-bias | Kerple |   RoPE | Learnable | Sinusoidal |
| 512             | 23.70 |    24.32 | 24.09 |  24.34 |   25.06 |  23.95 |  23.66 |     24.94 |      25.18 |
| 1024            | 22.32 |    23.01 | 22.74 |  22.90 |   23.60 |  22.56 |  22.26 |     23.53 |      23.73 |
| 2048            | 21.48 |    22.19 | 22.05 |  22.68 |   27.64 |  21.72 |  41.40 |         — |     172.33 |
| 4096            | 20.94 |    21.70 | 21.73 |  29.57 |   73.99 |  21.32 | 114.77 |         — |     607.48 |
| 8192            | 20.65 |    21.46 | 21.58 |  54.89 |  198.64 |  21.33 | 220.56 |         — |    1348.23 |
| 15360           | 20.33 |    21.13 | 21.30 | 104.79 |  411.09 |  21.58 | 375.62 |         — |    2017.42 |
"""
PARTS = (
    (FINEWEB_VALUES, "GPT-2 Medium, FineWeb-Edu-10B", "medium", FINEWEB_EDU),
    (WIKITEXT_VALUES, "GPT-2 Tiny, WikiText-103", "tiny", WIKITEXT),
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each length; the paper's table is transposed."""
    return cable_tables("Table 1", PARTS, scale)
