"""BAM's Figure 9 at toy scale: which parameters of the prior train, one prior for all layers, Scalable Softmax or none.

Command:  python -m bam_jax.sweep experiments/prior_learnable.py --runs=runs/figure9; python -m bam_jax.report runs/figure9
Hardware: a CPU; 14 models.
Paper:    Figure 9 (appendix H.2) compares shape alone, shape and scale, and all three at 120M parameters and context 512:
          shape and scale reach furthest, all three least. Its values are in the image alone. The other rows are ours.
"""

import itertools
from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
TRAINED = {
    "shape and scale": {},
    "shape alone": {"encoding_options.train_scale": False},
    "scale alone": {"encoding_options.train_shape": False},
    "nothing": {"encoding_options.train_shape": False, "encoding_options.train_scale": False},
    "shape, scale and loc": {"encoding_options.train_loc": True},
    "loc alone": {
        "encoding_options.train_shape": False,
        "encoding_options.train_scale": False,
        "encoding_options.train_loc": True,
    },
    "shape and scale, shared by all layers": {"shared_encoding": True},
}
SSMAX = {"SSMax": {}, "no SSMax": {"ssmax": "off"}}
LENGTHS = (64, 256, 1024, 4096)


def get_experiment() -> Experiment:
    """A row for each choice of trained parameters, with and without Scalable Softmax."""
    return Experiment(
        title="Which parameters of the prior train (BAM, Figure 9) at toy scale",
        rows=tuple(
            Row(
                f"{trained}, {ssmax}",
                CONFIG,
                TRAINED[trained] | SSMAX[ssmax],
                evaluations=(Passkey(LENGTHS),),
            )
            for trained, ssmax in itertools.product(TRAINED, SSMAX)
        ),
        notes=(
            "All start with shapes spread from -2 to 2, which is ours: what does not train stays there. One training seed a row.",
        ),
    )
