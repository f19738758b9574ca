"""The claims of "Context-aware Biases for Length Extrapolation"."""

from bam_jax.experiments.checks import Cells, better, ratio, steadier
from bam_jax.experiments.claims import Claim

TRAINING, MEMORY, INFERENCE = "training, tokens/s", "training, memory (GB)", "inference, time (ms)"
CONTEXT = ("512", "1024")
EXTRAPOLATED = ("2048", "4096", "8192", "15360")
OTHERS = ("ALiBi", "Fire", "T5-bias", "Kerple", "RoPE", "Sinusoidal")
RELATIVE = ("RoPE", "Kerple", "Fire", "T5-bias", "ALiBi")
MEDIUM = ("cable_table1_perplexity", "Table 1, GPT-2 Medium, FineWeb-Edu-10B")
TINY = ("cable_table1_perplexity", "Table 1, GPT-2 Tiny, WikiText-103")
TABLE1 = {"GPT-2 Medium on FineWeb-Edu": MEDIUM, "GPT-2 Tiny on WikiText-103": TINY}
TABLE4 = {
    "GPT-2 Small on FineWeb-Edu": ("cable_table4_sizes", "Table 4, GPT-2 Small"),
    "GPT-2 Tiny on FineWeb-Edu": ("cable_table4_sizes", "Table 4, GPT-2 Tiny"),
}
TABLE5 = {
    "GPT-2 Medium on WikiText-103": ("cable_table5_wikitext", "Table 5, GPT-2 Medium"),
    "GPT-2 Small on WikiText-103": ("cable_table5_wikitext", "Table 5, GPT-2 Small"),
}
REPEATED = "it would repeat Table 1 at another size or on another corpus, and the small scale has one English text"
DAPE = ("cable_table2_dape", "Table 2")
DAPE_LENGTHS = (*CONTEXT, *EXTRAPOLATED[:3])


def get_claims() -> list[Claim]:
    """The claims of the paper, in its order."""
    return [
        *_lowest(),
        *_other_methods(),
        *_alibi_and_sinusoidal(),
        *_variants(),
        *_speed(),
        *_dape(),
        *_dape_speed(),
        *_rest(),
    ]


def _lowest() -> list[Claim]:
    medium = lambda *columns: Cells(*MEDIUM, columns)
    return [
        *(
            Claim(
                "abstract, 5.1, Table 1",
                f"{model}, CABLE has the lowest perplexity of all encodings at each length beyond the training context",
                (better(Cells(*table, EXTRAPOLATED), "CABLE", OTHERS, lower=True, each=True),),
            )
            for model, table in TABLE1.items()
        ),
        *(
            Claim(
                "A.2, Table 4",
                f"{model}, CABLE has the lowest perplexity of all encodings at all lengths, within the training "
                "context and beyond",
                (
                    better(Cells(*table, (*CONTEXT, *EXTRAPOLATED)), "CABLE", OTHERS, lower=True, each=True),
                    better(Cells(*table, CONTEXT), "CABLE", ("Learnable",), lower=True, each=True),
                ),
                "the paper's own table has ALiBi ahead at 8192" if "Tiny" in model else "",
                repeats=REPEATED,
            )
            for model, table in TABLE4.items()
        ),
        *(
            Claim(
                "A.2, Table 5",
                f"{model}, CABLE has the lowest perplexity of all encodings at each length beyond the training context",
                (better(Cells(*table, EXTRAPOLATED), "CABLE", OTHERS, lower=True, each=True),),
                repeats=REPEATED,
            )
            for model, table in TABLE5.items()
        ),
        Claim(
            "abstract, 1, 5.1, Figure 1",
            "GPT-2 Medium on FineWeb-Edu, CABLE has a lower perplexity at 15 times its training context than at it",
            (ratio((medium("15360"), "CABLE"), (medium("1024"), "CABLE"), most=1.0),),
        ),
        Claim(
            "1, 5.1, Figure 1",
            "GPT-2 Medium on FineWeb-Edu, CABLE's perplexity falls with each longer length (here: from each to the "
            "next it grows by at most 1%, and at each beyond the training context it is lower than at it)",
            (
                *(
                    ratio((medium(far), "CABLE"), (medium(near), "CABLE"), most=1.01)
                    for near, far in zip((*CONTEXT, *EXTRAPOLATED[:3]), ("1024", *EXTRAPOLATED), strict=True)
                ),
                *(ratio((medium(far), "CABLE"), (medium("1024"), "CABLE"), most=1.0) for far in EXTRAPOLATED),
            ),
            "15.34 at 4096 and 15.41 at 8192 in the paper's own table, 0.46% more",
        ),
        Claim(
            "1, Figure 1",
            "GPT-2 Medium on FineWeb-Edu, the perplexity of every encoding but CABLE is higher at the longest "
            "length than at the training context",
            tuple(ratio((medium("15360"), row), (medium("1024"), row), least=1.0) for row in OTHERS),
        ),
    ]


