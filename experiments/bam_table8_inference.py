"""BAM's Table 8: time and memory of inference, three sizes, with random parameters as in the paper.

Paper: appendix H.7: 100 samples, batch 1, 512 tokens; its caption says "during the backward pass", its text says inference.
"""

from paper_columns import BAM_SHRINK, speed
from paper_rows import bam, paper, printed

from bam_jax.experiments.experiment import Experiment, Table

VALUES = {
    "120M": """
|                  |         Time |  VRAM |
| Sinusoidal       | 32.84 ± 0.40 | 1.734 |
| Sinusoidal SSMax | 32.82 ± 1.13 | 1.736 |
| RoPE             | 35.77 ± 1.98 | 1.754 |
| RoPE SSMax       | 36.04 ± 1.39 | 1.742 |
| ALiBi            | 31.43 ± 0.73 | 1.738 |
| ALiBi SSMax      | 32.21 ± 0.09 | 1.736 |
| BAM              | 33.13 ± 0.53 | 1.739 |
| BAM SSMax        | 33.01 ± 0.81 | 1.737 |
| NoPE             | 38.15 ± 1.87 | 1.738 |
| NoPE SSMax       | 38.49 ± 1.30 | 1.736 |
""",
    "432M": """
|                  |         Time |  VRAM |
| Sinusoidal       | 50.98 ± 0.37 | 4.933 |
| Sinusoidal SSMax | 53.39 ± 0.28 | 4.933 |
| RoPE             | 53.42 ± 0.38 | 4.936 |
| RoPE SSMax       | 55.65 ± 0.17 | 4.934 |
| ALiBi            | 52.24 ± 0.27 | 4.933 |
| ALiBi SSMax      | 54.22 ± 0.21 | 4.934 |
| BAM              | 52.85 ± 0.24 | 4.936 |
| BAM SSMax        | 59.50 ± 0.18 | 4.936 |
| NoPE             | 56.10 ± 0.42 | 4.933 |
| NoPE SSMax       | 58.36 ± 0.70 | 4.933 |
""",
    "1.1B": """
|                  |          Time |   VRAM |
| Sinusoidal       | 117.26 ± 0.42 | 12.329 |
| Sinusoidal SSMax | 120.91 ± 0.55 | 12.324 |
| RoPE             | 120.50 ± 0.36 | 12.330 |
| RoPE SSMax       | 123.34 ± 0.42 | 12.325 |
| ALiBi            | 119.34 ± 0.39 | 12.329 |
| ALiBi SSMax      | 122.09 ± 0.33 | 12.325 |
| BAM              | 120.31 ± 0.38 | 12.329 |
| BAM SSMax        | 133.14 ± 0.41 | 12.319 |
| NoPE             | 121.34 ± 0.80 | 12.329 |
| NoPE SSMax       | 124.95 ± 0.60 | 12.324 |
""",
}
NOTES = (
    """Nothing is trained. A time is the median of 100 batches of one, the models taking turns; VRAM is what the compiled gradient
    of a batch of one takes, parameters and gradients included, without recomputed layers. The paper says neither.""",
)


def get_experiment(scale: str) -> Experiment:
    """A table for each size. The paper calls the middle size 430M in this table."""
    measures = (("inference", "ms", 1e-3), ("memory", "GB", 1e9))
    stored = {"model.remat": False} if scale == "paper" else {}
    tables, rows = [], []
    for size, text in VALUES.items():
        heads, values = printed(text)
        columns = tuple(
            speed(f"{head} ({name})", measure, 512, scale, shrink=BAM_SHRINK, unit=unit)
            for head, (measure, name, unit) in zip(heads, measures, strict=True)
        )
        tables.append(Table(f"Table 8: inference, {size}", columns, values, group=size))
        rows += [bam(method, scale, label=f"{method}, {size}", size=size, overrides=stored) for method in values]
    return paper("BAM, Table 8: inference", scale, rows, tables, notes=NOTES)
