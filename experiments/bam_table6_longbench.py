"""BAM's Table 6: LongBench v2, 1.1B models.

Paper: appendix G; texts of at most 131k tokens.
"""

from paper_columns import BENCHMARKS, benchmark_files, questions, ruler_overrides
from paper_rows import both_bases, extended_rows, paper, printed

from bam_jax.data.tasks.benchmarks import LONGBENCH
from bam_jax.evals.harness import Harness
from bam_jax.experiments.experiment import Experiment, Table

VALUES = """
|                                     | BAM SSMax | RoPE SSMax |
| Code Repository Understanding       |      41.7 |       25.0 |
| Long In-context Learning            |      36.4 |       30.3 |
| Long-dialogue History Understanding |      35.0 |       35.0 |
| Multi-Document QA                   |      26.5 |       25.3 |
| Single-Document QA                  |      26.5 |       18.8 |
| Overall                             |      28.6 |       24.2 |
"""
TASKS = {
    "Code Repository Understanding": "longbench2_code",
    "Long In-context Learning": "longbench2_incontext",
    "Long-dialogue History Understanding": "longbench2_history",
    "Multi-Document QA": "longbench2_multi",
    "Single-Document QA": "longbench2_single",
    "Overall": "longbench2",
}
LENGTH, SHRINK = 131_072, 64
NOTES = (
    "The models are those extended to 1024 tokens, which appendix C says the evaluations used.",
    f"""Questions whose text is longer than {LENGTH} tokens are left out, as in the paper, which does not print the column of
    structured data, of which it has four; they are in "Overall". At the paper's scale the questions are in {BENCHMARKS}.""",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each model; the paper has these as columns."""
    heads, values = printed(VALUES, transpose=True)
    asked = {head: Harness((LENGTH,), tasks=(TASKS[head],), longer="skip") for head in heads}
    columns = tuple(questions(head, evaluation, scale, shrink=SHRINK, unit=0.01) for head, evaluation in asked.items())
    rows = extended_rows(scale, overrides=ruler_overrides(scale))
    table = Table("Table 6: accuracy in percent", columns, both_bases(values))
    fetches = (benchmark_files(LONGBENCH),)
    return paper("BAM, Table 6: LongBench v2", scale, rows, [table], fetches=fetches, notes=NOTES)
