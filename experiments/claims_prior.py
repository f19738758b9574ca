"""The claims of this project about a prior that needs no luck.

Command:  python -m bam_jax.claims experiments/claims_prior.py --scale=small --out=docs/prior_claims.md
          (run python -m bam_jax.sweep experiments/prior_confirmation.py --scale=small first)
"""

import runpy
from pathlib import Path

from bam_jax.experiments.checks import Cells, ratio, within
from bam_jax.experiments.claims import Claim
from bam_jax.experiments.compound_checks import reliable

CONFIRMATION = runpy.run_path(str(Path(__file__).with_name("prior_confirmation.py")))
OURS, DEPTHS = CONFIRMATION["OURS"], CONFIRMATION["DEPTHS"]
OTHERS = tuple(method for method in CONFIRMATION["METHODS"] if method != OURS)

TITLE = "A prior that needs no luck: claims of our own, and what came out"
FROZEN = "c4a8c682a8"
"""The commit in which the criteria were frozen, before the first run that they judge; "": they are not yet."""

NOTES = (
    "Command: `python -m bam_jax.claims experiments/claims_prior.py --scale=small --out=docs/prior_claims.md`, after "
    "`python -m bam_jax.sweep experiments/prior_confirmation.py --scale=small`. The claims are this project's own.",
    "This is the fourth form that is put to the same criteria, each on fresh seeds. The other three were stopped once they had "
    "failed (docs/prior_study.md). The verdicts do not count the tries; to count them, divide the level by four.",
    "BAM ladder is BAM's prior, with one head of a layer that starts by looking far, others that start by looking near, of "
    "which the widest takes 16 nats from a key one training context away, a trained location, and Scalable Softmax over the "
    "keys that a head's prior leaves in play (docs/prior_study.md). All numbers are of ten training seeds. The changes of "
    "the method are confirmed together.",
    "A claim of accuracy at one depth is about the mean over ten seeds, not about each model. Ten seeds cannot distinguish this "
    "form from one that fails now and then.",
    "Models of one seed share texts and prompts at all depths. The claim over all depths counts them as independent seeds, and "
    "its verdict rests on that (docs/prior_study.md).",
    "Perplexity is of 32,768 characters, on which the method and the rates were chosen as well. The screening had shown how far "
    "ALiBi lies above, so the claims against it are no test.",
)


def get_claims() -> dict[str, list[Claim]]:
    """The claims on all depths together, and those at each."""
    places = tuple((Cells("prior_confirmation", f"Keys, {layers} layers", ("64×",)), OURS) for layers in DEPTHS)
    every = Claim(
        "all depths",
        "at 64 times the training context more than nine of ten models find 90% of the keys or more, whatever seed and depth",
        (reliable(places, least=0.9, share=0.9),),
        "no number of seeds shows that none would ever fail",
    )
    return {"A start that needs no luck": [every, *(claim for depth in DEPTHS for claim in _at(depth))]}


def _at(layers: int) -> list[Claim]:
    keys = lambda column: Cells("prior_confirmation", f"Keys, {layers} layers", (column,))
    text = lambda column: Cells("prior_confirmation", f"Text, {layers} layers", (column,))
    return [
        Claim(
            f"{layers} layers",
            "at 64 times the training context it finds 97% of the keys or more",
            (within(keys("64×"), OURS, least=0.97),),
        ),
        Claim(
            f"{layers} layers",
            "at 500 times the training context it finds 93% of the keys or more",
            (within(keys("500×"), OURS, least=0.93),),
        ),
        *(
            Claim(
                f"{layers} layers",
                f"at {times} the training context its perplexity is at most 1% above {other}'s",
                (ratio((text(times), OURS), (text(times), other), most=1.01),),
            )
            for other in OTHERS
            for times in ("1×", "64×")
        ),
    ]
