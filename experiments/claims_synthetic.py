"""Claims of three papers on reach, and one of ours, asked of recall, copying and text by position.

Command:  python -m bam_jax.claims experiments/claims_synthetic.py --scale=small --out=docs/synthetic_claims.md
          (run python -m bam_jax.sweep experiments/synthetic.py --scale=small first)
"""

from bam_jax.experiments.checks import Cells, Check, better, ratio, within
from bam_jax.experiments.claims import Claim
from bam_jax.experiments.compound_checks import all_of, relative_growth

TITLE = "Reach without text: what recall and copying say of the papers' claims"
FROZEN = ""
"""The commit in which the criteria were frozen, before the first run that they judge; "": they are not yet."""

NOTES = (
    "Command: `python -m bam_jax.claims experiments/claims_synthetic.py --scale=small --out=docs/synthetic_claims.md`, after "
    "`python -m bam_jax.sweep experiments/synthetic.py --scale=small`. No paper measures these tasks: all criteria are ours.",
    "A claim about retrieval needs that its rows do the task at the training context: more than 0.9 of the answers, by a test.",
    "Each training seed has rows of its own. The text is the same for all seeds.",
    "`docs/evaluate.md` has the tasks; lengths are multiples of the training context of 64 symbols.",
)

BEYOND = ("4×", "16×", "64×")
LEARNED = 0.9
"""The accuracy at the training context above which a row does a task."""
FOX = "Lin et al. 2025"


def get_claims() -> dict[str, list[Claim]]:
    """The claims, by whose they are."""
    return {
        "Bayesian Attention Mechanism": _bam(),
        "CABLE": _cable(),
        "Forgetting Transformer": _fox(),
        "Ours": _ours(),
    }


def _bam() -> list[Claim]:
    return [
        *(
            Claim(
                "abstract, 3.1",
                f"BAM SSMax retrieves far beyond its training context (here: at 64 times it, 0.8 or more in {task})",
                (within(_at(task, "64×"), "BAM SSMax", least=0.8),),
                needs=_has_learned(task, "BAM SSMax"),
            )
            for task in ("recall", "copy")
        ),
        *(
            Claim(
                "3.1",
                f"beyond the training context BAM SSMax retrieves more than {other} (here: in recall, in the mean of 4 "
                "to 64 times)",
                (better(_at("recall", *BEYOND), "BAM SSMax", (other,)),),
                needs=_has_learned("recall", "BAM SSMax", other),
            )
            for other in ("NoPE", "RoPE", "ALiBi")
        ),
        Claim(
            "Lemma 3",
            "ALiBi is local far from a query (here: at 64 times the training context it has at most half of its recall "
            "within it)",
            (ratio((_at("recall", "64×"), "ALiBi"), (_at("recall", "1×"), "ALiBi"), most=0.5),),
            needs=_has_learned("recall", "ALiBi"),
        ),
        Claim(
            "D.2",
            "BAM, BAM SSMax and ALiBi keep their perplexity (here: to 64 times the training context it grows by at "
            "most a tenth "
            "more than that of Local RoPE)",
            tuple(_grows(row, most=1.1) for row in ("BAM", "BAM SSMax", "ALiBi")),
        ),
        Claim(
            "D.2",
            "the perplexity of NoPE and RoPE rises sharply (here: to 64 times the training context by at least half "
            "more than that "
            "of Local RoPE)",
            tuple(_grows(row, least=1.5) for row in ("NoPE", "RoPE")),
        ),
    ]


def _cable() -> list[Claim]:
    return [
        *(
            Claim(
                "5.4",
                "biases that depend on the text keep informative tokens in sight at long distances, where ALiBi's do "
                "not (here: "
                f"CABLE has more than ALiBi in {task}, in the mean of 4 to 64 times the training context; the paper "
                "suggests it)",
                (better(_at(task, *BEYOND), "CABLE", ("ALiBi",)),),
                needs=_has_learned(task, "CABLE", "ALiBi"),
            )
            for task in ("recall", "copy")
        ),
        Claim(
            "1, 5.1",
            "CABLE gains from text beyond its training context (here: to 64 times it its perplexity grows by no more "
            "than that of "
            "Local RoPE, which sees none of it)",
            (_grows("CABLE", most=1.0),),
        ),
        Claim(
            "3",
            "CABLE's steps tell the newest of three values beyond the training context (here: above half in "
            "recall_last at 4 times "
            "it; a model that cannot tell is right in a third)",
            (within(_at("recall_last", "4×"), "CABLE", above=0.5),),
            needs=_has_learned("recall_last", "CABLE"),
        ),
    ]


def _fox() -> list[Claim]:
    return [
        Claim(
            f"{FOX}, abstract",
            "FoX extrapolates to longer texts (here: to 64 times the training context its perplexity grows by at most "
            "a tenth more "
            "than that of Local RoPE)",
            (_grows("FoX", most=1.1),),
        ),
        Claim(
            f"{FOX}, needle in the haystack",
            "a gate that forgets costs no retrieval (here: within the training context FoX has at most 0.05 less "
            "recall than NoPE, "
            "which is FoX without its gate)",
            (better(_at("recall", "1×"), "FoX", ("NoPE",), margin=-0.05),),
            needs=_has_learned("recall", "NoPE"),
        ),
        Claim(
            f"{FOX}, needle in the haystack",
            "FoX keeps its retrieval beyond the training context (here: at twice it 0.9 of its recall within it)",
            (ratio((_at("recall", "2×"), "FoX"), (_at("recall", "1×"), "FoX"), least=0.9),),
            needs=_has_learned("recall", "FoX"),
        ),
        Claim(
            f"{FOX}, 1",
            "forgetting helps where old values are void (here: FoX has more of recall_last than NoPE, in the mean of 1 "
            "to 4 times "
            "the training context)",
            (better(_at("recall_last", "1×", "2×", "4×"), "FoX", ("NoPE",)),),
            needs=_has_learned("recall_last", "FoX"),
        ),
    ]


def _ours() -> list[Claim]:
    return [
        Claim(
            "prior_study.md",
            "BAM ladder with effective keys retrieves far beyond its training context (here: at 64 times it, 0.9 or more "
            f"in {task})",
            (within(_at(task, "64×"), "BAM ladder", least=0.9),),
            needs=_has_learned(task, "BAM ladder"),
        )
        for task in ("recall", "copy")
    ]


def _at(task: str, *columns: str) -> Cells:
    return Cells("synthetic", f"{task}: accuracy", columns)


def _has_learned(task: str, *rows: str) -> Check:
    """The condition that each row does a task at the training context."""
    says = f"{', '.join(rows)} in {task} at 1× > {LEARNED}"
    return all_of([within(_at(task, "1×"), row, above=LEARNED) for row in rows], says)


def _grows(row: str, **bounds: float) -> Check:
    """The growth of a row's perplexity from the first training context to the 64th, beside that of Local RoPE."""
    return relative_growth(Cells("synthetic", "text", ()), "64×", "1×", row, "RoPE Local", **bounds)
