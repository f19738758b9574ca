"""BAM's Figure 11: passkey accuracy by length, 120M models trained at 1024 tokens.

Paper: appendix H.3: BAM SSMax has accuracy 1 to 32 times its context, and above 80% to 300,000 tokens.
"""

from paper_columns import far_passkeys, passkeys
from paper_rows import BAM_METHODS, bam, paper

from bam_jax.experiments.experiment import Experiment, Table

BOUND = ("51K", "102K", "153K", "204K", "256K")
"""Where the text says above 80%: until 300,000 tokens."""
UNASKED = ("Sinusoidal", "NoPE", "ALiBi", "RoPE", "RoPE SSMax x1")
"""The small scale compares with and without SSMax at context 512 alone, as Figures 2 and 13 do."""


def get_experiment(scale: str) -> Experiment:
    """A row for each method, to 32K tokens; BAM SSMax alone goes to 512K."""
    near = passkeys(128, scale)
    methods = [method for method in BAM_METHODS if scale != "small" or method not in UNASKED]
    values = {method: ("1.00",) * len(near) if method == "BAM SSMax" else () for method in methods}
    far = far_passkeys(scale, (*BOUND, "512K"))
    bounds = tuple(">0.80" if column.label in BOUND else "" for column in far)
    rows = [bam(method, scale, context=1024) for method in methods]
    tables = [
        Table("Figure 11: passkey accuracy", near, values),
        Table("Figure 11, text: passkey accuracy beyond", far, {"BAM SSMax": bounds}),
    ]
    return paper("BAM, Figure 11: passkeys after context 1024", scale, rows, tables)
