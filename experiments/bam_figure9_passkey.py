"""BAM's Figure 9: passkey accuracy by length, depending on which parameters of the prior are trained.

Paper: appendix H.2: the parameters are in the text, the accuracies in the image.
"""

from paper_columns import passkeys
from paper_rows import bam, paper

from bam_jax.experiments.experiment import Column, Experiment, Table

PARAMETERS = {"shape": "192", "shape and scale": "384", "shape, scale and location": "576"}
OVERRIDES = {
    "shape": {"encoding_options.train_scale": False},
    "shape and scale": {},
    "shape, scale and location": {"encoding_options.train_loc": True},
}
LEARNERS = {f"BAM SSMax training {label}": changes for label, changes in OVERRIDES.items() if changes}
"""The variants whose rates the small scale looks for; shape and scale is the method itself."""
NOTES = ("The paper says how many parameters are trained, and that shape and scale together reach furthest.",)


def get_experiment(scale: str) -> Experiment:
    """A row for each set of trained parameters."""
    keys = passkeys(512, scale)
    columns = (Column("trained parameters", quantity="trained_prior_parameters"), *keys)
    values = {label: (count, *("" for _ in keys)) for label, count in PARAMETERS.items()}
    rows = [
        bam(
            "BAM SSMax", scale, label=label, overrides=changes, learner=f"BAM SSMax training {label}" if changes else ""
        )
        for label, changes in OVERRIDES.items()
    ]
    table = Table("Figure 9: passkey accuracy", columns, values)
    return paper("BAM, Figure 9: trained parameters", scale, rows, [table], notes=NOTES)