def _other_methods() -> list[Claim]:
    medium = lambda *columns: Cells(*MEDIUM, columns)
    growth = lambda row, far, near, **bounds: ratio((medium(far), row), (medium(near), row), **bounds)
    learned = ratio((medium("1024"), "Sinusoidal"), (medium("1024"), "CABLE"), most=1.25)
    return [
        Claim(
            "5.1",
            "GPT-2 Medium on FineWeb-Edu, Sinusoidal's perplexity rises sharply even slightly beyond the training "
            "context (here: by half or more from 1024 to 2048)",
            (growth("Sinusoidal", "2048", "1024", least=1.5),),
            needs=learned,
        ),
        Claim(
            "5.1",
            "GPT-2 Medium on FineWeb-Edu, RoPE's perplexity falls from 512 to 1024 tokens and rises beyond the "
            "training context (here: by half or more from 1024 to 15360)",
            (growth("RoPE", "1024", "512", most=1.0), growth("RoPE", "15360", "1024", least=1.5)),
        ),
        Claim(
            "5.1",
            "GPT-2 Medium on FineWeb-Edu, Learnable is competitive at 512 and 1024 tokens (here: at most a tenth "
            "more perplexity than CABLE)",
            tuple(ratio((medium(column), "Learnable"), (medium(column), "CABLE"), most=1.1) for column in CONTEXT),
        ),
        Claim(
            "5.1",
            "GPT-2 Medium on FineWeb-Edu, T5-bias extrapolates well slightly beyond the training context (here: its "
            "perplexity grows by at most a tenth from 1024 to 2048)",
            (growth("T5-bias", "2048", "1024", most=1.1),),
            "38.32 after 17.26 in the paper's own table",
        ),
        Claim(
            "5.1",
            "GPT-2 Medium on FineWeb-Edu, T5-bias fails at long lengths (here: its perplexity grows by half or more "
            "from 1024 to 15360)",
            (growth("T5-bias", "15360", "1024", least=1.5),),
        ),
        Claim(
            "5.1",
            "GPT-2 Medium on FineWeb-Edu, T5-bias degrades more gradually than Sinusoidal (here: from 1024 to each "
            "longer length its perplexity grows by less)",
            tuple(steadier(medium(), far, "1024", "T5-bias", "Sinusoidal") for far in EXTRAPOLATED),
            needs=learned,
        ),
    ]


def _alibi_and_sinusoidal() -> list[Claim]:
    growth = lambda row, far, near, **bounds: ratio(
        (Cells(*MEDIUM, (far,)), row), (Cells(*MEDIUM, (near,)), row), **bounds
    )
    small = TABLE4["GPT-2 Small on FineWeb-Edu"]
    return [
        Claim(
            "5.1",
            "GPT-2 Medium on FineWeb-Edu, ALiBi performs well at twice the training context (here: no more "
            "perplexity than at it)",
            (growth("ALiBi", "2048", "1024", most=1.0),),
        ),
        Claim(
            "5.1",
            "GPT-2 Medium on FineWeb-Edu, ALiBi's perplexity degrades slightly from 2048 tokens on (here: by up to "
            "a fifth at 15360)",
            (growth("ALiBi", "15360", "2048", least=1.0, most=1.2),),
        ),
        Claim(
            "A.2, Table 4",
            "GPT-2 Small on FineWeb-Edu, Sinusoidal's perplexity rises sharply beyond the training context (here: "
            "by half or more from 1024 to 15360)",
            (
                ratio(
                    (Cells(*small, ("15360",)), "Sinusoidal"),
                    (Cells(*small, ("1024",)), "Sinusoidal"),
                    least=1.5,
                ),
            ),
            repeats=REPEATED,
        ),
    ]


