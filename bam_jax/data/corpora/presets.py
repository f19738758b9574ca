"""The corpora that a source or a preset may name."""

import dataclasses

from bam_jax.data.corpora.corpus import Corpus, Format
from bam_jax.data.corpora.stdlib import passages
from bam_jax.data.corpora.wikitext import ARTICLES

FINEWEB_10BT = Corpus(
    paper="BAM, section 3 and appendix C",
    licence="ODC-By 1.0, and Common Crawl's terms of use",
    repository="HuggingFaceFW/fineweb",
    include="sample/10BT/*",
    splits={"train": ("sample/10BT/*.parquet", "*.parquet")},
    holdout_tokens=3_932_160,
)
FINEWEB_1B = dataclasses.replace(
    FINEWEB_10BT,
    paper="CABLE, section 4.1: a sample that perplexity is measured on",
    tokenizer="gpt2",
    holdout_tokens=0,
    max_tokens=1_000_000_000,
)
FINEWEB_EDU_10BT = dataclasses.replace(
    FINEWEB_10BT,
    paper="CABLE, section 4.1",
    repository="HuggingFaceFW/fineweb-edu",
    tokenizer="gpt2",
    holdout_tokens=100_000_000,
)

WIKIPEDIA = Corpus(
    paper="BAM, appendix D.2: perplexity of long articles",
    licence="CC BY-SA 3.0 and GFDL",
    repository="wikimedia/wikipedia",
    include="20231101.en/*",
    splits={"train": ("20231101.en/*.parquet", "*.parquet")},
)

MS_MARCO = Corpus(  # triplets with mined hard negatives: a query, a passage that answers it, one that does not
    paper="CABLE, section 5.5: mined hard negatives",
    licence="none stated; Microsoft's terms of MS MARCO: non-commercial research only",
    repository="sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1",
    include="triplet-hard/*",
    splits={"train": ("triplet-hard/*.parquet", "*.parquet", "*.jsonl", "*.jsonl.gz", "*.jsonl.zst")},
    fields=("query", "positive", "negative"),
    tokenizer="bert",
    holdout_records=1000,
    sample_records=1_250_000,
)

STDLIB = Corpus(
    paper="none: it is there without a download, for tests and toy models",
    licence="PSF License Version 2",
    splits={"train": ()},
    make=passages,
    tokenizer="char",
)


def _wikitext(number: str) -> Corpus:
    """WikiText-2 or WikiText-103: the parquet files of the hub, or the original files of either form."""
    folder = f"wikitext-{number}-raw-v1"
    return Corpus(
        paper="CABLE, section 4.1; Merity et al. 2016",
        licence="CC BY-SA 3.0 and GFDL",
        repository="Salesforce/wikitext",
        include=f"{folder}/*",
        splits={
            split: (f"{folder}/{split}-*.parquet", f"{split}-*.parquet", f"*wiki.{short}.raw", f"*wiki.{short}.tokens")
            for split, short in (("train", "train"), ("validation", "valid"), ("test", "test"))
        },
        format=ARTICLES,
        tokenizer="gpt2",
    )


CORPORA: dict[str, Corpus] = {
    "fineweb-10bt": FINEWEB_10BT,
    "fineweb-1b": FINEWEB_1B,
    "fineweb-edu-10bt": FINEWEB_EDU_10BT,
    "ms-marco": MS_MARCO,
    "stdlib": STDLIB,
    "wikipedia-en": WIKIPEDIA,
    "wikitext-2": _wikitext("2"),
    "wikitext-103": _wikitext("103"),
}


def formats() -> dict[str, Format]:
    """The formats of the corpora by their names: files of any name may be read as one of them."""
    return {corpus.format.name: corpus.format for corpus in CORPORA.values() if corpus.format is not None}
