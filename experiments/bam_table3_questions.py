"""BAM's Table 3: questions of MMLU and ARC to the 1.1B models. They cannot be asked yet: the paper's values alone.

Command:  python -m bam_jax.sweep experiments/bam_table3_questions.py --scale=toy
Then:     python -m bam_jax.tables experiments/bam_table3_questions.py --scale=toy
Paper:    appendix E.
"""

from bam_jax.experiment import Column, Experiment, Table, printed
from bam_jax.papers import FINEWEB, bam, bam_extended, paper

VALUES = """
|            |   MMLU | ARC-Easy | ARC-Challenge |
| BAM SSMax  | 0.3716 |   0.5770 |        0.4132 |
| RoPE SSMax | 0.3573 |   0.5715 |        0.4123 |
"""
MISSING = "not measurable yet: bam_jax has no evaluation by multiple choice"
NOTES = ("The models are those extended to 1024 tokens, which appendix C says the evaluations used.",)


def get_experiment(scale: str) -> Experiment:
    """Both models, none of which is trained for this table alone."""
    heads, values = printed(VALUES)
    columns = tuple(Column(label, missing=MISSING) for label in heads)
    rows = []
    for method in ("BAM SSMax", "RoPE SSMax"):
        rows.append(bam(method, scale, label=f"{method}, 512", size="1.1B"))
        rows.append(bam_extended(method, scale, f"{method}, 512", label=method, size="1.1B"))
    table = Table("Table 3: accuracy", columns, values)
    return paper("BAM, Table 3: MMLU and ARC", scale, rows, [table], corpora=(FINEWEB,), notes=NOTES)
