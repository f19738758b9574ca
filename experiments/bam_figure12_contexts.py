"""BAM's Figure 12: passkey accuracy by length after training at 512, 1024 and 2048 tokens, 120M models.

Paper: appendix H.3: at 512K, above 90% after training at 2048 and 40% after 512.
"""

from paper_columns import far_passkeys
from paper_rows import bam, paper

from bam_jax.experiments.experiment import Experiment, Table

LAST = {512: "0.40", 1024: "", 2048: ">0.90"}
"""At the last length. "Accuracy above 80%" to 300,000 tokens after 1024 is in Figure 11."""


def get_experiment(scale: str) -> Experiment:
    """A row for each training context."""
    columns = far_passkeys(scale)
    values = {f"context {context}": (*("" for _ in columns[1:]), last) for context, last in LAST.items()}
    rows = [bam("BAM SSMax", scale, label=f"context {context}", context=context) for context in LAST]
    table = Table("Figure 12: passkey accuracy", columns, values)
    return paper("BAM, Figure 12: training contexts", scale, rows, [table])
