"""BAM's Table 3: accuracy of the 1.1B models on MMLU and ARC.

Paper: appendix E.
"""

from paper_columns import BENCHMARKS, benchmark_files, questions, ruler_overrides
from paper_rows import both_bases, extended_rows, paper, printed

from bam_jax.evals.harness import Harness
from bam_jax.experiments.experiment import Experiment, Table

VALUES = """
|            |   MMLU | ARC-Easy | ARC-Challenge |
| BAM SSMax  | 0.3716 |   0.5770 |        0.4132 |
| RoPE SSMax | 0.3573 |   0.5715 |        0.4123 |
"""
TASKS = {"MMLU": "mmlu", "ARC-Easy": "arc_easy", "ARC-Challenge": "arc_challenge"}
LENGTH = 2048
NOTES = (
    "The models are those extended to 1024 tokens, which appendix C says the evaluations used.",
    f"""The paper says neither with how many examples nor by which measure: here there are none, and an answer is the choice of
    the greatest likelihood, not divided by its length. At the paper's scale the questions are in {BENCHMARKS}; longer ones than
    {LENGTH} tokens are cut in the middle.""",
)


def get_experiment(scale: str) -> Experiment:
    """A column for each benchmark, a row for each model."""
    heads, values = printed(VALUES)
    columns = tuple(questions(label, Harness((LENGTH,), tasks=(TASKS[label],)), scale) for label in heads)
    rows = extended_rows(scale, overrides=ruler_overrides(scale))
    table = Table("Table 3: accuracy", columns, both_bases(values))
    fetches = benchmark_files("cais/mmlu"), benchmark_files("allenai/ai2_arc")
    return paper("BAM, Table 3: MMLU and ARC", scale, rows, [table], fetches=fetches, notes=NOTES)
