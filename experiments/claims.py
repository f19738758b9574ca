"""The claims of both papers: abstracts, tables, figures and text.

Command:  python -m bam_jax.claims experiments/claims.py --runs=runs --scale=small --out=docs/claims.md
          (run python -m bam_jax.sweep with the experiments' files at that scale first)

docs/claims_protocol.md says what is frozen here, and when.
"""

import runpy
from pathlib import Path

from bam_jax.experiments.claims import Claim

FROZEN = "4ccdd40015"
"""The commit in which the criteria were frozen, before the first run that they judge; "": they are not yet."""

NOTES = (
    "Command: `python -m bam_jax.claims experiments/claims.py --scale=small --out=docs/claims.md`, from the committed records, "
    "which a sweep of the experiments at that scale has made.",
    "**Lengths and sizes have the papers' names.** At the small scale a length is an eighth of its name (BAM) or a sixteenth "
    'of it (CABLE): "256K" is 32,000 tokens and "context 512" is 64. "120M", "432M" and "1.1B" are models of 90,000, '
    "400,000 and 1.5 million parameters (`docs/claims_protocol.md`).",
    'A claim states its criterion. What is in brackets after "here:" is ours, where the paper gives no number; a '
    "bound without it is the paper's.",
    "At 51K and beyond, keys stand at five depths, the last of which is beside the question. The README's table has 20 depths at "
    "every length, so its shares at 100 and 500 times the context differ from those of this page.",
    "At the small scale one English text stands for FineWeb, FineWeb-Edu and WikiText-103, and Python's "
    "documentation, on which these models are not trained, for Wikipedia. Passkeys are planted in training, where "
    "the paper's models meet none.",
    'What the runs showed of the limits of the criteria stands in `docs/claims_protocol.md`, "Read after the runs".',
    "A claim without its paper's own numbers is one whose check reads cells in which the paper prints none. That the 120M model "
    'is above 0.8 at 51K to 256K reads those of Figure 3; Table 7 prints 1.0, 0.9, 0.9, 0.9 and 0.8 for it. "Above" is tested as '
    "at least.",
    "The toy scale gives no verdict: one seed, models of minutes, no choice of rates. It shows that the code which "
    "measures a claim runs. All its corpora are the same text, so that tables which differ in that alone share "
    "their runs.",
)

PAPERS = {
    "Bayesian Attention Mechanism": ("claims_bam", "claims_bam_benchmarks", "claims_bam_ablations", "claims_bam_sizes"),
    "CABLE": ("claims_cable",),
}
"""The files beside this one that hold each paper's claims."""


def get_claims() -> dict[str, list[Claim]]:
    """All claims, by paper."""
    return {paper: [claim for name in names for claim in _read(name)] for paper, names in PAPERS.items()}


def _read(name: str) -> list[Claim]:
    return runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))["get_claims"]()
