"""The table and the figure of the README: passkey accuracy beyond the training context, for each encoding.

Command:  python -m bam_jax.sweep experiments/headline.py --scale=small
Then:     python -m bam_jax.tables experiments/headline.py --scale=small --format=markdown
          python -m bam_jax.tables experiments/headline.py --scale=small --format=figures --out=docs/figures
Hardware: a CPU; the models are those of bam_figure2_passkey.py and null_models.py, and a sweep of all trains them once.
"""

import dataclasses

import null_models
import small_scale
from paper_columns import passkey
from paper_rows import bam, paper

from bam_jax.experiments.experiment import Column, Experiment, Row, Table

EFFECTIVE = {"BAM ladder, effective SSMax": "ladder", "NAPE, effective SSMax": "NAPE"}
"""Two forms with effective SSMax, of which the second has no trained prior: names in `null_models.METHODS` by label. The heads of
NAPE are counted for the small models, so that the paper's scale has neither."""
METHODS = {
    "BAM SSMax": "BAM SSMax",
    "BAM": "BAM",
    "ALiBi SSMax": "ALiBi SSMax",
    "NoPE SSMax": "NoPE SSMax",
    "RoPE SSMax x1": "RoPE SSMax x1",
    "Local RoPE": "RoPE Local",
    "Sinusoidal SSMax": "Sinusoidal SSMax",
}
"""Names in `paper_rows.BAM_METHODS` by label."""
CONTEXT = 512
"""Tokens of training, the paper's; an eighth of them at the small scale."""
NEAR, FAR = (1, 4, 16, 64), (100, 500)
"""Lengths in training contexts; all have keys at 20 depths, so that as many of them stand beside the question."""


def _effective(label: str, scale: str) -> Row:
    """One of `EFFECTIVE`; at the small scale the models of 2 layers of `null_models`, ten seeds."""
    method = EFFECTIVE[label]
    changes = {**null_models.METHODS[method], "ssmax": "effective"}
    rates = small_scale.chosen_rates(f"{method}, 2 layers", small_scale.NULL_RATES) if scale == "small" else {}
    row = bam("BAM", scale, label=label, overrides=changes | rates)
    return dataclasses.replace(row, seeds=null_models.SEEDS[scale])


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each length in training contexts."""
    near = [Column(f"{times}×", passkey(times * CONTEXT, scale)) for times in NEAR]
    far = [Column(f"{times}×", dataclasses.replace(passkey(times * CONTEXT, scale), trials=1)) for times in FAR]
    rows = [_effective(label, scale) for label in EFFECTIVE if scale != "paper"]
    rows += [bam(method, scale, label=label) for label, method in METHODS.items()]
    table = Table("Keys found", (*near, *far), dict.fromkeys((row.label for row in rows), ()))
    return paper("Keys beyond the training context", scale, rows, [table])
