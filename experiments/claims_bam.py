"""The claims of "Bayesian Attention Mechanism": its sections 1 to 5 and appendix D."""

from bam_jax.experiments.checks import Cells, above_chance, better, ratio, within
from bam_jax.experiments.claims import Claim
from bam_jax.experiments.compound_checks import count_cells, gains_more, reaches_times, relative_growth
from bam_jax.report.prior_checks import has_negative_shapes

FIGURE2 = ("bam_figure2_passkey", "Figure 2")
BEYOND = ("bam_figure2_passkey", "Section 5")
FIGURE3 = "bam_figure3_depths"
FIGURE6 = ("bam_figure6_perplexity", "Figure 6")
FIGURE7 = ("bam_figure7_wikipedia", "Figure 7")

DEPTHS = ("0.00", "0.25", "0.50", "0.75", "1.00")
NEAR = ("128", "256", "512", "1K", "2K", "4K", "8K", "16K", "32K")
FAR = ("51K", "102K", "153K", "204K", "256K", "307K", "358K", "409K", "460K", "512K")
TOKENS = {label: 128 * 2**k for k, label in enumerate(NEAR)} | {"51K": 51_200, "102K": 102_400, "256K": 256_000}

UNCOUNTED = "the small scale leaves out 307K to 460K, 20 of the 55 cells, which no other claim asks for"

OTHERS = ("Sinusoidal SSMax", "NoPE SSMax", "RoPE SSMax", "RoPE SSMax x50", "RoPE Local", "ALiBi SSMax")
"""The other encodings of Figure 2; RoPE SSMax with both of the bases that the papers give it at evaluation."""
PLAIN = ("Sinusoidal", "NoPE", "RoPE")
WITH_SSMAX = ("Sinusoidal SSMax", "NoPE SSMax", "RoPE SSMax")
OWN_BASE = "RoPE SSMax x1"
"""RoPE SSMax with the base of its training: it differs from RoPE by SSMax alone."""


def get_claims() -> list[Claim]:
    """The claims of the main text and on perplexity."""
    return [*_parameters(), *_reach(), *_passkeys(), *_within_the_context(), *_beyond_the_context(), *_rest()]


def _parameters() -> list[Claim]:
    # Counted from the paper's configurations: no run is needed, and no scale changes it.
    table1 = "bam_table1_sizes"
    return [
        Claim(
            "1",
            "BAM adds fewer than 1,000 parameters (here: at 120M, the location counted)",
            (within(Cells(table1, "Table 1", ("Parameters BAM",), "paper"), "120M", most=999),),
            "1,008 and 1,440 for the larger sizes",
        ),
        Claim(
            "5",
            "BAM increases the number of trained parameters by 0.00032% (here: by 0.000315 to 0.000325% at 120M)",
            (within(Cells(table1, "Section 5", ("share (%)",), "paper"), "120M", least=0.000315, most=0.000325),),
        ),
    ]


def _reach() -> list[Claim]:
    near, beyond = Cells(*FIGURE2, NEAR), ("51K", "102K", "256K")
    at_500 = Cells(*BEYOND, ("256K",))
    mean = "Figure 3: passkey accuracy, mean"
    cells55 = [Cells(FIGURE3, f"Figure 3: passkey accuracy at depth {depth}", ("<1K", *FAR)) for depth in DEPTHS]
    return [
        Claim(
            "abstract, 3.1, Figure 3",
            "BAM SSMax finds passkeys with an accuracy above 80% at 500 times its training context",
            (within(Cells(FIGURE3, mean, ("256K",)), "BAM SSMax", least=0.8),),
        ),
        Claim(
            "3.1, Figure 3",
            "BAM SSMax scores perfectly in most cells of eleven lengths by five depths (here: in 28 or more of the 55)",
            (count_cells(cells55, "BAM SSMax", equal=1.0, least=28),),
            unfit=UNCOUNTED,
        ),
        Claim(
            "3.1, Figure 3",
            "BAM SSMax falls to 0% in no more than 3 of 55 cells, eleven lengths by five depths",
            (count_cells(cells55, "BAM SSMax", equal=0.0, most=3),),
            unfit=UNCOUNTED,
        ),
        Claim(
            "5",
            "BAM SSMax finds passkeys at more than 25 times the length of other encodings (here: the last length up "
            "to which it has 0.8 or more, by the length from which on all others stay below 0.8)",
            (reaches_times((near, Cells(*BEYOND, beyond)), TOKENS, "BAM SSMax", OTHERS, times=25),),
        ),
        Claim(
            "5",
            "at 250,000 tokens, 500 times the training context, BAM alone recovers information (here: BAM SSMax 0.5 "
            "or more, every other encoding at most 0.1)",
            (
                within(at_500, "BAM SSMax", least=0.5),
                *(within(at_500, row, most=0.1) for row in OTHERS),
            ),
        ),
        Claim(
            "2.5",
            "in the model that finds the longest passkeys some heads have a negative shape (here: below -0.1, in BAM "
            "SSMax after context 512, whose heads start at 0)",
            (has_negative_shapes(FIGURE3, "BAM SSMax"),),
        ),
    ]


