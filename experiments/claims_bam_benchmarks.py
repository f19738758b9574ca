"""The claims of "Bayesian Attention Mechanism", appendices E to G: RULER, MMLU, ARC and LongBench v2."""

from bam_jax.experiments.checks import Cells, above_chance, better, within
from bam_jax.experiments.claims import Claim

TABLE4_OTHERS = ("NoPE SSMax", "RoPE SSMax", "ALiBi SSMax", "RoPE Local", "Sinusoidal SSMax")
BOTH = ("BAM SSMax", "RoPE SSMax")
LENGTHS_1B = ("1024", "1536", "2048", "3072", "4096", "6144", "8192", "12288", "16384", "24576", "32768")
RULER = ("Single 1", "Single 2", "Single 3", "MultiKey 1", "MultiKey 2", "MultiKey 3", "MultiQuery", "MultiValue")
LONGBENCH = (
    "Code Repository Understanding",
    "Long In-context Learning",
    "Long-dialogue History Understanding",
    "Multi-Document QA",
    "Single-Document QA",
)
TOO_SMALL = (
    "the papers' tasks need a larger model; one of the small scale is taken to answer at chance, and was not asked"
)


def get_claims() -> list[Claim]:
    """The claims of appendices E to G."""
    return [*_ruler_120m(), *_ruler_1b(), *_questions()]


def _ruler_120m() -> list[Claim]:
    table4 = lambda task, *columns: Cells("bam_table4_ruler", f"Table 4, {task}", columns)
    short = ("1K", "1.5K", "2K", "3K", "4K")
    near, far = table4("Single 1", *short), table4("Single 1", "8K", "10K", "12K")
    return [
        *(
            Claim(
                "F.1, Table 4",
                f"BAM SSMax is better than every other encoding on RULER's {task} (here: in the mean of 1K to 4K)",
                (better(table4(task, *short), "BAM SSMax", TABLE4_OTHERS),),
                unfit=TOO_SMALL,
            )
            for task in ("Single 1", "Single 2", "Single 3")
        ),
        Claim(
            "F.1, Table 4",
            "on RULER's Single 1 BAM SSMax alone finds anything above 6K (here: 0.5 or more at 8K, 10K and 12K, "
            "others at most 0.1)",
            (within(far, "BAM SSMax", least=0.5), *(within(far, row, most=0.1) for row in TABLE4_OTHERS)),
            unfit=TOO_SMALL,
        ),
        Claim(
            "F.1, Table 4",
            "on RULER's Single 1 RoPE SSMax is second and ALiBi SSMax third (here: in the mean of 1K to 4K)",
            (
                better(near, "BAM SSMax", ("RoPE SSMax",)),
                better(near, "RoPE SSMax", ("ALiBi SSMax",)),
                better(near, "ALiBi SSMax", ("NoPE SSMax", "RoPE Local", "Sinusoidal SSMax")),
            ),
            "at 1K to 4K the paper's Local RoPE has 0.24, ALiBi SSMax 0.36",
            unfit=TOO_SMALL,
        ),
        Claim(
            "F.1, Table 4",
            "on RULER's Single 1 at 4K RoPE SSMax has an accuracy of 0.64 and ALiBi SSMax of 0.16 (here: within "
            "0.15 of that)",
            (
                within(table4("Single 1", "4K"), "RoPE SSMax", least=0.64, most=0.64, tolerance=0.15),
                within(table4("Single 1", "4K"), "ALiBi SSMax", least=0.16, most=0.16, tolerance=0.15),
            ),
            unfit=TOO_SMALL,
        ),
        Claim(
            "F.1, Table 4",
            "on RULER's Single 3 BAM SSMax alone is above 0.8 (here: at 1K)",
            (
                within(table4("Single 3", "1K"), "BAM SSMax", above=0.8),
                *(within(table4("Single 3", "1K"), row, most=0.8) for row in TABLE4_OTHERS),
            ),
            unfit=TOO_SMALL,
        ),
    ]


def _ruler_1b() -> list[Claim]:
    table5 = lambda task, lengths=LENGTHS_1B: Cells("bam_table5_ruler_1b", f"Table 5, {task}", lengths)
    multikey = (table5("MultiKey 2", ("1024",)), table5("MultiKey 3", ("1024",)))
    return [
        *(
            Claim(
                "F.2, Table 5",
                f"at 1.1B BAM SSMax is better than RoPE SSMax on RULER's {task} (here: in the mean of all lengths)",
                (better(table5(task), "BAM SSMax", ("RoPE SSMax",)),),
                "the paper's own table has RoPE SSMax ahead" if task == "MultiKey 3" else "",
                unfit=TOO_SMALL,
            )
            for task in RULER
        ),
        Claim(
            "F.2, Table 5",
            "at 1.1B BAM SSMax is almost perfect on RULER's Single 1 (here: 0.95 or more at each length)",
            (within(table5("Single 1"), "BAM SSMax", least=0.95),),
            unfit=TOO_SMALL,
        ),
        Claim(
            "F.2, Table 5",
            "at 1.1B MultiKey 2 and 3 are harder for both than RULER's other tasks (here: each at most 0.3 at 1024)",
            tuple(within(cells, row, most=0.3) for cells in multikey for row in BOTH),
            unfit=TOO_SMALL,
        ),
    ]


def _questions() -> list[Claim]:
    questions = Cells("bam_table3_questions", "Table 3", ("MMLU", "ARC-Easy", "ARC-Challenge"))
    longbench = lambda *columns: Cells("bam_table6_longbench", "Table 6", columns)
    return [
        Claim(
            "E, Table 3",
            "at 1.1B BAM SSMax is better than RoPE SSMax on each of MMLU, ARC-Easy and ARC-Challenge",
            (better(questions, "BAM SSMax", ("RoPE SSMax",), each=True),),
            needs=above_chance([questions], BOTH, 0.3),  # chance is 0.25
            unfit=TOO_SMALL,
        ),
        Claim(
            "G, Table 6",
            "at 1.1B BAM SSMax is better than RoPE SSMax on each of the five tasks of LongBench v2 that are shown",
            (better(longbench(*LONGBENCH), "BAM SSMax", ("RoPE SSMax",), each=True),),
            "the paper's own table has both at 35.0 on dialogues",
            unfit=TOO_SMALL,
        ),
        Claim(
            "G, Table 6",
            "at 1.1B BAM SSMax is five points better than RoPE SSMax on LongBench v2 overall (here: by more than 4)",
            (better(longbench("Overall"), "BAM SSMax", ("RoPE SSMax",), margin=4.0),),
            "the paper's own difference is 4.4",
            needs=above_chance([longbench("Overall")], BOTH, 30.0),  # chance is 25
            unfit=TOO_SMALL,
        ),
    ]
