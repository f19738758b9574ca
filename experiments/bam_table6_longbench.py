"""BAM's Table 6: LongBench v2, 1.1B models. It cannot be measured yet: the paper's values alone.

Command:  python -m bam_jax.sweep experiments/bam_table6_longbench.py --scale=toy
Then:     python -m bam_jax.tables experiments/bam_table6_longbench.py --scale=toy
Paper:    appendix G; texts of at most 131k tokens.
"""

from bam_jax.experiment import Column, Experiment, Table, printed
from bam_jax.papers import FINEWEB, bam, bam_extended, paper

VALUES = """
|                                     | BAM SSMax | RoPE SSMax |
| Code Repository Understanding       |      41.7 |       25.0 |
| Long In-context Learning            |      36.4 |       30.3 |
| Long-dialogue History Understanding |      35.0 |       35.0 |
| Multi-Document QA                   |      26.5 |       25.3 |
| Single-Document QA                  |      26.5 |       18.8 |
| Overall                             |      28.6 |       24.2 |
"""
MISSING = "not measurable yet: bam_jax has no evaluation by multiple choice"
NOTES = ("The models are those extended to 1024 tokens, which appendix C says the evaluations used.",)


def get_experiment(scale: str) -> Experiment:
    """The paper's columns as rows: both models, none of which is trained for this table alone."""
    heads, values = printed(VALUES, transpose=True)
    columns = tuple(Column(label, missing=MISSING) for label in heads)
    rows = []
    for method in ("BAM SSMax", "RoPE SSMax"):
        rows.append(bam(method, scale, label=f"{method}, 512", size="1.1B"))
        rows.append(bam_extended(method, scale, f"{method}, 512", label=method, size="1.1B"))
    table = Table("Table 6: accuracy in percent", columns, values)
    return paper("BAM, Table 6: LongBench v2", scale, rows, [table], corpora=(FINEWEB,), notes=NOTES)
