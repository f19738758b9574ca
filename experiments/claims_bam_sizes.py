"""The claims of "Bayesian Attention Mechanism", appendices H.5 to H.8: extension, sizes, speed and learned priors."""

from bam_jax.experiments.checks import Cells, above_chance, better, ratio, steadier, within
from bam_jax.experiments.claims import Claim
from bam_jax.experiments.compound_checks import better_across, gains_more
from bam_jax.report.claims_page import clusters

FIGURE12 = ("bam_figure12_contexts", "Figure 12")
TABLE7 = ("bam_table7_extension", "Table 7")
TO_300K = ("51K", "102K", "153K", "204K", "256K")
SIZES = ("120M", "432M", "1.1B")


def get_claims() -> list[Claim]:
    """The claims of appendices H.5 to H.8."""
    return [*_sizes(), *_speed(), *_learned()]


def _sizes() -> list[Claim]:
    # 51K is 100 times the training context: the furthest length that the small scale asks of its largest model.
    far, within_context = Cells(*TABLE7, ("51K",)), Cells(*TABLE7, ("<1K",))
    extended = lambda size: (f"{size} Ext.", size)
    figure16 = lambda part, *columns: Cells("bam_figure16_1b", f"Figure 16{part}: passkey accuracy, mean", columns)
    return [
        Claim(
            "H.5, Table 7",
            "BAM SSMax of every size finds the passkeys within its training context (here: 0.8 or more)",
            tuple(within(within_context, size, least=0.8) for size in ("120M", "431M", "1.1B")),
            "the paper's 1.1B has 0.9",
        ),
        Claim(
            "H.5, Table 7",
            "after context 512 larger models of BAM SSMax find fewer passkeys far beyond it (here: at 51K, each "
            "size fewer than the one before)",
            (better(far, "120M", ("431M",)), better(far, "431M", ("1.1B",))),
            needs=above_chance([within_context], ("1.1B",), 0.5),
        ),
        Claim(
            "H.5, Table 7",
            "the 120M model of BAM SSMax finds passkeys with an accuracy above 0.8 up to 512 times its training "
            "context (here: 0.8 or more at each of 51K to 256K)",
            (within(Cells("bam_figure3_depths", "Figure 3: passkey accuracy, mean", TO_300K), "BAM SSMax", least=0.8),),
        ),
        Claim(
            "H.5, Table 7",
            "256 steps at context 1024 improve the passkeys of BAM SSMax at every size (here: at 51K)",
            tuple(better(far, f"{size} Ext.", (size,)) for size in ("120M", "431M", "1.1B")),
            "the paper's 120M has 1.0 there before and after",
        ),
        Claim(
            "H.5, Table 7",
            "256 steps at context 1024 improve the passkeys of the largest model of BAM SSMax the most (here: at 51K)",
            tuple(gains_more(far, extended("1.1B"), extended(size)) for size in ("120M", "431M")),
        ),
        Claim(
            "H.5, Figure 15",
            "256 steps at context 1024 make the loss of the 1.1B model more stable beyond 512 tokens (here: from "
            "512 to 32K its perplexity grows by less than before them)",
            (steadier(Cells("bam_figure15_extension", "Figure 15", ()), "32K", "512", "1.1B Ext.", "1.1B"),),
        ),
        Claim(
            "H.6, Figure 16",
            "at 1.1B, extended, BAM SSMax finds more passkeys than RoPE SSMax at every length (here: at 51K, with the "
            "base of RoPE times 100 and times 50)",
            tuple(
                better_across((figure16("a", "51K"), "BAM SSMax"), (figure16("b", "51K"), row))
                for row in ("RoPE SSMax", "RoPE SSMax x50")
            ),
            unfit="the small scale trains no RoPE SSMax of this size, which no other claim asks for",
        ),
        Claim(
            "H.6, Figure 16",
            "at 1.1B, extended, BAM SSMax retrieves accurately at every length (here: 0.8 or more within the "
            "context and at 51K)",
            (within(figure16("a", "<1K", "51K"), "BAM SSMax", least=0.8),),
        ),
    ]


def _speed() -> list[Claim]:
    time = lambda size: Cells("bam_table8_inference", f"Table 8: inference, {size}", ("Time (ms)",))
    compared = ("Sinusoidal", "RoPE", "ALiBi", "NoPE")
    slower = lambda size, **bounds: ratio((time(size), "BAM SSMax"), (time(size), "BAM"), **bounds)
    return [
        Claim(
            "3.2, H.7, Table 8",
            "BAM takes no more time at inference than other encodings, at all three sizes, without SSMax (here: at "
            "most a tenth more than each of Sinusoidal, RoPE, ALiBi and NoPE)",
            tuple(ratio((time(size), "BAM"), (time(size), row), most=1.1) for size in SIZES for row in compared),
            accelerator=True,
        ),
        Claim(
            "H.7, Table 8",
            "SSMax dominates the time of inference in small models (here: it makes BAM at 120M slower by a "
            "twentieth or more)",
            (slower("120M", least=1.05),),
            accelerator=True,
        ),
        Claim(
            "H.7, Table 8",
            "the time that SSMax takes at inference is imperceptible in larger models (here: it makes BAM at 1.1B "
            "slower by at most a twentieth)",
            (slower("1.1B", most=1.05),),
            accelerator=True,
        ),
    ]


def _learned() -> list[Claim]:
    bounds = (-0.6, 0.0)
    fewer = (
        "shapes above 0, shapes from -0.6 to 0, and fewer below (here: each class has a head, the lowest the fewest)"
    )
    return [
        Claim(
            "H.8, Figure 17",
            f"the heads of BAM SSMax form three clusters after each of the contexts 512, 1024 and 2048: {fewer}",
            tuple(clusters(FIGURE12[0], f"context {context}", bounds) for context in (512, 1024, 2048)),
        ),
        Claim(
            "H.8, Figure 18",
            f"the heads of BAM SSMax form the same three clusters at each size: {fewer}",
            tuple(clusters(TABLE7[0], size, bounds) for size in ("120M", "431M", "1.1B")),
        ),
    ]
