"""CABLE's Table 3: retrieval of long documents by BERT with five encodings, to 32 times the training length of 512 tokens.

Paper: section 5.5.
"""

from paper_encoders import MLDR_FILES, contrastive_row, encoder_paper, masked_row, retrieval_columns
from paper_rows import printed

from bam_jax.experiments.experiment import Experiment, Table

VALUES = """
| Seq. Len. | CABLE | ALiBi |  RoPE | Learnable | Sinusoidal |
| 512       | 14.96 | 14.02 | 15.16 |     10.42 |      13.57 |
| 1024      | 15.15 | 12.88 | 14.41 |         — |      12.80 |
| 2048      | 16.77 | 14.30 | 10.26 |         — |       1.03 |
| 4096      | 21.36 | 18.71 |  1.17 |         — |       0.00 |
| 8192      | 24.59 | 22.86 |  0.12 |         — |       0.00 |
| 16384     | 25.10 | 23.44 |  0.12 |         — |       0.00 |
"""
TITLE = "Table 3: nDCG@10"
AVERAGES, WORDS = "Averages of token embeddings: nDCG@10", "BM25: nDCG@10"
NOTES = (
    """An embedding is the mean over all of a text's rows, so every token is seen whatever attention reaches: what breaks
    beyond the training length is whether the rows of a long text are still worth averaging.""",
    """The averages of the trained models' token embeddings use no attention and no position. An encoder that is not above
    them at its training length has learned nothing that a verdict could stand on. BM25 sees the same cut texts and one token
    more, in whose place an encoder has the end of the text. It is the same for all seeds and models, and so stands in one row;
    an interval beside it is that of a share of so many queries.""",
    """At the toy and small scales lengths are an eighth of the paper's, and tokens are pieces of words. Documents are Python's
    documentation: those to test with have more than 2,048 tokens, and their queries are sentences that stood in them
    (docs/retrieval.md). At the toy scale all methods have one rate; at the small scale each has that of
    experiments/encoder_rates.json.""",
)


def get_experiment(scale: str) -> Experiment:
    """A row for each method, a column for each length; the paper's table is transposed. Baselines have tables."""
    lengths, values = printed(VALUES, transpose=True)
    tables = [
        Table(TITLE, retrieval_columns(lengths, scale), values),
        Table(AVERAGES, retrieval_columns(lengths, scale, "tokens"), dict.fromkeys(values, ())),
        Table(WORDS, retrieval_columns(lengths, scale, "bm25"), {"CABLE": ()}),
    ]
    rows = (masked_row, contrastive_row)
    return encoder_paper(
        "CABLE, Table 3: retrieval of long documents", scale, rows, tables, fetches=[MLDR_FILES], notes=NOTES
    )
