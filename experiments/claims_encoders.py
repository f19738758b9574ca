"""The claims of "Context-aware Biases for Length Extrapolation" on encoders.

Command:  python -m bam_jax.claims experiments/claims_encoders.py --scale=small --out=docs/encoder_claims.md
          (run python -m bam_jax.sweep experiments/cable_figure6_mlm.py experiments/cable_figure7_contrastive.py
          experiments/cable_table3_retrieval.py --scale=small first)
"""

from bam_jax.experiments.checks import Cells, Check, better, ratio
from bam_jax.experiments.claims import Claim
from bam_jax.experiments.compound_checks import better_across
from bam_jax.experiments.paper_encoders import ENCODER_METHODS

TITLE = "What CABLE's authors claim of encoders, and what came out here"
FROZEN = ""
"""The commit in which the criteria were frozen, before the first run that they judge; "": they are not yet."""

NOTES = (
    "Command: `python -m bam_jax.claims experiments/claims_encoders.py --scale=small --out=docs/encoder_claims.md`, after a "
    "sweep of the three experiments. Columns are named as in the paper, with its tokens; here they have an eighth.",
    'What is in brackets after "here:" is our criterion, where the paper has no number.',
    "At the small scale documents are Python's documentation, and queries are sentences that stood in them (docs/retrieval.md). "
    "What is claimed of a ranking needs that the encoder beats the averages of its own token embeddings at its training length.",
)

OTHERS = tuple(method for method in ENCODER_METHODS if method != "CABLE")
RELATIVE, ABSOLUTE = ("CABLE", "ALiBi", "RoPE"), ("Learnable", "Sinusoidal")
BEYOND = ("1024", "2048", "4096", "8192", "16384")
TABLE3 = "cable_table3_retrieval"


def get_claims() -> dict[str, list[Claim]]:
    """The claims, in the order of the trainings."""
    return {"CABLE": [*_masked(), *_contrastive(), *_retrieval()]}


def _masked() -> list[Claim]:
    table = lambda title: Cells("cable_figure6_mlm", f"{title}: perplexity", ("512",))
    whole, early = table("Figure 6"), table("Figure 6, after a quarter of the steps")
    return [
        Claim(
            "A.1, Figure 6",
            "BERT with CABLE has the lowest final loss of masked tokens of all encodings",
            (better(whole, "CABLE", OTHERS, lower=True),),
        ),
        Claim(
            "5.5, A.1, Figure 6",
            "BERT with CABLE converges faster on masked tokens than with every other encoding (here: models that are "
            "trained for a quarter of the steps have the lowest perplexity with CABLE)",
            (better(early, "CABLE", OTHERS, lower=True),),
        ),
        Claim(
            "A.1, Figure 6",
            "Learnable and Sinusoidal do not match the loss of masked tokens that CABLE, ALiBi and RoPE reach",
            tuple(better(whole, row, ABSOLUTE, lower=True) for row in RELATIVE),
        ),
    ]


def _contrastive() -> list[Claim]:
    loss = Cells("cable_figure7_contrastive", "Figure 7", ("512",))
    return [
        Claim(
            "A.1, Figure 7",
            "BERT with CABLE has the lowest contrastive loss of all encodings",
            (better(loss, "CABLE", OTHERS, lower=True),),
        ),
        Claim(
            "A.1, Figure 7",
            "Learnable and Sinusoidal lag behind CABLE, ALiBi and RoPE in the contrastive loss",
            tuple(better(loss, row, ABSOLUTE, lower=True) for row in RELATIVE),
        ),
    ]


def _retrieval() -> list[Claim]:
    near, far, beyond = _ranked("512"), _ranked("16384"), _ranked(*BEYOND)
    return [
        Claim(
            "abstract, 5.5, Table 3",
            "BERT with CABLE ranks documents longer than its training length better than with ALiBi, RoPE and "
            "Sinusoidal (here: at each length)",
            (better(beyond, "CABLE", ("ALiBi", "RoPE", "Sinusoidal"), each=True),),
            needs=_has_learned("CABLE"),
        ),
        Claim(
            "5.5, Table 3",
            "BERT with CABLE or with ALiBi ranks documents better the more of them it reads (here: better at 16384 than "
            "at 512 tokens)",
            tuple(ratio((far, row), (near, row), least=1.0) for row in ("CABLE", "ALiBi")),
            needs=_has_learned("CABLE"),
        ),
        *(
            Claim(
                "5.5, Table 3",
                f"BERT with {row} fails on documents much longer than its training length (here: at 16384 tokens it has "
                "at most half of its nDCG@10 at 512)",
                (ratio((far, row), (near, row), most=0.5),),
                needs=_has_learned(row),
            )
            for row in ("RoPE", "Sinusoidal")
        ),
        Claim(
            "5.5, Table 3",
            "at its training length BERT ranks better with CABLE, ALiBi, RoPE and Sinusoidal than with Learnable",
            tuple(better(near, row, ("Learnable",)) for row in (*RELATIVE, "Sinusoidal")),
            needs=_has_learned("CABLE"),
        ),
    ]


def _ranked(*columns: str) -> Cells:
    return Cells(TABLE3, "Table 3", columns)


def _has_learned(row: str) -> Check:
    """The condition that a row beats the averages of its token embeddings at the training length."""
    return better_across((_ranked("512"), row), (Cells(TABLE3, "Averages of token embeddings", ("512",)), row))
