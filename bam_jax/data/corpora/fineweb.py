"""FineWeb and FineWeb-Edu: pages of the web, in the samples of ten billion tokens."""

from bam_jax.data.corpora.base import Corpus

_SPLITS = {"train": ("sample/10BT/*.parquet", "*.parquet")}
_INCLUDE = "sample/10BT/*"
_LICENCE = "ODC-By 1.0, and Common Crawl's terms of use"

FINEWEB_10BT = Corpus(
    paper="BAM, section 3 and appendix C",
    licence=_LICENCE,
    repository="HuggingFaceFW/fineweb",
    include=_INCLUDE,
    splits=_SPLITS,
    holdout_tokens=3_932_160,
)

FINEWEB_1B = Corpus(
    paper="CABLE, section 4.1: a sample that perplexity is measured on",
    licence=_LICENCE,
    repository="HuggingFaceFW/fineweb",
    include=_INCLUDE,
    splits=_SPLITS,
    tokenizer="gpt2",
    max_tokens=1_000_000_000,
)

FINEWEB_EDU_10BT = Corpus(
    paper="CABLE, section 4.1",
    licence=_LICENCE,
    repository="HuggingFaceFW/fineweb-edu",
    include=_INCLUDE,
    splits=_SPLITS,
    tokenizer="gpt2",
    holdout_tokens=100_000_000,
)
