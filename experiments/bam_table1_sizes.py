"""BAM's Table 1: the sizes of its models. Nothing is trained.

Paper: appendix C. It counts BAM's location as a parameter, although it is not trained.
"""

from paper_rows import BAM_SIZES, bam, paper, printed

from bam_jax.experiments.experiment import Column, Experiment, Table

VALUES = """
| Attribute              |      120M |      432M |      1.1B |
| Parameters embedding   |      ~25M |      ~50M |      ~67M |
| Parameters transformer |      ~95M |     ~380M |       ~1B |
| Parameters BAM         |       576 |      1008 |      1440 |
| Attention heads        |        16 |        24 |        32 |
| Layers                 |        12 |        14 |        15 |
| Hidden size            |       768 |      1536 |      2048 |
| ff hidden size         |   2 × 768 |  2 × 1536 |  4 × 2048 |
| Learning Rate          | 1 × 10^-3 | 5 × 10^-4 | 3 × 10^-4 |
"""
QUANTITIES = (
    "embedding_parameters",
    "transformer_parameters",
    "prior_parameters",
    "heads",
    "layers",
    "width",
    "hidden",
    "rate",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each model; the paper has these as columns."""
    heads, values = printed(VALUES, transpose=True)
    columns = tuple(Column(label, quantity=name) for label, name in zip(heads, QUANTITIES, strict=True))
    rows = [bam("BAM", scale, label=size, size=size) for size in BAM_SIZES]
    notes = ("The transformer is counted with its head, without the token embedding.",)
    share = Column("share (%)", quantity="trained_prior_percent")
    tables = [
        Table("Table 1: sizes", columns, values),
        Table("Section 5: trained by BAM", (share,), {"120M": ("0.00032",)}),
    ]
    return paper("BAM, Table 1: sizes", scale, rows, tables, notes=notes)
