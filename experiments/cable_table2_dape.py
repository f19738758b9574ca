"""CABLE's Table 2: perplexity with and without DAPE V2, GPT-2 Small trained at 512 tokens on FineWeb-Edu.

Paper: section 5.3; its text gives the training speed, on eight H100 GPUs.
"""

from paper_columns import CABLE_SHRINK, cable_perplexities, speed
from paper_rows import FINEWEB_EDU, cable, paper, printed

from bam_jax.experiments.experiment import Experiment, Table

VALUES = """
| Seq. Len. | CABLE | Kerple | DAPEv2+Cable | DAPEv2+Kerple |
| 512       | 21.17 |  21.41 |        20.41 |         20.56 |
| 1024      | 20.72 |  21.12 |        19.91 |         20.07 |
| 2048      | 20.23 |  22.58 |        19.30 |         19.51 |
| 4096      | 19.60 |  28.04 |        18.55 |         18.79 |
| 8192      | 19.87 |  39.38 |        18.63 |         18.92 |
"""
SPEED = {"CABLE": ("1.9M", ""), "Kerple": ("", ""), "DAPEv2+Cable": ("0.6M", ""), "DAPEv2+Kerple": ("", "")}
NOTES = (
    """The speeds are those of one device, the models taking turns with random parameters; the paper's are those of eight H100
    GPUs: compare the ratios alone.""",
    """The text says that DAPEv2+CABLE infers 1.7 times slower than CABLE. Inference is the time of a token that is decoded
    behind 512 in the cache, as in Figure 3.""",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each length and one for the speed; the paper's table is transposed."""
    lengths, values = printed(VALUES, transpose=True)
    timed = (
        speed("training, tokens/s", "training", 512, scale, shrink=CABLE_SHRINK),
        speed("inference, time (ms)", "latency", 512, scale, shrink=CABLE_SHRINK, unit=1e-3),
    )
    tables = [
        Table("Table 2: perplexity", cable_perplexities(lengths, scale), values),
        Table("Section 5.3: speed", timed, SPEED),
    ]
    rows = [cable(method, scale, label=method, size="small", corpus=FINEWEB_EDU, context=512) for method in values]
    return paper("CABLE, Table 2: DAPE", scale, rows, tables, notes=NOTES)