def _variants() -> list[Claim]:
    kernel = Cells("cable_figure5_kernel", "Figure 5", (*CONTEXT, *EXTRAPOLATED))
    repeated = lambda tables: "" if tables is TABLE1 else REPEATED
    return [
        *(
            Claim(
                f"5.1, {name}",
                f"{model}, CABLE without the weights has a lower perplexity than ALiBi beyond the training context "
                "(here: at each length)",
                (better(Cells(*table, EXTRAPOLATED), "CABLE_NW", ("ALiBi",), lower=True, each=True),),
                repeats=repeated(tables),
            )
            for name, tables in (("Table 1", TABLE1), ("Table 4", TABLE4), ("Table 5", TABLE5))
            for model, table in tables.items()
        ),
        *(
            Claim(
                f"5.1, {name}",
                f"{model}, the weights lower CABLE's perplexity (here: at each length)",
                (better(Cells(*table, (*CONTEXT, *EXTRAPOLATED)), "CABLE", ("CABLE_NW",), lower=True, each=True),),
                repeats=repeated(tables),
            )
            for name, tables in (("Table 1", TABLE1), ("Table 4", TABLE4), ("Table 5", TABLE5))
            for model, table in tables.items()
        ),
        Claim(
            "5.6, Figure 5",
            "in a model of few layers, GPT-2 Tiny on WikiText-103, K-CABLE has a lower perplexity than CABLE (here: "
            "at each length)",
            (better(kernel, "K-CABLE", ("CABLE",), lower=True, each=True),),
        ),
        Claim(
            "limitations",
            "CABLE occasionally has a higher perplexity than RoPE at the training context (here: GPT-2 Tiny on "
            "WikiText-103, at 1024)",
            (better(Cells(*TINY, ("1024",)), "RoPE", ("CABLE",), lower=True),),
        ),
    ]


def _speed() -> list[Claim]:
    column = lambda label: Cells("cable_figure3_speed", "Figure 3", (label,))
    compared = lambda label, row, **bounds: ratio((column(label), "CABLE"), (column(label), row), **bounds)
    return [
        Claim(
            "5.2, Figure 3",
            "CABLE trains as fast as ALiBi and Kerple (here: its tokens a second are within a tenth of theirs)",
            tuple(compared(TRAINING, row, least=0.9, most=1.1) for row in ("ALiBi", "Kerple")),
            accelerator=True,
        ),
        Claim(
            "5.2, Figure 3, limitations",
            "CABLE and ALiBi train slightly slower than RoPE, Sinusoidal and Learnable (here: by at most a fifth)",
            tuple(
                ratio((column(TRAINING), mine), (column(TRAINING), row), least=0.8, most=1.0)
                for mine in ("CABLE", "ALiBi")
                for row in ("RoPE", "Sinusoidal", "Learnable")
            ),
            accelerator=True,
        ),
        Claim(
            "5.2, Figure 3",
            "T5-bias trains much slower than CABLE (here: by a fifth or more)",
            (ratio((column(TRAINING), "T5-bias"), (column(TRAINING), "CABLE"), most=0.8),),
            accelerator=True,
        ),
        Claim(
            "1, 5.2, Figure 3",
            "CABLE infers faster than every other relative encoding: RoPE, Kerple, Fire, T5-bias and ALiBi",
            (better(column(INFERENCE), "CABLE", RELATIVE, lower=True),),
            accelerator=True,
        ),
        Claim(
            "5.2, Figure 3",
            "CABLE is the third fastest at inference, behind Sinusoidal and Learnable",
            (
                *(better(column(INFERENCE), row, ("CABLE",), lower=True) for row in ("Sinusoidal", "Learnable")),
                better(column(INFERENCE), "CABLE", RELATIVE, lower=True),
            ),
            accelerator=True,
        ),
        Claim(
            "limitations",
            "CABLE's overhead over RoPE is negligible at inference (here: at most a twentieth more time)",
            (compared(INFERENCE, "RoPE", most=1.05),),
            accelerator=True,
        ),
        Claim(
            "1, 5.2, Figure 3",
            "in training CABLE needs almost the memory of the other encodings (here: within a tenth of each)",
            tuple(
                compared(MEMORY, row, least=0.9, most=1.1)
                for row in ("Sinusoidal", "RoPE", "Kerple", "Fire", "T5-bias", "ALiBi", "Learnable")
            ),
            accelerator=True,
        ),
    ]


