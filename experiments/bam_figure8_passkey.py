"""BAM's Figure 8: passkey accuracy by length after different initialisations of the prior.

Paper: appendix H.1; its numbers are only in the image.
       experiments/prior_study.py has our own initialisations.
"""

from paper_columns import passkeys
from paper_rows import bam, paper

from bam_jax.experiments.experiment import Experiment, Table

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
    rows = [
        bam(
            "BAM SSMax",
            scale,
            label=label,
            overrides={"encoding_options.init": init},
            learner="" if init == "uniform" else f"BAM SSMax from {label}",
        )
        for label, init in INITS.items()
    ]
    table = Table("Figure 8: passkey accuracy", passkeys(512, scale), dict.fromkeys(INITS, ()))
    return paper("BAM, Figure 8: initialisation", scale, rows, [table], notes=NOTES)
