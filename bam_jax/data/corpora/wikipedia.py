"""The English Wikipedia of November 2023, an article a document."""

from bam_jax.data.corpora.base import Corpus

WIKIPEDIA = Corpus(
    paper="BAM, appendix D.2: perplexity of long articles",
    licence="CC BY-SA 3.0 and GFDL",
    repository="wikimedia/wikipedia",
    include="20231101.en/*",
    splits={"train": ("20231101.en/*.parquet", "*.parquet")},
)