def _dape() -> list[Claim]:
    every = Cells(*DAPE, DAPE_LENGTHS)
    model = "GPT-2 Small after context 512"
    growth = lambda row, **bounds: ratio((Cells(*DAPE, ("8192",)), row), (Cells(*DAPE, ("512",)), row), **bounds)
    return [
        *(
            Claim(
                "5.3, Table 2",
                f"{model}, DAPEv2 lowers the perplexity of {row} (here: at each length)",
                (better(every, with_dape, (row,), lower=True, each=True),),
            )
            for row, with_dape in (("CABLE", "DAPEv2+Cable"), ("Kerple", "DAPEv2+Kerple"))
        ),
        Claim(
            "5.3, Table 2",
            f"{model}, CABLE has a lower perplexity than Kerple, with DAPEv2 and without it (here: at each length)",
            (
                better(every, "CABLE", ("Kerple",), lower=True, each=True),
                better(every, "DAPEv2+Cable", ("DAPEv2+Kerple",), lower=True, each=True),
            ),
        ),
        Claim(
            "5.3, Table 2",
            f"{model}, Kerple degrades severely at longer lengths (here: its perplexity is higher by half or more "
            "at 8192 than at 512)",
            (growth("Kerple", least=1.5),),
        ),
        Claim(
            "5.3, Table 2",
            f"{model}, CABLE stays robust at longer lengths without DAPEv2 (here: its perplexity is no higher at "
            "8192 than at 512)",
            (growth("CABLE", most=1.0),),
        ),
        Claim(
            "5.3, Table 2",
            f"{model}, DAPEv2 takes Kerple's weakness at longer lengths away (here: its perplexity is no higher at "
            "8192 than at 512)",
            (growth("DAPEv2+Kerple", most=1.0),),
        ),
    ]


def _dape_speed() -> list[Claim]:
    column = lambda label: Cells("cable_table2_dape", "Section 5.3", (label,))
    pairs = (("CABLE", "DAPEv2+Cable", ""), ("Kerple", "DAPEv2+Kerple", ", as for CABLE"))
    return [
        *(
            Claim(
                "5.3",
                f"GPT-2 Small, DAPEv2 makes {row} train 3 times slower{alike} (here: 2 to 4)",
                (ratio((column(TRAINING), row), (column(TRAINING), with_dape), least=2.0, most=4.0),),
                accelerator=True,
            )
            for row, with_dape, alike in pairs
        ),
        *(
            Claim(
                "5.3",
                f"GPT-2 Small, DAPEv2 makes {row} infer 1.7 times slower{alike} (here: 1.4 to 2)",
                (ratio((column(INFERENCE), with_dape), (column(INFERENCE), row), least=1.4, most=2.0),),
                accelerator=True,
            )
            for row, with_dape, alike in pairs
        ),
    ]


def _rest() -> list[Claim]:
    return [
        Claim(
            "3",
            "with steps of 1 and ALiBi's slopes as weights CABLE is ALiBi",
            why="mathematics: tests/encodings and docs/theory.md",
        ),
        Claim(
            "5.4, Figures 4, 8 to 15",
            "CABLE's biases vary with head and text",
            why="`python -m bam_jax.figures biases` draws them",
        ),
        Claim(
            "abstract, 5.5, A.1, Table 3, Figures 6 and 7",
            "BERT with CABLE learns faster and to a lower loss, and retrieves documents longer than 512 tokens "
            "better than with other encodings",
            why="docs/encoder_claims.md asks it, claim by claim",
        ),
    ]
