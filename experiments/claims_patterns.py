"""Claims of papers on patterns of layers, asked of keys and text far beyond the training context.

Command:  python -m bam_jax.claims experiments/claims_patterns.py --scale=small --out=docs/patterns_claims.md
          (run python -m bam_jax.sweep experiments/patterns.py --scale=small first)
"""

from bam_jax.experiments.checks import Cells, Check, better, ratio, within
from bam_jax.experiments.claims import Claim
from bam_jax.experiments.compound_checks import all_of, relative_growth

TITLE = "Patterns of layers: what keys and text say of the papers' claims"
FROZEN = ""
"""The commit in which the criteria were frozen, before the first run that they judge; "": they are not yet."""

NOTES = (
    "Command: `python -m bam_jax.claims experiments/claims_patterns.py --scale=small --out=docs/patterns_claims.md`, after "
    "`python -m bam_jax.sweep experiments/patterns.py --scale=small`. The papers' models have billions of parameters and learn "
    "from text alone; these have four layers and learn from planted keys as well, so that all criteria are ours.",
    "A claim about keys needs that its rows find them at the training context: more than 0.9, by a test.",
)

NEAR, FAR = "1×", "64×"
BEYOND = ("4×", "16×", FAR)
LEARNED = 0.9
"""The accuracy at the training context above which a row finds keys."""
ALL_LOCAL = "RoPE, all local"
DRESSED = "iRoPE with norms, gates, sinks"


def get_claims() -> dict[str, list[Claim]]:
    """The claims, by whose they are."""
    return {
        "Local RoPE with global NoPE": _rnope(),
        "Global layers of other kinds": _others(),
        "Norms, gates and sinks": _dressed(),
        "Ours": _ours(),
    }


def _rnope() -> list[Claim]:
    source = "Yang et al. 2025"
    return [
        *(
            Claim(
                source,
                f"local RoPE with global NoPE retrieves more beyond its training context than {other} in all layers (here: in "
                "the mean of 4 to 64 times)",
                (better(_keys(*BEYOND), "RNoPE", (other,)),),
                needs=_has_learned("RNoPE", other),
            )
            for other in ("RoPE", "NoPE")
        ),
        Claim(
            "Puvvada et al. 2025",
            "local RoPE with global NoPE keeps its perplexity beyond its training context, and RoPE in all layers does not "
            "(here: to 64 times it grows by at most a tenth more than that of local RoPE in all layers, RoPE's by half more)",
            (_grows("RNoPE", most=1.1), _grows("RoPE", least=1.5)),
        ),
        Claim(
            source,
            "the windows cost nothing within the training context (here: its perplexity there is at most 1% above that of RoPE "
            "in all layers)",
            (ratio((_text(NEAR), "RNoPE"), (_text(NEAR), "RoPE"), most=1.01),),
        ),
    ]


def _others() -> list[Claim]:
    return [
        Claim(
            "Meta 2025; Nakanishi 2025",
            "a factor that grows with the logarithm of the length keeps global layers sharp (here: iRoPE finds more keys than "
            "RNoPE, in the mean of 4 to 64 times the training context)",
            (better(_keys(*BEYOND), "iRoPE", ("RNoPE",)),),
            needs=_has_learned("iRoPE", "RNoPE"),
        ),
        Claim(
            "Barbero et al. 2024",
            "leaving the slowest pairs unturned costs no perplexity (here: at the training context that of local RoPE with "
            "global p-RoPE is at most 1% above that of RoPE in all layers)",
            (ratio((_text(NEAR), "p-RoPE"), (_text(NEAR), "RoPE"), most=1.01),),
        ),
        Claim(
            "Barbero et al. 2024",
            "unturned pairs carry content over any distance (here: local RoPE with global p-RoPE finds more keys than RoPE in "
            "all layers, in the mean of 4 to 64 times the training context)",
            (better(_keys(*BEYOND), "p-RoPE", ("RoPE",)),),
            needs=_has_learned("p-RoPE", "RoPE"),
        ),
    ]


def _dressed() -> list[Claim]:
    return [
        Claim(
            "Qiu et al. 2025",
            "a sigmoid gate on the output, here with norms of queries and keys and with sinks, lowers the perplexity (here: at "
            "the training context, beside the same pattern without the three)",
            (better(_text(NEAR), DRESSED, ("iRoPE",), lower=True),),
        ),
        Claim(
            "Qiu et al. 2025",
            "the gate helps on texts longer than the training context (here: the three together find more keys, in the mean of "
            "4 to 64 times it)",
            (better(_keys(*BEYOND), DRESSED, ("iRoPE",)),),
            needs=_has_learned(DRESSED, "iRoPE"),
        ),
    ]


def _ours() -> list[Claim]:
    return [
        Claim(
            "layers.md",
            "BAM's prior with Scalable Softmax in every fourth layer finds more keys far beyond the training context than NoPE "
            "there (here: at 64 times it)",
            (better(_keys(FAR), "local RoPE, BAM SSMax", ("RNoPE",)),),
            needs=_has_learned("local RoPE, BAM SSMax", "RNoPE"),
        ),
        Claim(
            "layers.md",
            "BAM's prior in every fourth layer serves as well as in all of them (here: at 64 times the training context it finds "
            "at most 0.05 fewer keys)",
            (better(_keys(FAR), "local RoPE, BAM SSMax", ("BAM SSMax",), margin=-0.05),),
            needs=_has_learned("local RoPE, BAM SSMax", "BAM SSMax"),
        ),
        Claim(
            "layers.md",
            "local layers keep the perplexity of BAM SSMax low (here: at 64 times the training context that of the pattern is "
            "lower than that of BAM SSMax in all layers)",
            (better(_text(FAR), "local RoPE, BAM SSMax", ("BAM SSMax",), lower=True),),
        ),
    ]


def _keys(*columns: str) -> Cells:
    return Cells("patterns", "Keys found", columns)


def _text(*columns: str) -> Cells:
    return Cells("patterns", "Text", columns)


def _has_learned(*rows: str) -> Check:
    """The condition that each row finds the keys at the training context."""
    says = f"{', '.join(rows)} at {NEAR} > {LEARNED}"
    return all_of([within(_keys(NEAR), row, above=LEARNED) for row in rows], says)


def _grows(row: str, **bounds: float) -> Check:
    """The growth of a row's perplexity with the length, beside that of local RoPE in all layers, which sees no more."""
    return relative_growth(_text(), FAR, NEAR, row, ALL_LOCAL, **bounds)
