"""Claims of papers on patterns of layers, asked of keys and text far beyond the training context.

Command:  python -m bam_jax.claims experiments/claims_patterns.py --scale=small --out=docs/patterns_claims.md
          (run python -m bam_jax.sweep experiments/patterns.py --scale=small first)
"""

from bam_jax.experiments.checks import Cells, Check, above_chance, better, ratio, steadier, within
from bam_jax.experiments.claims import Claim
from bam_jax.experiments.compound_checks import all_of, relative_growth

TITLE = "Patterns of layers: what keys and text say of the papers' claims"
FROZEN = "9cea29734f"
"""The commit in which the criteria were frozen, before the first run that they judge; "": they are not yet."""
SEEDS = 8
"""The seeds without which nothing is judged: those of `experiments/patterns.py` at the small scale."""

NOTES = (
    "Command: `python -m bam_jax.claims experiments/claims_patterns.py --scale=small --out=docs/patterns_claims.md`, after "
    "`python -m bam_jax.sweep experiments/patterns.py --scale=small`. The papers' models have billions of parameters and learn "
    "from text alone; these have four layers and learn from planted keys as well, so that all criteria are ours.",
    "A claim about keys needs that the rows it is about find them at the training context: more than 0.9, by a test. Local "
    "layers find keys that stand near the question, so that more keys than another row also means more than local RoPE in all "
    "layers. That row is a floor and need not find them. So it was decided after the search of rates, on other seeds, and "
    "before the first run that the criteria judge.",
    'A source is that of the idea: its authors ask other models other questions. "Ours" is a claim of this project.',
)

NEAR, FAR = "1×", "64×"
BEYOND = ("4×", "16×", FAR)
LEARNED = 0.9
"""The accuracy at the training context above which a row finds keys."""
ALL_LOCAL = "RoPE, all local"
GLOBAL_ROPE = "RoPE, every fourth global"
PRIOR = "local RoPE, BAM SSMax"
GATED = "iRoPE, gated"


def get_claims() -> dict[str, list[Claim]]:
    """The claims, by whose they are."""
    return {
        "Local RoPE with global NoPE": _rnope(),
        "Global layers of other kinds": _others(),
        "Gates": _gated(),
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
                (better(_keys(*BEYOND), "RNoPE", (other, ALL_LOCAL)),),
                needs=_has_learned("RNoPE", other),
            )
            for other in ("RoPE", "NoPE")
        ),
        Claim(
            f"ours, after {source}",
            "beside the same local layers, global layers with NoPE retrieve more beyond the training context than with RoPE "
            "(here: in the mean of 4 to 64 times)",
            (better(_keys(*BEYOND), "RNoPE", (GLOBAL_ROPE, ALL_LOCAL)),),
            needs=_has_learned("RNoPE", GLOBAL_ROPE),
        ),
        Claim(
            "Puvvada et al. 2025",
            "local RoPE with global NoPE, whose scores a factor sharpens, keeps its perplexity beyond its training context, and "
            "RoPE in all layers does not (here: to 64 times iRoPE's grows by at most a tenth more than that of local RoPE in all "
            "layers, RoPE's by half more)",
            (_grows("iRoPE", most=1.1), _grows("RoPE", least=1.5)),
        ),
        Claim(
            source,
            "the pattern costs nothing within the training context (here: its perplexity there is at most 1% above that of RoPE "
            "in all layers)",
            (ratio((_text(NEAR), "RNoPE"), (_text(NEAR), "RoPE"), most=1.01),),
        ),
        Claim(
            "ours",
            "windows in three of four layers cost nothing within the training context (here: the perplexity of RoPE with every "
            "fourth layer global is there at most 1% above that of RoPE in all layers)",
            (ratio((_text(NEAR), GLOBAL_ROPE), (_text(NEAR), "RoPE"), most=1.01),),
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
            "ours, after Barbero et al. 2024 and Google 2026",
            "leaving three quarters of the pairs of global layers unturned costs no perplexity (here: at the training context "
            "that of local RoPE with global p-RoPE is at most 1% above that of RoPE in all layers)",
            (ratio((_text(NEAR), "p-RoPE"), (_text(NEAR), "RoPE"), most=1.01),),
        ),
        Claim(
            "ours, after Barbero et al. 2024 and Google 2026",
            "unturned pairs carry content over any distance (here: local RoPE with global p-RoPE finds more keys than RoPE in "
            "all layers, in the mean of 4 to 64 times the training context)",
            (better(_keys(*BEYOND), "p-RoPE", ("RoPE", ALL_LOCAL)),),
            needs=_has_learned("p-RoPE", "RoPE"),
        ),
    ]


def _gated() -> list[Claim]:
    source = "Qiu et al. 2025"
    return [
        Claim(
            source,
            "a sigmoid gate on the output of attention lowers the perplexity (here: at the training context by 1% or more, "
            "beside the same pattern without it)",
            (ratio((_text(NEAR), GATED), (_text(NEAR), "iRoPE"), most=0.99),),
        ),
        Claim(
            source,
            "the gate helps on texts longer than the training context (here: it finds more keys, in the mean of 4 to 64 times "
            "that)",
            (better(_keys(*BEYOND), GATED, ("iRoPE",)),),
            needs=_has_learned(GATED, "iRoPE"),
        ),
    ]


def _ours() -> list[Claim]:
    every = "BAM SSMax"
    return [
        Claim(
            "ours",
            "BAM's prior with Scalable Softmax in every fourth layer finds more keys far beyond the training context than NoPE "
            "there (here: at 64 times it)",
            (better(_keys(FAR), PRIOR, ("RNoPE", ALL_LOCAL)),),
            needs=_has_learned(PRIOR, "RNoPE"),
        ),
        Claim(
            "ours",
            "BAM's prior in every fourth layer serves as well as in all of them (here: at 64 times the training context it finds "
            "at most 0.05 fewer keys, and one of both finds half of them)",
            (better(_keys(FAR), PRIOR, (every,), margin=-0.05),),
            needs=all_of(
                [_has_learned(PRIOR, every), above_chance([_keys(FAR)], (PRIOR, every), 0.5)],
                f"{PRIOR}, {every} at {NEAR} > {LEARNED}, and one of both above 0.5 at {FAR}",
            ),
        ),
        Claim(
            "ours",
            "local layers keep the perplexity of BAM SSMax from growing (here: from the training context to 64 times it that of "
            "the pattern grows by less)",
            (steadier(_text(), FAR, NEAR, PRIOR, every),),
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