def _passkeys() -> list[Claim]:
    near, last = Cells(*FIGURE2, NEAR), Cells(*FIGURE2, ("32K",))
    return [
        Claim(
            "3.1, Figure 2",
            "BAM SSMax finds every passkey at each length up to 64 times its training context (here: at least 98%)",
            (within(near, "BAM SSMax", least=1.0, tolerance=0.02),),
        ),
        Claim(
            "3.1, Figure 2",
            "up to 64 times their training context only models with BAM keep a high accuracy (here: 0.8 or more at "
            "32K, BAM with and without SSMax, and less for every other encoding)",
            (
                within(last, "BAM", least=0.8),
                within(last, "BAM SSMax", least=0.8),
                *(within(last, row, most=0.8) for row in OTHERS),
            ),
        ),
        Claim(
            "3.1, Figure 2",
            "BAM SSMax finds more passkeys than every other encoding (here: in the mean of 1K to 32K)",
            (better(Cells(*FIGURE2, NEAR[3:]), "BAM SSMax", OTHERS),),
        ),
        *(
            Claim(
                "3.1, Figure 2",
                f"beyond its training context {row} falls to nearly chance (here: it finds at most 0.1 of the "
                "passkeys at each length from 2K, four times the context)",
                (within(Cells(*FIGURE2, NEAR[4:]), row, most=0.1),),
                needs=above_chance([Cells(*FIGURE2, ("512",))], (row,), 0.5),
            )
            for row in WITH_SSMAX
        ),
        Claim(
            "3.1, Figure 2",
            "ALiBi SSMax loses its accuracy at very long contexts (here: at 32K it has at most half of that at 512)",
            (ratio((last, "ALiBi SSMax"), (Cells(*FIGURE2, ("512",)), "ALiBi SSMax"), most=0.5),),
            needs=above_chance([Cells(*FIGURE2, ("512",))], ("ALiBi SSMax",), 0.5),
        ),
    ]


def _within_the_context() -> list[Claim]:
    rows = (*PLAIN, *WITH_SSMAX)
    fineweb, wikipedia = (Cells("bam_table2_perplexity", "Table 2", (label,)) for label in ("Fineweb", "Wikipedia"))
    return [
        *(
            Claim(
                "D.1, Table 2",
                f"within the training context, {text}, BAM without SSMax has a lower perplexity than every encoding "
                "but ALiBi",
                (better(cells, "BAM", rows, lower=True),),
                remark,
            )
            for text, cells, remark in (
                ("on text like that of the training", fineweb, ""),
                ("on Wikipedia", wikipedia, "the paper's own table has RoPE and ALiBi ahead there"),
            )
        ),
        *(
            Claim(
                "D.1, Table 2",
                f"within the training context, {text}, ALiBi's perplexity is lower than BAM's, both without SSMax, "
                "by less than 0.1 (here: by less than 0.45%, which 0.1 is of the paper's 22.2)",
                (
                    better(cells, "ALiBi", ("BAM",), lower=True),
                    ratio((cells, "BAM"), (cells, "ALiBi"), most=1.0045),
                ),
                remark,
            )
            for text, cells, remark in (
                ("on text like that of the training", fineweb, "the paper's 0.087 is of this text"),
                ("on Wikipedia", wikipedia, "0.38 in the paper's own table"),
            )
        ),
        Claim(
            "3.2, D.1",
            "BAM SSMax has about ALiBi's perplexity within the training context (here: at most 2% more than ALiBi "
            "without SSMax)",
            (ratio((fineweb, "BAM SSMax"), (fineweb, "ALiBi"), most=1.02),),
        ),
    ]


