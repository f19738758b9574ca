"""BAM's Figure 8: how far passkeys are found after different initialisations of the prior.

Command:  python -m bam_jax.sweep experiments/bam_figure8_passkey.py --scale=toy
Then:     python -m bam_jax.tables experiments/bam_figure8_passkey.py --scale=toy
Paper:    appendix H.1; its numbers are in the image alone.
          experiments/prior_study.py has starts of our own.
"""

from bam_jax.experiments.experiment import Column, Experiment, Table
from bam_jax.experiments.paper_columns import head, passkey
from bam_jax.experiments.papers import FINEWEB, bam, paper

LENGTHS = tuple(512 * 2**k for k in range(7))
INITS = {"uniform": "uniform", "ALiBi": "alibi", "sampled": "sampled"}
LEARNERS = {
    f"BAM SSMax from {label}": {"encoding_options.init": init} for label, init in INITS.items() if label != "uniform"
}
"""The starts whose rates the small scale looks for; the uniform one is the method itself."""
NOTES = (
    """The caption says three schemes, the text describes two. The third row is the normal start that the authors' code
    offers.""",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each initialisation."""
    columns = tuple(Column(head(length), passkey(length, scale)) for length in LENGTHS)
    rows = []
    for label, init in INITS.items():
        named = f"BAM SSMax from {label}"
        learner = named if named in LEARNERS else ""
        rows.append(bam("BAM SSMax", scale, label=label, overrides={"encoding_options.init": init}, learner=learner))
    table = Table("Figure 8: passkey accuracy", columns, dict.fromkeys(INITS, ()))
    return paper("BAM, Figure 8: initialisation", scale, rows, [table], corpora=(FINEWEB,), notes=NOTES)