def _beyond_the_context() -> list[Claim]:
    return [claim for where in (FIGURE6, FIGURE7) for claim in _perplexity(*where)] + [
        Claim(
            "D.2, Figure 7",
            "on Wikipedia SSMax lowers BAM's perplexity (here: at 32K)",
            (better(Cells(*FIGURE7, ("32K",)), "BAM SSMax", ("BAM",), lower=True),),
        ),
        Claim(
            "D.2, Figure 7",
            "on Wikipedia SSMax lowers BAM's perplexity by a greater factor than that of any other encoding (here: "
            "at 32K, RoPE with the base of its training)",
            tuple(
                gains_more(Cells(*FIGURE7, ("32K",)), ("BAM SSMax", "BAM"), other, lower=True)
                for other in (*((f"{row} SSMax", row) for row in ("Sinusoidal", "NoPE", "ALiBi")), (OWN_BASE, "RoPE"))
            ),
        ),
    ]


def _perplexity(name: str, figure: str) -> list[Claim]:
    """The claims about both texts: a text's own growth is taken out by Local RoPE, whose window is the training context."""
    text = "on text like that of the training" if figure == "Figure 6" else "on Wikipedia"
    place = f"D.2, {figure}"
    end = Cells(name, figure, ("32K",))
    grown = lambda row, **bounds: relative_growth(Cells(name, figure, ()), "32K", "512", row, "RoPE Local", **bounds)
    control = "than that of Local RoPE, which sees no further than its window"
    return [
        Claim(
            place,
            f"{text}, ALiBi, BAM and BAM SSMax keep their perplexity up to 64 times the training context (here: from "
            f"512 to 32K it grows by at most a tenth more {control})",
            tuple(grown(row, most=1.1) for row in ("ALiBi", "BAM", "BAM SSMax")),
        ),
        Claim(
            place,
            f"{text}, the perplexity of Sinusoidal, NoPE and RoPE rises sharply beyond the training context (here: "
            f"from 512 to 32K by at least half more {control})",
            tuple(grown(row, least=1.5) for row in PLAIN),
            "the text says that RoPE keeps it, the caption that Local RoPE does" if figure == "Figure 7" else "",
        ),
        Claim(
            place,
            f"{text}, no other encoding, with SSMax or without, keeps its perplexity as ALiBi, BAM and Local RoPE do "
            f"(here: from 512 to 32K it grows by more than a tenth more {control}; RoPE SSMax has the base of its "
            "training, since a multiplied one may do harm from the start)",
            tuple(grown(row, least=1.1) for row in (*PLAIN, "Sinusoidal SSMax", "NoPE SSMax", OWN_BASE, "ALiBi SSMax")),
        ),
        Claim(
            place,
            f"{text}, BAM, BAM SSMax, ALiBi and Local RoPE have lower perplexities at 64 times the training context "
            "than every other encoding",
            tuple(
                better(end, row, (*PLAIN, *WITH_SSMAX, OWN_BASE, "ALiBi SSMax"), lower=True)
                for row in ("BAM", "BAM SSMax", "ALiBi", "RoPE Local")
            ),
        ),
        Claim(
            place,
            f"{text}, BAM extrapolates on par with ALiBi (here: with and without SSMax it has at 32K at most 5% more "
            "perplexity)",
            tuple(ratio((end, row), (end, "ALiBi"), most=1.05) for row in ("BAM", "BAM SSMax")),
        ),
        Claim(
            place,
            f"{text}, Local RoPE is competitive with ALiBi at 64 times the training context (here: at 32K at most a "
            "tenth more perplexity)",
            (ratio((end, "RoPE Local"), (end, "ALiBi"), most=1.1),),
        ),
    ]


def _rest() -> list[Claim]:
    return [
        Claim(
            "2, B, K",
            "the definitions, lemmas and theorems",
            why="mathematics, not measurements: docs/theory.md, with their tests",
        ),
        Claim(
            "2.5",
            "a model all of whose heads have negative shapes has a higher perplexity",
            why="the paper measures no such model",
        ),
        Claim(
            "3.2, Figure 4",
            "heads with shapes below 0 attend far, with shapes between 0 and 1 evenly, with shapes near 1 to their "
            "neighbours",
            why="`python -m bam_jax.heads` and `python -m bam_jax.figures attention` show it of a run; the paper has no numbers",
        ),
    ]
